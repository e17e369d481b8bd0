// The body of SGLang's /load_lora_adapter_from_tensors: an adapter as a pickle of tensors in base64,
// with its config beside it. What comes of it is what a directory with these tensors would hold, so
// that it is judged alike and has the same digest. Pure, any thread; takes as long as a copy of it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "services/engine_proxy/bindings/foreign_directory.h"

namespace lorry::proxy {

// TENSORS_INVALID, TENSORS_ELSEWHERE: the trainer's memory is meant, DIRECTORY_TOO_LARGE: more than
// `bytes_max`, EMBEDDING_UNSUPPORTED: it adds tokens; and those of lib/peft for what is laid out.
absl::StatusOr<ForeignAdapter> ReadTensorCall(const std::string& body, uint64_t bytes_max);

}  // namespace lorry::proxy
