// Calls to the engine whose whole reply is collected: one of n, control routes, aborts.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "services/engine_proxy/door/shard.h"
#include "services/engine_proxy/door/upstream.h"

namespace lorry::door {

struct BufferedReply {
  CallResult result = CallResult::kOk;
  int status = 0;
  std::string content_type;
  std::string body;
};

// A reply larger than `limit` is kBroken; it is read to its end all the same, because the engine
// counts the request until then.
Task<BufferedReply> Fetch(UpstreamCall& call, std::string head, std::string body, size_t limit);

// Asks SGLang to abort these ids, one after the other. It answers 200 whether or not it knew them.
Task<void> SendAborts(Shard& shard, std::vector<std::string> ids, std::string authorization);

}  // namespace lorry::door
