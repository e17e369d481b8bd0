// The engine's side: pooled connections, and one call over one of them.
//
// One shard's, one thread's. A reply is read only when its reader asks for the next piece: a slow
// client slows the engine's socket down and nothing piles up here.
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "services/engine_proxy/door/door.h"
#include "services/engine_proxy/door/net.h"

namespace lorry::door {

namespace beast = boost::beast;
namespace http = boost::beast::http;

struct UpstreamConnection {
  UpstreamConnection(Sweeper& sweeper, Socket socket) : link(sweeper, std::move(socket)) {}
  TimedSocket link;
  beast::flat_buffer buffer;
  std::unique_ptr<char[]> piece;  // what Piece::data points into; kept from call to call
  bool reused = false;
  int64_t idle_since_ms = 0;
};

enum class CallResult { kOk, kUnreachable, kBroken, kTimedOut };

class UpstreamPool {
 public:
  UpstreamPool(asio::io_context& io, Sweeper& sweeper, const DoorLimits& limits, Tcp::endpoint at)
      : io_(io), sweeper_(sweeper), limits_(limits), endpoint_(at) {}
  // An idle connection that is still open, or a new one. `fresh` asks for a new one.
  Task<CallResult> Acquire(bool fresh, std::unique_ptr<UpstreamConnection>* out);
  void GiveBack(std::unique_ptr<UpstreamConnection> connection);
  void CloseIdle();

 private:
  asio::io_context& io_;
  Sweeper& sweeper_;
  const DoorLimits& limits_;
  const Tcp::endpoint endpoint_;
  std::vector<std::unique_ptr<UpstreamConnection>> idle_;  // the last one used is at the end
};

class UpstreamCall {
 public:
  UpstreamCall(UpstreamPool& pool, const DoorLimits& limits) : pool_(pool), limits_(limits) {}

  // Sends, and reads the head of the reply. Sent once more on a new connection when a pooled one
  // turns out to be closed and not one byte of a reply came: the engine cannot have answered, and
  // its own limit on idle connections is the cause.
  Task<CallResult> Start(std::string head, std::string_view body, bool is_head_request);

  int status() const { return static_cast<int>(parser_->get().result_int()); }
  std::string_view Field(std::string_view name) const;
  std::vector<HeaderField> Fields() const;
  std::optional<uint64_t> content_length() const;
  bool has_body() const { return !parser_->is_done() || pending_end_; }

  struct Piece {
    std::string_view data;  // until the next call
    bool end = false;
    bool broken = false;  // the reply ended before its end
  };
  Task<Piece> Read();
  // True when the next Read would not wait: its bytes are here already.
  bool HasBuffered() const { return connection_ && connection_->buffer.size() > 0; }

  // Ends the call from outside of its coroutine: what waits gets an error.
  void Cancel();
  // After the end: the connection goes back to the pool if both sides keep it.
  void Finish();
  bool timed_out() const { return connection_ && connection_->link.expired(); }

 private:
  Task<CallResult> Attempt(std::string_view head, std::string_view body, bool is_head_request);
  Task<bool> Fill();
  CallResult Failure() const { return timed_out() ? CallResult::kTimedOut : CallResult::kBroken; }

  UpstreamPool& pool_;
  const DoorLimits& limits_;
  std::unique_ptr<UpstreamConnection> connection_;
  std::optional<http::response_parser<http::buffer_body>> parser_;
  uint64_t received_ = 0;
  bool pending_end_ = false;  // the reply ends with the connection
  bool cancelled_ = false;
};

}  // namespace lorry::door
