// The bytes of one version on their way to the store: an image laid out in private memory on huge
// pages, which UCX reads at full speed, and the config that belongs to it. Owned by whoever
// publishes; not synchronised.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/peft/image.h"
#include "lib/transfer/arena.h"

namespace lorry::client {

class AdapterImage {
 public:
  // Lays the tensors out as the `safetensors` package does; their bytes are undefined until they
  // are written at TensorBytes. IMAGE_MALFORMED, OUT_OF_MEMORY.
  static absl::StatusOr<AdapterImage> LayOut(std::vector<peft::TensorSpec> tensors,
                                             const std::optional<peft::Metadata>& metadata,
                                             std::string config_json);
  // The same of what is laid out already; the header's bytes are written.
  static absl::StatusOr<AdapterImage> Of(peft::ImageLayout layout, std::string config_json);

  // In the image's own order, which is not that of the specs.
  const peft::ImageHeader& header() const { return layout_.header; }
  std::span<std::byte> TensorBytes(const peft::Tensor& tensor) {
    return arena_->bytes().subspan(tensor.begin, tensor.end - tensor.begin);
  }

  std::span<std::byte> writable() { return arena_->bytes().first(size()); }

  const std::string& header_bytes() const { return layout_.header_bytes; }
  const std::string& config_json() const { return config_json_; }
  uint64_t size() const { return layout_.header.image_bytes; }
  std::span<const std::byte> bytes() const { return arena_->bytes().first(size()); }

  // "sha256-xxh3:...": what the store must compute, too. CONFIG_MALFORMED and its kin.
  absl::StatusOr<std::string> ComputeDigest() const;

 private:
  AdapterImage() = default;
  peft::ImageLayout layout_;
  std::string config_json_;
  std::unique_ptr<transfer::Arena> arena_;
};

}  // namespace lorry::client
