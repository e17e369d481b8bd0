// One client connection, served by one coroutine on its shard's thread.
//
// While a request is with the engine one wait watches the client's socket: a client that closes, or
// half-closes, has left (as uvicorn sees it). On vLLM the engine's connection is then closed, which
// aborts the request; on SGLang the request is aborted by its id once its first token was seen, and
// read to the end; it counts until then.
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "services/engine_proxy/door/merge.h"
#include "services/engine_proxy/door/reply.h"
#include "services/engine_proxy/door/shard.h"

namespace lorry::door {

// One request while it is served. Lives in the coroutine's frame.
struct Exchange {
  RequestHead head;
  std::string body;
  RouteChoice route;
  fleet::EngineKind kind = fleet::EngineKind::kUnknown;
  bool lag_known = false;
  std::shared_ptr<const EngineFacts> facts;
  Explained record;
  int64_t began_ms = 0;
  std::vector<Resolved> resolved;
  Admission admission;
  std::shared_ptr<LiveRequest> live;   // SGLang, rewritten
  std::optional<IdRestorer> restorer;  // the client gave its own ids
  UpstreamCall* call = nullptr;        // while one runs
  Timer* hold = nullptr;               // while held
  bool abort_sent = false;
};

struct BufferedReply {
  CallResult result = CallResult::kOk;
  int status = 0;
  std::string content_type;
  std::string body;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Shard& shard, Socket socket);
  ~Session();

  Task<void> Run();
  void LeaveIfIdle();  // drain: a connection between two requests is closed
  void Abandon();      // drain's end: as if the client had left

 private:
  // Nothing: the connection ends, an answer has been sent where one is due.
  Task<std::optional<RequestHead>> ReadHead();
  Task<bool> ReadRequestBody(Exchange& x);
  Task<bool> ReadSizedBody(Exchange& x, size_t length);
  Task<bool> ReadChunkedBody(Exchange& x);
  Task<bool> ReadMoreBody(bool* continued);
  bool LeaseBody(size_t bytes);
  // Each answers one request; true when the connection may carry another.
  Task<bool> Serve(Exchange& x);
  Task<bool> ServeRewritten(Exchange& x);
  Task<bool> ServeSplit(Exchange& x, std::string body, uint64_t n);
  Task<bool> ServeAbort(Exchange& x);
  Task<bool> ServeFetched(Exchange& x);
  Task<bool> Relay(Exchange& x, std::string body);
  Task<bool> RelayBody(Exchange& x, UpstreamCall& call, std::string head, bool has_body);
  Task<bool> Answer(Exchange& x, int status, std::string_view content_type, std::string body,
                    std::string extra_headers, bool keep);
  // `refused` is a named variable of the caller: g++ 12 copies an aggregate built inside a co_await
  // expression byte by byte into the frame, and then destroys it twice.
  Task<bool> Refuse(Exchange& x, Refused refused);
  Task<bool> RefuseCall(Exchange& x, CallResult result);
  Task<bool> Reject(int status, std::string message);  // always false
  Task<bool> RejectTooLarge();
  Task<bool> RejectNoRoom();

  // Waits at HELD rows; nothing when the client left.
  Task<std::optional<Outcome>> Admit(Exchange& x, const Ask& ask);
  Task<BufferedReply> Fetch(std::string head, std::string body, UpstreamCall* call, size_t limit);
  Task<void> SendAbort(std::vector<std::string> ids, std::string authorization);
  std::string EngineHead(const Exchange& x, size_t body_size) const;
  std::string ReplyHead(Exchange& x, UpstreamCall& call, bool keep, bool* chunked) const;

  void WatchClient();
  void OnClientLeft();
  void OnFirstByte(Exchange& x, bool streaming);
  void AbortOnce(Exchange& x);
  void Finish(Exchange& x);
  Task<bool> WriteClient(std::string_view a, std::string_view b, std::string_view c);
  Task<void> LingeringClose();
  bool KeepAlive(const Exchange& x) const {
    return x.head.keep_alive && !client_left_ && !shard_.shared.draining.load();
  }

  Shard& shard_;
  const DoorLimits& limits_;
  TimedSocket client_;
  beast::flat_buffer in_;
  std::optional<http::request_parser<http::string_body>> parser_;  // a chunked body
  Exchange* exchange_ = nullptr;
  size_t head_bytes_ = 0;  // of the request that begins in in_
  size_t body_lease_ = 0;
  bool idle_ = true;
  bool watching_ = false;
  bool client_left_ = false;
  uint64_t written_ = 0;  // in the current exchange
};

}  // namespace lorry::door
