// Beast's reading of a reply, without Beast's containers: the head as one text, the body's bytes
// where they lie in the read buffer.
//
// One thread's.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "services/engine_proxy/door/framing.h"

namespace lorry::door {

namespace asio = boost::asio;

namespace beast = boost::beast;
namespace http = boost::beast::http;

class ReplyParser : public http::basic_parser<false> {
  static constexpr size_t kUsualFields = 16;

 public:
  using FieldList = absl::InlinedVector<HeaderField, kUsualFields>;
  // The reply to HEAD has no body, whatever its head says.
  explicit ReplyParser(bool answers_head);

  int status() const { return status_; }
  // The first field of that name (any case), empty when absent.
  std::string_view Get(std::string_view name) const;
  // In order; valid while the parser lives and reads no further head.
  FieldList Fields() const;
  // What the last put() found of the body; lies in the bytes that it was given.
  std::span<const asio::const_buffer> pieces() const { return pieces_; }
  void ForgetPieces() { pieces_.clear(); }

 private:
  using ErrorCode = boost::system::error_code;
  using View = boost::beast::string_view;
  void on_request_impl(http::verb, View, View, int, ErrorCode&) override {}
  void on_response_impl(int code, View reason, int version, ErrorCode& error) override;
  void on_field_impl(http::field, View name, View value, ErrorCode& error) override;
  void on_header_impl(ErrorCode&) override { in_head_ = false; }
  void on_body_init_impl(const boost::optional<uint64_t>&, ErrorCode&) override {}
  size_t on_body_impl(View body, ErrorCode& error) override;
  void on_chunk_header_impl(uint64_t, View, ErrorCode&) override {}
  size_t on_chunk_body_impl(uint64_t, View body, ErrorCode& error) override;
  void on_finish_impl(ErrorCode&) override {}

  struct Place {
    size_t name_at, value_at, end;
  };
  int status_ = 0;
  bool in_head_ = true;  // afterwards fields are trailers, which end here
  std::string text_;
  absl::InlinedVector<Place, kUsualFields> places_;
  absl::InlinedVector<asio::const_buffer, 2> pieces_;
};

}  // namespace lorry::door
