// The heads that the door writes: its own framing and identity, and the other side's other fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "services/engine_proxy/door/exchange.h"
#include "services/engine_proxy/door/upstream.h"

namespace lorry::door {

bool IsEventStream(std::string_view content_type);
// The engine has begun to stream what it was asked for: no error, and no reply in one piece.
bool HasBegunStream(const ReplyParser& reply);

// What produced the reply, and how the door went about it.
void AppendSource(const Exchange& x, std::string* head);

// What the engine gets in front of `body_size` bytes.
std::string EngineHead(const Exchange& x, size_t body_size);

// `length` of the body, where it is known. True: the body goes out in chunks.
bool AppendReplyHead(const Exchange& x, const UpstreamCall& call, bool keep,
                     std::optional<uint64_t> length, std::string* head);

// What frames `size` bytes of a chunked body: appends what stands before them, and gives what stands
// behind them and, where they are the last ones, behind the body.
std::string_view AppendChunk(size_t size, bool last, std::string* before);

}  // namespace lorry::door
