#include "tests/fuzz/door/client.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>

#include "lib/base/check.h"

namespace lorry::door::fuzz {
namespace {

constexpr std::string_view kHeadEnd = "\r\n\r\n";

bool Contains(std::string_view head, std::string_view line) {
  return head.find(line) != std::string_view::npos;
}

// Bytes of the chunked body at the front of `text`; npos while it is not whole.
size_t ChunkedSize(std::string_view text) {
  for (size_t at = 0;;) {
    const size_t line = text.find("\r\n", at);
    if (line == std::string_view::npos) return line;
    size_t size = 0;
    const auto read = std::from_chars(text.data() + at, text.data() + line, size, 16);
    LORRY_CHECK(read.ec == std::errc() && read.ptr == text.data() + line);
    at = line + 2 + size + 2;
    if (at > text.size()) return std::string_view::npos;
    LORRY_CHECK(text.substr(at - 2, 2) == "\r\n");
    if (size == 0) return at;
  }
}

// Bytes of the body behind `head`; npos while it is not whole, or ends with the connection.
size_t BodySize(std::string_view head, std::string_view rest, bool to_head_request) {
  int status = 0;
  LORRY_CHECK(std::from_chars(head.data() + 9, head.data() + 12, status).ec == std::errc());
  if (to_head_request || status < 200 || status == 204 || status == 304) return 0;
  if (Contains(head, "\r\nTransfer-Encoding: chunked\r\n")) return ChunkedSize(rest);
  constexpr std::string_view kLength = "\r\nContent-Length: ";
  const size_t at = head.find(kLength);
  if (at == std::string_view::npos) return at;
  size_t length = 0;
  const char* digits = head.data() + at + kLength.size();
  LORRY_CHECK(std::from_chars(digits, head.data() + head.size(), length).ec == std::errc());
  return rest.size() >= length ? length : std::string_view::npos;
}

}  // namespace

void Client::SendRaw(std::string bytes) {
  excused_ = true;
  out_ += bytes;
}

void Client::SendRequest(std::string_view text) {
  const size_t end = text.find(kHeadEnd);
  const std::string_view body =
      end == std::string_view::npos ? std::string_view() : text.substr(end + kHeadEnd.size());
  std::string_view head = text.substr(0, end);
  // Line ends around the head would end it before its Content-Length.
  head.remove_prefix(std::min(head.find_first_not_of("\r\n"), head.size()));
  head.remove_suffix(head.size() - (head.find_last_not_of("\r\n") + 1));
  if (head.empty()) return;
  owed_.push_back(head.starts_with("HEAD "));
  out_ += head;
  out_ += "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n";
  out_ += body;
}

void Client::HalfClose() {
  excused_ = true;  // who half-closes has left
  link_.HalfClose();
}

bool Client::Move() {
  if (!open()) return false;
  std::string_view out = out_;
  bool moved = link_.Send(&out);
  out_.erase(0, out_.size() - out.size());
  if (!reading_) return moved;
  if (link_.Receive(&in_)) moved = true;
  if (excused_) {
    in_.clear();
    return moved;
  }
  ReadReplies();
  if (!open()) CheckEnd();
  return moved;
}

void Client::ReadReplies() {
  for (;;) {
    const size_t end = in_.find(kHeadEnd);
    if (end == std::string::npos) return;
    const std::string_view head = std::string_view(in_).substr(0, end + kHeadEnd.size());
    LORRY_CHECK(head.starts_with("HTTP/1.1 ") && head.size() > 12);
    LORRY_CHECK(!owed_.empty());  // an answer to nothing
    const std::string_view rest = std::string_view(in_).substr(head.size());
    const size_t body = BodySize(head, rest, owed_.front());
    if (body == std::string_view::npos) return;
    last_said_close_ = Contains(head, "\r\nConnection: close\r\n");
    if (head[9] != '1') owed_.pop_front();
    in_.erase(0, head.size() + body);
  }
}

// The connection has ended: whoever is still owed an answer got at least the beginning of one, or
// was told before that it would not come.
void Client::CheckEnd() const {
  if (owed_.empty() || last_said_close_ || !in_.empty()) return;
  std::fprintf(stderr, "%zu requests were not answered: the door closed the connection\n",
               owed_.size());
  std::abort();
}

}  // namespace lorry::door::fuzz
