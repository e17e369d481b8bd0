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
#include <variant>
#include <vector>

#include "services/engine_proxy/door/exchange.h"
#include "services/engine_proxy/door/fetch.h"
#include "services/engine_proxy/door/resume_plan.h"
#include "services/engine_proxy/door/streamed_reply.h"

namespace lorry::door {

class ResumedRequest {
 public:
  ResumedRequest(Exchange& x, const ResumePlan& plan)
      : x_(x),
        plan_(plan),
        aborts_taken_(x.shard.shared.aborts_taken),
        held_(x.shard.shared),
        stream_(x) {}
  // True when the client's connection may carry another request.
  Task<bool> Run();

 private:
  // How the part at work has ended so far.
  struct Runs {};    // it has not
  struct GoesOn {};  // by the flip's abort: another version is to go on
  struct Over {};    // it ends the sequence
  // The first part's reply is no generation, which the client gets instead.
  using Part = std::variant<Runs, GoesOn, Over, BufferedReply>;

  // One version's part, up to its end; true: another version is to go on.
  Task<bool> RunPart();
  Task<void> ReadWhole(UpstreamCall& call);
  Task<void> ReadStream(UpstreamCall& call);
  // Nothing more comes of the reply. A client that has heard nothing is told why; then it leaves.
  Task<void> BreakOff(Refused why);
  // The client gets `reply` as it is where no part has ended as a generation.
  void PassInstead(BufferedReply reply);
  // One event of the stream, without its end.
  Task<void> OnEvent(std::string_view event);
  // The engine's words on this part, behind what came before it. At its end they say how it ended,
  // and are what the next part follows. INTERNAL ENGINE_REPLY_INVALID.
  absl::StatusOr<std::string> Take(std::string reply);
  // By its id, or all requests at once: that is no flip's abort.
  bool ClientAborted() const {
    return x_.live->client_aborted() || x_.shard.shared.aborts_taken != aborts_taken_;
  }
  // False: nothing can go on.
  Task<bool> ResolveAnew();
  void NameAnew();
  Task<bool> Finish();
  Task<bool> FinishStream();
  // With what the client is to see of ids and versions.
  std::string Shown(std::string reply, bool is_last);

  Exchange& x_;
  const ResumePlan plan_;
  const uint64_t aborts_taken_;  // before it began
  BodyLease held_;               // by what is kept of the reply
  int parts_ = 1;
  Part part_;
  std::optional<PaddedBody> before_;  // all that the ended parts generated, as one reply
  Generated generated_;               // in it
  std::vector<Span> spans_;
  std::vector<Resolved> made_by_;  // as spans_
  std::string first_id_;
  StreamedReply stream_;
};

}  // namespace lorry::door
