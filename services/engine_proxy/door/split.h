// n > 1 on SGLang as n requests of n = 1, at once, and their replies as one.
//
// SGLang computes the prompt that they have in common once where it schedules by `lpm`, and for
// each of them where it schedules by `fcfs`, its default: a warm-up before them would cost every
// short prompt a round through the engine's queue.
#pragma once

#include <cstddef>
#include <vector>

#include "services/engine_proxy/door/exchange.h"
#include "services/engine_proxy/door/fetch.h"
#include "services/engine_proxy/door/merge.h"

namespace lorry::door {

class SplitCall {
 public:
  SplitCall(Exchange& x, const BodyFacts& facts);
  // True when the client's connection may carry another request.
  Task<bool> Run();

 private:
  Task<void> FetchOne(size_t sample);
  Task<bool> AnswerMerged();

  Exchange& x_;
  const BodyFacts& facts_;
  const Samples of_;
  BodyLease held_;  // by the replies
  std::vector<BufferedReply> replies_;
  size_t unsent_;  // children that the engine does not have yet
  size_t left_;    // children that have not ended
  Timer changed_;  // cancelled when one ends
};

}  // namespace lorry::door
