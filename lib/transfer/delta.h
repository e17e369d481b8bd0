// What has changed between two images of one length, in few bytes.
//
// The two are combined by XOR, which leaves zeros where they agree; the bytes of each word of four are
// put beside those of the other words, so that the signs, exponents and high digits of numbers, which
// a training step seldom changes, stand together; and zstd takes the zeros out. Of adapters that are
// trained in bfloat16 at usual rates a third is left, in float32 two thirds (docs/adr/0032). Pure, any
// thread; some 300 MB/s.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace lorry::transfer {

// From `base` to `bytes`, which are as long and at most a leaf. Nothing where that would save too little
// to be worth the receiver's work.
std::optional<std::string> EncodeDelta(std::span<const std::byte> base,
                                       std::span<const std::byte> bytes);

// The bytes that EncodeDelta made `delta` of. `delta` is hostile: at most `out` is written, and what it
// comes to is for the caller to verify. DATA_LOSS RANGE_CORRUPT.
absl::Status DecodeDelta(std::string_view delta, std::span<const std::byte> base,
                         std::span<std::byte> out);

}  // namespace lorry::transfer
