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

// What produced the reply, and how the door went about it.
void AppendSource(const Exchange& x, std::string* head);

// What the engine gets in front of `body_size` bytes.
std::string EngineHead(const Exchange& x, size_t body_size);

// `length` of the body, where it is known. True: the body goes out in chunks.
bool AppendReplyHead(const Exchange& x, const UpstreamCall& call, bool keep,
                     std::optional<uint64_t> length, std::string* head);

// "3e8\r\n": what stands before `size` bytes of a chunked body.
void AppendChunkHead(size_t size, std::string* head);

}  // namespace lorry::door
