#include "services/engine_proxy/driver/relay.h"

#include <openssl/rand.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "lib/base/check.h"
#include "lib/base/error.h"

namespace lorry::proxy {

Relay::Relay(Join join) : join_(std::move(join)) {
  LORRY_CHECK(RAND_bytes(key_.data(), static_cast<int>(key_.size())) == 1);
  keys_.Add(transfer::kRelayKeyId, key_);
}

absl::StatusOr<std::shared_ptr<transfer::Arrivals>> Relay::Serve(
    const EngineName& name, const Digest& digest, const transfer::ImageFile& image,
    std::vector<transfer::Checksum> leaves) {
  // A mapping of its own, read-only: the file is not written anew while anybody reads it here
  // (ImageFile::IsSole), whatever becomes of the fetch.
  LORRY_ASSIGN_OR_RETURN(std::shared_ptr<const transfer::ImageFile> mapped,
                         transfer::ImageFile::Open(image.path()));
  auto arrivals = std::make_shared<transfer::Arrivals>();
  MutexLock lock(mutex_);
  images_[name] = {digest,
                   mapped,
                   {.owner = mapped,
                    .bytes = mapped->bytes().first(image.size()),
                    .leaves = std::move(leaves),
                    .arrivals = arrivals}};
  return arrivals;
}

std::vector<transfer::Source> Relay::Sources(const VersionKey& version) const {
  absl::StatusOr<std::vector<transfer::Source>> sources = join_(version, address_, key_);
  if (sources.ok()) return *std::move(sources);
  spdlog::debug("reading from the store alone: {}", std::string(sources.status().message()));
  return {};
}

void Relay::Drop(const EngineName& name) {
  MutexLock lock(mutex_);
  images_.erase(name);
}

void Relay::OpenGet(const transfer::TicketClaims& claims, GetOpened done) {
  absl::StatusOr<transfer::GetSource> found =
      Error(absl::StatusCode::kNotFound, "", "this relay does not have the image any more");
  {
    MutexLock lock(mutex_);
    for (const auto& [name, image] : images_) {
      if (image.digest.value != claims.object || !image.mapped->IsWhole()) continue;
      found = image.source;
      break;
    }
  }
  done(std::move(found));
}

void Relay::OpenPut(const transfer::TicketClaims&, PutOpened done) {
  done(Error(absl::StatusCode::kUnimplemented, "", "a relay takes no uploads"));
}

}  // namespace lorry::proxy
