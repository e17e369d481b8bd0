// Calls to the engine whose whole reply is collected: one of n, control routes, aborts.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
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
// counts the request until then. `head` and `body` last until the end.
Task<BufferedReply> Fetch(UpstreamCall& call, std::string_view head, std::string_view body,
                          size_t limit);
// After a Fetch that was kSilent: until the engine has ended the request.
Task<void> ReadToEnd(UpstreamCall& call);

// Asks SGLang to abort these ids, one after the other. It answers 200 whether or not it knew them.
Task<void> SendAborts(Shard& shard, std::vector<std::string> ids, std::string authorization);

}  // namespace lorry::door
