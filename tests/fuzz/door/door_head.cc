// Any bytes as a request head: refused with a status, or what would be forwarded of it reads back
// with the same framing and cannot hold a line of its own making.
#include <string>
#include <variant>

#include "lib/base/check.h"
#include "services/engine_proxy/door/framing.h"

using namespace lorry::door;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view raw(reinterpret_cast<const char*>(data), size);
  const auto read = ReadHead(raw, {});
  if (const auto* problem = std::get_if<HeadProblem>(&read)) {
    LORRY_CHECK(problem->status >= 400 && problem->status < 600 && !problem->message.empty());
    return 0;
  }
  const auto& head = std::get<RequestHead>(read);
  LORRY_CHECK(!(head.chunked && head.content_length));
  std::string forwarded = std::string(head.method).append(" ").append(head.path).append(head.query);
  forwarded += " HTTP/1.1\r\nHost: engine\r\n";
  static constexpr std::string_view kDropped[] = {"host", "content-length", "expect"};
  AppendForwardable(head.fields, FieldNames(kDropped), &forwarded);
  forwarded += "\r\n";
  LORRY_CHECK(forwarded.find("\r\n\r\n") == forwarded.size() - 4);
  const auto again = ReadHead(forwarded, {.bytes = forwarded.size(), .fields = 200});
  const auto* accepted = std::get_if<RequestHead>(&again);
  LORRY_CHECK(accepted != nullptr && !accepted->has_body() && accepted->path == head.path);
  return 0;
}
