// in_flight=resume_on_new on SGLang's /generate: a request that its row's flip aborts goes on under
// the version that the row stands on then, behind the tokens that it has, and the client gets one
// reply whose spans say which version made which tokens. How often is bounded: the last version
// finishes it. A continuation that the engine does not take leaves the client with the abort.
//
// The request's body is kept until its end, and of the reply as much as one in one piece would have.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "services/engine_proxy/door/exchange.h"
#include "services/engine_proxy/door/fetch.h"
#include "services/engine_proxy/door/resume_plan.h"

namespace lorry::door {

class ResumedRequest {
 public:
  ResumedRequest(Exchange& x, const ResumePlan& plan) : x_(x), plan_(plan), held_(x.shard.shared) {}
  // True when the client's connection may carry another request.
  Task<bool> Run();

 private:
  // One version's part, up to its end; true: another version is to go on.
  Task<bool> RunPart();
  Task<bool> ReadWhole(UpstreamCall& call, std::span<const asio::const_buffer> request);
  Task<bool> ReadStream(UpstreamCall& call, std::span<const asio::const_buffer> request);
  // Nothing more comes of a stream. A client that has heard nothing is told why; then it leaves.
  Task<void> BreakOff(Refused why);
  // The client has the head of a stream's reply.
  bool IsToldHead() const { return begun_ && head_.empty(); }
  // One event of the stream, without its end.
  Task<bool> OnEvent(std::string_view event);
  // The engine's words on this part, behind what came before it. Sets `goes_on_` and, at its end,
  // what the next part follows. INTERNAL ENGINE_REPLY_INVALID.
  absl::StatusOr<std::string> Take(std::string reply);
  // False: nothing can go on.
  Task<bool> ResolveAnew();
  void NameAnew();
  Task<bool> Finish();
  Task<bool> FinishStream();
  // With what the client is to see of ids and versions.
  std::string Shown(std::string reply, bool is_last);
  Task<bool> Write(std::string text, bool last);

  Exchange& x_;
  const ResumePlan plan_;
  BodyLease held_;  // by what is kept of the reply
  int parts_ = 1;
  std::optional<PaddedBody> before_;  // all that the ended parts generated, as one reply
  Generated generated_;               // in it
  std::vector<Span> spans_;
  std::vector<Resolved> made_by_;  // as spans_
  bool goes_on_ = false;
  std::optional<BufferedReply> odd_;  // the first part's reply is no generation: the client gets it
  std::string first_id_;
  std::string head_;  // of a stream's reply, until it is sent
  bool begun_ = false;
  bool keep_ = false;
  bool chunked_ = false;
  bool is_over_ = false;  // the client has the event that ends the sequence
};

}  // namespace lorry::door
