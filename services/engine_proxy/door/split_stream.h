// n > 1 on SGLang with `stream`: n streams of n = 1, at once, and their events as they come.
//
// Bounded: a child is not read while more than kPendingBytes wait for the client, and of each
// stream only the event whose end has not come is held. A client that leaves, or a child that
// fails, ends the reply; the other children are aborted by their ids and read to their ends.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "services/engine_proxy/door/exchange.h"
#include "services/engine_proxy/door/fetch.h"
#include "services/engine_proxy/door/merge_stream.h"
#include "services/engine_proxy/door/streamed_reply.h"

namespace lorry::door {

class SplitStream {
 public:
  SplitStream(Exchange& x, const BodyFacts& facts);
  // True when the client's connection may carry another request.
  Task<bool> Run();

 private:
  Task<void> ReadOne(size_t sample);
  // What is not kOk is why the reply ended before its end.
  Task<CallResult> ReadReply(UpstreamCall& call, size_t sample);
  void OnEvents(std::string_view text, size_t sample);
  void OnRefusal(const ReplyParser& reply, std::string body);
  Task<bool> WriteReply();
  Task<bool> WritePending(bool last);
  // The reply cannot go on.
  void Fail(Refused why);
  // Nobody waits for the reply: aborts what can be, and lets the children be read to their ends.
  void Stop();
  bool over() const { return failed_ || x_.client.left(); }

  Exchange& x_;
  const BodyFacts& facts_;
  StreamMerger merger_;
  BodyLease held_;       // by the merger and what is pending
  std::string pending_;  // events that the client has not got
  StreamedReply reply_;
  std::optional<Refused> failed_;
  std::optional<BufferedReply> answer_;  // the engine's own words for it
  std::vector<AnswerWatch> watches_;     // by sample
  size_t unsent_;                        // children that the engine does not have yet
  size_t left_;                          // children that have not ended
  Timer changed_;                        // cancelled when events came, or a child ended
  Timer room_;                           // cancelled when the client has taken what was pending
};

}  // namespace lorry::door
