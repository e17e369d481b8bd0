#include "tests/fuzz/door/hostile_engine.h"

#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "lib/base/check.h"
#include "tests/unit/engine_proxy/door/harness.h"

namespace lorry::door::fuzz {
namespace {

using Json = nlohmann::json;

// What is slowly sent byte by byte; the rest of a reply follows at once.
constexpr size_t kTrickledBytesMax = 512;
// Parsing a long body would take more time than the door with all the rest.
constexpr size_t kJudgedBytesMax = 64 << 10;
constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr std::string_view kLength = "\r\nContent-Length: ";
constexpr char kRequestId = '\x02';

size_t LengthIn(std::string_view head) {
  const size_t at = head.find(kLength);
  if (at == std::string_view::npos) return 0;
  LORRY_CHECK(head.find(kLength, at + 1) == std::string_view::npos);
  const std::string_view digits = head.substr(at + kLength.size());
  size_t length = 0;
  LORRY_CHECK(std::from_chars(digits.data(), digits.data() + digits.size(), length).ec ==
              std::errc());
  return length;
}

std::string IdIn(std::string_view body) {
  constexpr std::string_view kKey = "\"rid\":\"";
  const size_t at = body.find(kKey);
  if (at == std::string_view::npos) return "no-id";
  const std::string_view id = body.substr(at + kKey.size());
  return std::string(id.substr(0, id.find('"')));
}

std::string_view PathIn(std::string_view head) {
  const size_t from = head.find(' ') + 1;
  return head.substr(from, head.find_first_of(" ?", from) - from);
}

bool Generates(std::string_view path) {
  return path == "/generate" || path == "/v1/completions" || path == "/v1/chat/completions";
}

PlannedReply GoodReply(std::string_view path, const std::string& id) {
  std::string body = "{}";
  if (path == "/generate") {
    body = R"({"text":"x","output_ids":[5],"meta_info":{"id":")" + id +
           R"(","prompt_tokens":1,"completion_tokens":1,"finish_reason":{"type":"length"}}})";
  } else if (Generates(path)) {
    body = R"({"id":")" + id + R"(","model":"base","choices":[{"index":0,"text":"x"}],)" +
           R"("usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}})";
  } else if (path == "/v1/models") {
    body = R"({"object":"list","data":[{"id":"base","object":"model"}]})";
  }
  return {.form = PlannedReply::Form::kJson, .bytes = body};
}

// What goes over the wire.
std::string Framed(const PlannedReply& reply, const std::string& id) {
  std::string body = reply.bytes;
  for (size_t at = body.find(kRequestId); at != std::string::npos; at = body.find(kRequestId)) {
    body.replace(at, 1, id);
  }
  const std::string head = "HTTP/1.1 200 OK\r\nContent-Type: ";
  switch (reply.form) {
    case PlannedReply::Form::kRaw:
      break;
    case PlannedReply::Form::kJson:
      return head + "application/json\r\nContent-Length: " + std::to_string(body.size()) +
             "\r\n\r\n" + body;
    case PlannedReply::Form::kEvents:
      return head + "text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" +
             (body.empty() ? "" : testing::Chunk(body)) + testing::Chunk("");
  }
  return body;
}

}  // namespace

HostileEngine::HostileEngine(std::set<std::string> adapters) : adapters_(std::move(adapters)) {
  std::tie(listener_, port_) = Listen();
}

bool HostileEngine::Move() {
  bool moved = false;
  for (;;) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) break;
    connections_.push_back(std::make_unique<Connection>());
    connections_.back()->link = Link(fd);
    moved = true;
  }
  for (const auto& connection : connections_) {
    moved = connection->link.Receive(&connection->in) || moved;
    moved = TakeRequest(*connection) || moved;
    moved = Write(*connection) || moved;
    moved = End(*connection) || moved;
  }
  std::erase_if(connections_, [](const auto& connection) { return !connection->link.open(); });
  return moved;
}

bool HostileEngine::TakeRequest(Connection& connection) {
  if (connection.answering || !connection.link.open()) return false;
  const size_t end = connection.in.find(kHeadEnd);
  if (end == std::string::npos) return false;
  const std::string head = connection.in.substr(0, end + kHeadEnd.size());
  const size_t length = LengthIn(head);
  const bool whole = connection.in.size() >= head.size() + length;
  if (!whole && (planned_.empty() || !planned_.front().early)) return false;
  const std::string body = connection.in.substr(head.size(), length);
  connection.in.erase(0, head.size() + length);
  if (whole) Check(head, body);
  connection.planned = !planned_.empty();
  const std::string id = IdIn(body);
  if (connection.planned) {
    connection.reply = std::move(planned_.front());
    planned_.pop_front();
    connection.reply.close |= !whole;
  } else {
    connection.reply = GoodReply(PathIn(head), id);
  }
  connection.reply.bytes = Framed(connection.reply, id);
  connection.sent = 0;
  connection.answering = true;
  return true;
}

bool HostileEngine::Write(Connection& connection) {
  if (!connection.answering || !connection.link.open()) return false;
  PlannedReply& reply = connection.reply;
  std::string_view rest = std::string_view(reply.bytes).substr(connection.sent);
  if (!letting_go_) {
    if (reply.hang && connection.sent * 2 >= reply.bytes.size()) return false;
    if (reply.trickle && connection.sent < kTrickledBytesMax) rest = rest.substr(0, 1);
  }
  const size_t before = rest.size();
  const bool moved = connection.link.Send(&rest);
  connection.sent += before - rest.size();
  if (connection.sent < reply.bytes.size()) return moved;
  connection.answering = false;
  return true;
}

// After a planned reply the connection ends as planned, at the latest with the input: what it left
// open would keep the door waiting.
bool HostileEngine::End(Connection& connection) {
  if (connection.answering || !connection.planned || !connection.link.open()) return false;
  const PlannedReply& reply = connection.reply;
  if (reply.reset) {
    connection.link.Reset();
  } else if (reply.close || letting_go_) {
    connection.link.Close();
  }
  return !connection.link.open();
}

// 0 ways to the base model: whatever generates names an adapter that a table routes to.
void HostileEngine::Check(std::string_view head, std::string_view body) const {
  if (!Generates(PathIn(head)) || body.size() > kJudgedBytesMax) return;
  const Json request = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (request.is_discarded()) return;  // a number that only this parser cannot hold
  LORRY_CHECK(request.is_object());
  const auto named = [this](const Json& name) {
    LORRY_CHECK(name.is_string() && adapters_.contains(name.get<std::string>()));
  };
  if (const auto path = request.find("lora_path"); path != request.end() && !path->is_null()) {
    if (!path->is_array()) return named(*path);
    LORRY_CHECK(!path->empty());
    for (const Json& name : *path) named(name);
    return;
  }
  LORRY_CHECK(request.contains("model"));
  named(request["model"]);
}

void HostileEngine::AddTo(std::vector<pollfd>* polled) const {
  polled->push_back({.fd = listener_, .events = POLLIN, .revents = 0});
  for (const auto& connection : connections_) {
    const bool writes = connection->answering && !connection->reply.hang;
    polled->push_back({.fd = connection->link.fd(),
                       .events = static_cast<short>(POLLIN | (writes ? POLLOUT : 0)),
                       .revents = 0});
  }
}

void HostileEngine::Clear() {
  Move();  // what still waits to be accepted
  connections_.clear();
  planned_.clear();
  letting_go_ = false;
}

}  // namespace lorry::door::fuzz
