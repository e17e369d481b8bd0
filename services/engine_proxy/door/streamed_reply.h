// The client's reply to a stream, where the door writes its events: one head, and then whatever comes, in
// chunks where the client understands them.
//
// Of one exchange, one thread's.
#pragma once

#include <string>

#include "services/engine_proxy/door/exchange.h"
#include "services/engine_proxy/door/upstream.h"

namespace lorry::door {

class StreamedReply {
 public:
  explicit StreamedReply(Exchange& x) : x_(x) {}
  // The engine has begun to stream, so that there is a head; it goes out with what is written first,
  // and until then this may be called again, for another version's reply.
  void Begin(const UpstreamCall& call);
  bool begun() const { return begun_; }
  // The client has the head, so that nothing can be said any more but what the engine streams.
  bool told() const { return begun_ && head_.empty(); }
  // After Begin. Once `last` is written, it tells whether the client's connection may carry another
  // request; before that, whether the client is still there.
  Task<bool> Write(std::string text, bool last);

 private:
  Exchange& x_;
  bool begun_ = false;
  std::string head_;  // until it is sent
  bool keep_ = false;
  bool chunked_ = false;
};

}  // namespace lorry::door
