#include "services/engine_proxy/driver/relay.h"

#include <openssl/rand.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/error.h"

namespace lorry::proxy {
namespace {

// As much may be on its way to a reader that keeps up.
constexpr uint64_t kOnItsWayBytes = uint64_t{32} << 20;
// How long a reader may lag behind what is here: for ten seconds, and as it would at 20 MB/s. Then
// it has time left to read the rest elsewhere within the minute that a stage takes by default.
constexpr Tick kLagMs = 10'000;
constexpr uint64_t kLagBytesPerMs = 20'000;

// What one reader is passed on. One that has not got what was here long ago is held up by this host
// or the way to it, and sent elsewhere. One that waits for the same bytes as this host does stays: their
// source is slow, and would be slower with more readers.
class OneReaders final : public transfer::ComingBytes {
 public:
  OneReaders(std::shared_ptr<const transfer::ComingBytes> arrivals, uint64_t image_bytes,
             const Clock& clock)
      : arrivals_(std::move(arrivals)), image_bytes_(image_bytes), clock_(clock) {}

  absl::StatusOr<bool> Has(const transfer::Range& range) const override LORRY_EXCLUDES(mutex_) {
    const absl::StatusOr<bool> here = arrivals_->Has(range);
    if (!here.ok()) return here;
    const uint64_t end = std::min(range.offset + range.length + kOnItsWayBytes, image_bytes_);
    const auto far = arrivals_->Has({end - 1, 1});
    const Tick now = clock_.Now();
    MutexLock lock(mutex_);
    if (lags_) lagged_ms_ += now - asked_at_;
    asked_at_ = now;
    lags_ = *here && far.ok() && *far;
    const Tick allowed_ms = kLagMs + static_cast<Tick>(image_bytes_ / kLagBytesPerMs);
    if (!lags_ || lagged_ms_ <= allowed_ms) return here;
    return absl::UnavailableError(
        absl::StrCat("this relay sends more slowly than it receives, since ", lagged_ms_,
                     " ms; read the rest elsewhere"));
  }

 private:
  const std::shared_ptr<const transfer::ComingBytes> arrivals_;
  const uint64_t image_bytes_;
  const Clock& clock_;
  mutable Mutex mutex_;
  mutable bool lags_ LORRY_GUARDED_BY(mutex_) = false;  // when it was asked last
  mutable Tick asked_at_ LORRY_GUARDED_BY(mutex_) = 0;
  mutable Tick lagged_ms_ LORRY_GUARDED_BY(mutex_) = 0;  // over all
};

}  // namespace

Relay::Relay(Join join, const Clock& clock) : join_(std::move(join)), clock_(clock) {
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
      found->arrivals =
          std::make_shared<OneReaders>(found->arrivals, image.source.bytes.size(), clock_);
      break;
    }
  }
  done(std::move(found));
}

void Relay::OpenPut(const transfer::TicketClaims&, PutOpened done) {
  done(Error(absl::StatusCode::kUnimplemented, "", "a relay takes no uploads"));
}

}  // namespace lorry::proxy
