#include "lib/transfer/transport.h"

#include <future>
#include <memory>
#include <utility>

namespace lorry::transfer {
namespace {

constexpr std::string_view kSchemeEnd = "://";

}  // namespace

Outcome Await(absl::FunctionRef<void(OnDone)> start) {
  // Shared, because set_value may still be returning on the other thread when get() is done here.
  auto promise = std::make_shared<std::promise<Outcome>>();
  start([promise](Outcome outcome) { promise->set_value(std::move(outcome)); });
  return promise->get_future().get();
}

Outcome FetchAndWait(Transport& transport, FetchRequest request, OnRange on_range) {
  return Await([&](OnDone done) {
    transport.Fetch(std::move(request), std::move(on_range), std::move(done));
  });
}

Outcome PushAndWait(Transport& transport, PushRequest request, OnRange on_range) {
  return Await([&](OnDone done) {
    transport.Push(std::move(request), std::move(on_range), std::move(done));
  });
}

std::string_view SchemeOf(std::string_view address) {
  const size_t end = address.find(kSchemeEnd);
  return end == std::string_view::npos ? std::string_view() : address.substr(0, end);
}

std::string_view HostPortOf(std::string_view address) {
  const size_t end = address.find(kSchemeEnd);
  return end == std::string_view::npos ? address : address.substr(end + kSchemeEnd.size());
}

}  // namespace lorry::transfer
