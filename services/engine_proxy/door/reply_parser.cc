#include "services/engine_proxy/door/reply_parser.h"

#include <algorithm>
#include <utility>

namespace lorry::door {
namespace {

constexpr HeadLimits kLimits;
constexpr std::string_view kHeadEnd = "\r\n\r\n";

}  // namespace

std::optional<size_t> ReplyParser::Take(std::string_view bytes) {
  if (!head_) return TakeHead(bytes);
  size_t size = bytes.size();
  switch (ends_) {
    case Ends::kDone:
      return 0;
    case Ends::kWithLastChunk:
      return TakeChunks(bytes);
    case Ends::kWithLength:
      size = static_cast<size_t>(std::min<uint64_t>(size, left_));
      left_ -= size;
      if (left_ == 0) ends_ = Ends::kDone;
      break;
    case Ends::kWithConnection:
      break;
  }
  if (size > 0) pieces_.emplace_back(bytes.data(), size);
  return size;
}

std::optional<size_t> ReplyParser::TakeHead(std::string_view bytes) {
  const size_t end = bytes.find(kHeadEnd, searched_);
  if (end == std::string_view::npos) {
    searched_ = bytes.size() - std::min(bytes.size(), kHeadEnd.size() - 1);
    return bytes.size() > kLimits.bytes ? std::nullopt : std::optional<size_t>(0);
  }
  const size_t size = end + kHeadEnd.size();
  auto head = ReadReplyHead(bytes.substr(0, size), kLimits);
  if (std::holds_alternative<HeadProblem>(head)) return std::nullopt;
  head_ = std::get<ReplyHead>(std::move(head));
  const int code = head_->status;
  if (answers_head_ || code < 200 || code == 204 || code == 304) {
    ends_ = Ends::kDone;
  } else if (head_->chunked) {
    ends_ = Ends::kWithLastChunk;
    chunks_.emplace(pieces_);
  } else if (head_->content_length) {
    left_ = *head_->content_length;
    ends_ = left_ > 0 ? Ends::kWithLength : Ends::kDone;
  } else {
    ends_ = Ends::kWithConnection;
  }
  return size;
}

// Reads the head once more, as it is only asked for where a reply is refused.
std::string ReplyParser::Problem(std::string_view bytes) const {
  if (head_) return "its chunks are not framed as HTTP/1.1 says";
  const size_t end = bytes.find(kHeadEnd);
  if (end != std::string_view::npos) bytes = bytes.substr(0, end + kHeadEnd.size());
  auto head = ReadReplyHead(bytes, kLimits);
  HeadProblem* problem = std::get_if<HeadProblem>(&head);
  return problem != nullptr ? std::move(problem->message) : "";
}

std::optional<size_t> ReplyParser::TakeChunks(std::string_view bytes) {
  boost::system::error_code error;
  const size_t size = chunks_->put(asio::buffer(bytes.data(), bytes.size()), error);
  if (error && error != http::error::need_more) return std::nullopt;
  if (chunks_->is_done()) ends_ = Ends::kDone;
  return size;
}

// Beast begins with a head: one that says only how the body is framed.
ReplyParser::Chunks::Chunks(Pieces& pieces) : pieces_(pieces) {
  constexpr std::string_view kHead = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  header_limit(kLimits.bytes);
  body_limit(boost::none);
  boost::system::error_code error;
  put(asio::buffer(kHead.data(), kHead.size()), error);
  eager(true);
}

size_t ReplyParser::Chunks::on_chunk_body_impl(uint64_t, View body, ErrorCode&) {
  if (!body.empty()) pieces_.emplace_back(body.data(), body.size());
  return body.size();
}

}  // namespace lorry::door
