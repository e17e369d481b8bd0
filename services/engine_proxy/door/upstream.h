// The engine's side: pooled connections, and one call over one of them.
//
// One shard's, one thread's. A reply is read only when its reader asks for the next piece: a slow
// client slows the engine's socket down and nothing piles up here.
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "services/engine_proxy/door/door.h"
#include "services/engine_proxy/door/net.h"
#include "services/engine_proxy/door/reply_parser.h"

namespace lorry::door {

struct UpstreamConnection {
  UpstreamConnection(Sweeper& sweeper, Socket socket) : link(sweeper, std::move(socket)) {}
  TimedSocket link;
  beast::flat_buffer buffer;
  bool reused = false;
  uint64_t sent = 0;  // bytes of all requests
  int64_t idle_since_ms = 0;
};

enum class CallResult {
  kOk,
  kUnreachable,  // the engine does not accept connections
  kNoSockets,    // this host has none left
  kBroken,       // the connection ended before the reply did
  kInvalid,      // what came is no reply of HTTP/1.1
  kSilent,       // nothing came for longer than the limit; the call may still be read on
};

class UpstreamPool {
 public:
  // An engine's name may stand for several addresses, of which it need not listen on all:
  // "localhost" is ::1 as well as 127.0.0.1.
  using Endpoints = std::vector<Tcp::endpoint>;
  UpstreamPool(asio::io_context& io, Sweeper& sweeper, const DoorOptions& options, Endpoints at)
      : io_(io),
        sweeper_(sweeper),
        options_(options),
        limits_(options.limits),
        endpoints_(std::move(at)) {}
  // An idle connection that is still open; null where there is none.
  std::unique_ptr<UpstreamConnection> TakeIdle();
  Task<CallResult> Connect(std::unique_ptr<UpstreamConnection>* out);
  void GiveBack(std::unique_ptr<UpstreamConnection> connection);
  void CloseIdle();
  // The engine was started again, and its name may stand for another address. Nobody waits for the
  // answer, as a name server may take long.
  void LookUpNow();

 private:
  // Where no address answers, and none was looked up just before.
  void LookUp();
  Task<void> FindEngine();
  Task<CallResult> Connect(Tcp::endpoint at, std::unique_ptr<UpstreamConnection>* out);

  asio::io_context& io_;
  Sweeper& sweeper_;
  const DoorOptions& options_;
  const DoorLimits& limits_;
  bool looks_up_ = false;
  bool look_again_ = false;  // what is being looked up may be older than the last boot
  int64_t look_up_after_ms_ = 0;
  Endpoints endpoints_;                                    // the one that answered last comes first
  std::vector<std::unique_ptr<UpstreamConnection>> idle_;  // the last one used is at the end
};

class UpstreamCall {
 public:
  UpstreamCall(UpstreamPool& pool, const DoorLimits& limits)
      : pool_(pool), limits_(limits), silence_ms_(limits.engine_silence_ms) {}

  // Sends `request` (its head, then its body in any number of pieces), and reads the head of the
  // reply. Sent once more on a new connection only where the engine certainly read none of it: a
  // pooled connection that the engine closed just then.
  Task<CallResult> Start(std::span<const asio::const_buffer> request, bool answers_head);
  // After Start or Read was kSilent: goes on waiting, now for as long as the connection lasts.
  Task<CallResult> WaitForHead();
  void WaitForEver() { silence_ms_ = 0; }

  const ReplyParser& reply() const { return *parser_; }
  std::optional<uint64_t> content_length() const { return parser_->content_length(); }
  bool has_body() const { return !parser_->is_done(); }

  struct Piece {
    // Valid until the next piece is read. Empty only at the end, or where the call failed.
    std::span<const asio::const_buffer> data;
    bool end = false;
    CallResult result = CallResult::kOk;
  };
  // The next one if its bytes are here already: what comes with the head costs no wait.
  std::optional<Piece> Next();
  // The next one.
  Task<Piece> Read();
  // Some of its bytes are here.
  bool HasBuffered() const { return connection_->buffer.size() > 0; }

  // Ends the call from outside of its coroutine: what waits gets an error.
  void Cancel();
  // What is wrong with the reply; empty where that is not why the call ended with `result`.
  std::string Problem(CallResult result) const;
  // After the end: the connection goes back to the pool if both sides keep it.
  void Finish();

 private:
  std::string_view Here() const;  // what lies in the connection's buffer
  // Hands it to the parser; nothing: it is no reply.
  std::optional<size_t> Parse() { return parser_->Take(Here()); }
  // What came says of the head: that it is whole or will never be, or nothing yet.
  std::optional<CallResult> HeadAfter(const Transferred& read);
  std::optional<CallResult> ParseHead();
  // To be awaited: more in the connection's buffer; the result is for Took.
  auto ReadMore() {
    connection_->link.ExpireIn(silence_ms_);
    return connection_->link.Read(connection_->buffer.prepare(read_bytes_));
  }
  CallResult Took(const Transferred& read);

  UpstreamPool& pool_;
  const DoorLimits& limits_;
  int64_t silence_ms_;
  std::unique_ptr<UpstreamConnection> connection_;
  std::optional<ReplyParser> parser_;
  uint64_t sent_before_ = 0;  // on this connection, when this request began
  uint64_t received_ = 0;
  size_t read_bytes_ = 4 * 1024;  // room for the next read
  size_t used_ = 0;               // of the buffer, by the piece that was given out last
  bool answers_head_ = false;
  bool cancelled_ = false;
};

}  // namespace lorry::door
