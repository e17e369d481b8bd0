// Calls to the engine whose whole reply is collected: one of n, control routes, aborts.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "services/engine_proxy/door/shard.h"
#include "services/engine_proxy/door/upstream.h"

namespace lorry::door {

struct Exchange;

struct BufferedReply {
  CallResult result = CallResult::kOk;
  int status = 0;
  std::string content_type;
  std::string body;                // where `result` is a failure: UpstreamCall::Problem
  std::optional<Refused> dropped;  // why there is none of it
};

// A reply larger than `limit`, or than `held` may grow, is dropped; it is read to its end all the
// same, because the engine counts the request until then. `request` lasts until the end.
Task<BufferedReply> Fetch(UpstreamCall& call, std::span<const asio::const_buffer> request,
                          size_t limit, BodyLease* held = nullptr);
// The same from the head of the reply on, which Start has read.
Task<BufferedReply> Collect(UpstreamCall& call, size_t limit, BodyLease* held);
// After one of them was kSilent: until the engine has ended the request.
Task<void> ReadToEnd(UpstreamCall& call);

// An engine does not know the id of a request that it is still reading, or keeps before a pause:
// it is told again until the reply has ended.
inline constexpr std::chrono::milliseconds kAbortAgain{1'000};

// Asks SGLang to abort these ids, one after the other. It answers 200 whether or not it knew them.
Task<void> SendAborts(Shard& shard, std::vector<std::string> ids, std::string authorization);
// The same, for nobody to wait for.
void SpawnAborts(Shard& shard, std::vector<std::string> ids, const EngineFacts& facts);
// SGLang, rewritten: aborts what its client no longer wants, `due` of it at once. Where what waits
// may be aborted too, all of it at once, and again until the request is over. Comes back when the
// engine was told for the first time.
Task<void> AbortUnwanted(Shard& shard, std::shared_ptr<LiveRequest> live,
                         std::vector<std::string> due, std::shared_ptr<const EngineFacts> facts);
// The same of all of a request, for nobody to wait for.
void SpawnAbortOfAll(Exchange& x);
// Asks vLLM to abort these ids, in one call, which passes over those that it does not know.
Task<void> SendVllmAborts(Shard& shard, std::vector<std::string> ids, std::string authorization);

}  // namespace lorry::door
