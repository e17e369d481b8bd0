// Is this an image that engines may be given? lib/peft judges; here its verdicts are put in order.
// Pure functions, any thread; CheckImage reads the whole image once.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/peft/digest.h"
#include "lib/transfer/checksum.h"
#include "services/adapter_store/catalog/catalog.h"

namespace lorry::store {

// What can be said before a single tensor byte has come: the header is whole and sane, the config
// is a plain LoRA's, and the two fit. Returns the canonical config.
absl::StatusOr<std::string> CheckAnnouncement(std::span<const std::byte> header,
                                              uint64_t image_bytes, std::string_view config_json);

struct CheckOutcome {
  CheckedImage image;
  std::string leaves;  // 16 bytes each
};

// All of it, values included, and the digest. max_tensor_norm 0: norms are not checked.
absl::StatusOr<CheckOutcome> CheckImage(std::span<const std::byte> image,
                                        std::string_view config_json, double max_tensor_norm);

// Leaves as they are kept and sent, to what transports take.
std::vector<transfer::Checksum> ToChecksums(std::string_view leaves);

}  // namespace lorry::store
