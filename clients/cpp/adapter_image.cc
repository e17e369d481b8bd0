#include "clients/cpp/adapter_image.h"

#include <algorithm>
#include <utility>

#include "lib/base/error.h"
#include "lib/peft/config.h"
#include "lib/peft/digest.h"
#include "lib/transfer/checksum.h"

namespace lorry::client {

absl::StatusOr<AdapterImage> AdapterImage::LayOut(std::vector<peft::TensorSpec> tensors,
                                                  const std::optional<peft::Metadata>& metadata,
                                                  std::string config_json) {
  LORRY_ASSIGN_OR_RETURN(peft::ImageLayout layout, peft::LayOutImage(std::move(tensors), metadata));
  return Of(std::move(layout), std::move(config_json));
}

absl::StatusOr<AdapterImage> AdapterImage::Of(peft::ImageLayout layout, std::string config_json) {
  AdapterImage image;
  image.layout_ = std::move(layout);
  LORRY_ASSIGN_OR_RETURN(image.arena_, transfer::Arena::Create(image.size()));
  const auto header = std::as_bytes(std::span(image.layout_.header_bytes));
  std::ranges::copy(header, image.arena_->bytes().begin());
  image.config_json_ = std::move(config_json);
  return image;
}

absl::StatusOr<std::string> AdapterImage::ComputeDigest() const {
  LORRY_ASSIGN_OR_RETURN(const peft::Config config, peft::ParseConfig(config_json_));
  LORRY_ASSIGN_OR_RETURN(const std::string canonical, peft::CanonicalConfig(config));
  LORRY_ASSIGN_OR_RETURN(const Digest digest,
                         peft::DigestOf(size(), transfer::LeavesOf(bytes()), canonical));
  return digest.value;
}

}  // namespace lorry::client
