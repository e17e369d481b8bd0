// n > 1 on SGLang as n requests of n = 1, at once, and their replies as one.
//
// SGLang computes the prompt that they have in common once where it schedules by `lpm`, and for
// each of them where it schedules by `fcfs`, its default: a warm-up before them would cost every
// short prompt a round through the engine's queue.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "services/engine_proxy/door/exchange.h"
#include "services/engine_proxy/door/fetch.h"

namespace lorry::door {

class SplitCall {
 public:
  SplitCall(Exchange& x, size_t n);
  // `body` asks for one, under the exchange's id. True when the client's connection may carry
  // another request.
  Task<bool> Run(std::string body);

 private:
  Task<void> FetchOne(size_t index, std::string head, std::string body);
  Task<bool> AnswerMerged();

  Exchange& x_;
  std::vector<BufferedReply> replies_;
  size_t left_;  // children that have not ended
  Timer done_;   // cancelled when none is left
};

}  // namespace lorry::door
