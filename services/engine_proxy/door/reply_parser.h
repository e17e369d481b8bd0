// Reads an engine's reply: the head strictly, as a client's, and the body's bytes where they lie in
// the read buffer. Beast decodes what is chunked.
//
// One thread's.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "services/engine_proxy/door/framing.h"

namespace lorry::door {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

class ReplyParser {
 public:
  // The reply to HEAD has no body, whatever its head says.
  explicit ReplyParser(bool answers_head) : answers_head_(answers_head) {}
  ReplyParser(const ReplyParser&) = delete;
  ReplyParser& operator=(const ReplyParser&) = delete;

  // How many of `bytes` it took: all of a head or none, and then what is there of the body, which
  // pieces() has. What it did not take is given to it again, with more behind. Nothing: this is no
  // reply of HTTP/1.1.
  std::optional<size_t> Take(std::string_view bytes);
  // Then: what is wrong with these bytes.
  std::string Problem(std::string_view bytes) const;

  bool has_head() const { return head_.has_value(); }
  // With a head:
  int status() const { return head_->status; }
  std::string_view Get(std::string_view name) const { return head_->Get(name); }
  std::span<const HeaderField> fields() const { return head_->fields; }
  std::optional<uint64_t> content_length() const { return head_->content_length; }
  bool is_done() const { return ends_ == Ends::kDone; }
  bool ends_with_connection() const { return ends_ == Ends::kWithConnection; }
  bool keep_alive() const { return head_->keep_alive && !ends_with_connection(); }

  // What the last Take found of the body; lies in the bytes that it was given.
  std::span<const asio::const_buffer> pieces() const { return pieces_; }
  void ForgetPieces() { pieces_.clear(); }

 private:
  using Pieces = absl::InlinedVector<asio::const_buffer, 2>;
  enum class Ends { kDone, kWithLength, kWithLastChunk, kWithConnection };

  class Chunks : public http::basic_parser<false> {
   public:
    explicit Chunks(Pieces& pieces);

   private:
    using ErrorCode = boost::system::error_code;
    using View = beast::string_view;
    void on_request_impl(http::verb, View, View, int, ErrorCode&) override {}
    void on_response_impl(int, View, int, ErrorCode&) override {}
    void on_field_impl(http::field, View, View, ErrorCode&) override {}  // trailers end here
    void on_header_impl(ErrorCode&) override {}
    void on_body_init_impl(const boost::optional<uint64_t>&, ErrorCode&) override {}
    size_t on_body_impl(View, ErrorCode&) override { return 0; }
    void on_chunk_header_impl(uint64_t, View, ErrorCode&) override {}
    size_t on_chunk_body_impl(uint64_t, View body, ErrorCode&) override;
    void on_finish_impl(ErrorCode&) override {}

    Pieces& pieces_;
  };

  std::optional<size_t> TakeHead(std::string_view bytes);
  std::optional<size_t> TakeChunks(std::string_view bytes);

  const bool answers_head_;
  size_t searched_ = 0;  // of a head whose end has not come
  std::optional<ReplyHead> head_;
  Ends ends_ = Ends::kDone;
  uint64_t left_ = 0;  // of a body with a length
  std::optional<Chunks> chunks_;
  Pieces pieces_;
};

}  // namespace lorry::door
