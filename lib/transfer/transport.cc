#include "lib/transfer/transport.h"

#include <future>
#include <memory>
#include <utility>

namespace lorry::transfer {
namespace {

constexpr std::string_view kSchemeEnd = "://";

template <typename Start>
Outcome Wait(Start start) {
  // Shared, because set_value may still be returning on the other thread when get() is done here.
  auto promise = std::make_shared<std::promise<Outcome>>();
  start([promise](Outcome outcome) { promise->set_value(std::move(outcome)); });
  return promise->get_future().get();
}

}  // namespace

Outcome FetchAndWait(Transport& transport, FetchRequest request, OnRange on_range) {
  return Wait([&](OnDone done) {
    return transport.Fetch(std::move(request), std::move(on_range), std::move(done));
  });
}

Outcome PushAndWait(Transport& transport, PushRequest request, OnRange on_range) {
  return Wait([&](OnDone done) {
    return transport.Push(std::move(request), std::move(on_range), std::move(done));
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
