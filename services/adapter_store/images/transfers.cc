#include "services/adapter_store/images/transfers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "services/adapter_store/images/check.h"

namespace lorry::store {
namespace {

// Opens that wait for a thread: as many as the transports allow connections, both together. An image
// that is being read from the disk has the place of one of those that wait for it.
constexpr size_t kOpensWaitingMax = 512;

// A fetch begins with its ticket, and takes a minute at most.
constexpr int64_t kRelayTicketLifeMs = 60'000;

}  // namespace

Transfers::Transfers(Catalog& catalog, blob::Store& blobs, Uploads& uploads, RotatingKeys& keys,
                     const Clock& clock, Options options)
    : catalog_(catalog),
      blobs_(blobs),
      uploads_(uploads),
      keys_(keys),
      options_(std::move(options)),
      fan_out_(clock, options_.fan_out),
      threads_({.name = "opens", .threads = 2, .waiting_max = kOpensWaitingMax}) {}

absl::StatusOr<std::string> Transfers::PutTicket(const Upload& upload, std::string_view peer) {
  return keys_.Mint({.ticket_id = absl::StrCat("put:", upload.id.value),
                     .direction = transfer::Direction::kPut,
                     .object = upload.id.value,
                     .image_bytes = upload.image_bytes,
                     .ranges = {},
                     .peer = std::string(peer),
                     .expires_unix_ms = options_.now_unix_ms() + options_.ticket_life_ms});
}

absl::StatusOr<std::string> Transfers::GetTicket(const BlobKey& blob, uint64_t image_bytes,
                                                 std::string_view peer) {
  return keys_.Mint({.ticket_id = absl::StrCat("get:", blob.value),
                     .direction = transfer::Direction::kGet,
                     .object = blob.value,
                     .image_bytes = image_bytes,
                     .ranges = {},
                     .peer = std::string(peer),
                     .expires_unix_ms = options_.now_unix_ms() + options_.ticket_life_ms});
}

absl::StatusOr<Manifest> Transfers::OpenFetch(const VersionKey& key, std::string_view peer) {
  Manifest manifest;
  LORRY_ASSIGN_OR_RETURN(manifest.version, catalog_.GetVersion(key));
  const BlobKey& blob = manifest.version.blob;
  LORRY_ASSIGN_OR_RETURN(manifest.leaves, catalog_.GetLeaves(blob));
  LORRY_ASSIGN_OR_RETURN(manifest.ticket, GetTicket(blob, manifest.version.image_bytes, peer));
  return manifest;
}

absl::StatusOr<std::vector<transfer::Source>> Transfers::JoinFanOut(const VersionKey& key,
                                                                    const OfferedRelay& relay) {
  LORRY_ASSIGN_OR_RETURN(const Version version, catalog_.GetVersion(key));
  std::vector<transfer::Source> sources;
  for (const OfferedRelay& source : fan_out_.Join(version.digest, relay)) {
    transfer::TicketKeys keys;
    keys.Add(transfer::kRelayKeyId, source.key);
    // A relay knows no callers' names: who shows the ticket may read.
    LORRY_ASSIGN_OR_RETURN(
        std::string ticket,
        keys.Mint({.ticket_id = absl::StrCat("relay:", version.digest.value),
                   .direction = transfer::Direction::kGet,
                   .object = version.digest.value,
                   .image_bytes = version.image_bytes,
                   .ranges = {},
                   .peer = "",
                   .expires_unix_ms = options_.now_unix_ms() + kRelayTicketLifeMs}));
    sources.push_back({source.address, std::move(ticket)});
  }
  return sources;
}

void Transfers::OpenGet(const transfer::TicketClaims& claims, GetOpened done) {
  const BlobKey blob(claims.object);
  const uint64_t bytes = claims.image_bytes;
  const absl::Status queued =
      threads_.Submit([this, blob, bytes, done] { Open(blob, bytes, done); });
  if (!queued.ok()) done(queued);
}

void Transfers::OpenPut(const transfer::TicketClaims& claims, PutOpened done) {
  const UploadId upload(claims.object);
  const absl::Status queued =
      threads_.Submit([this, upload, done] { done(uploads_.TargetOf(upload)); });
  if (!queued.ok()) done(queued);
}

void Transfers::Open(const BlobKey& blob, uint64_t image_bytes, GetOpened done) {
  if (std::optional<transfer::GetSource> coming = uploads_.Coming(blob)) {
    return done(*std::move(coming));
  }
  auto mapping = Map(blob, image_bytes);
  if (!mapping.ok()) return done(mapping.status());
  std::shared_ptr<const blob::Mapping> loaded;
  {
    MutexLock lock(mutex_);
    std::erase_if(loaded_, [](const auto& entry) { return entry.second.expired(); });
    if (const auto it = loaded_.find(blob); it != loaded_.end()) loaded = it->second.lock();
    if (loaded == nullptr) {
      std::vector<GetOpened>& waiting = loading_[blob];
      waiting.push_back(std::move(done));
      if (waiting.size() > 1) return;  // whoever came first has it read
    }
  }
  if (loaded != nullptr) return done(SourceOf(blob, std::move(loaded)));
  Load(blob, *mapping, 0);
}

absl::StatusOr<std::shared_ptr<const blob::Mapping>> Transfers::Map(const BlobKey& blob,
                                                                    uint64_t image_bytes) {
  LORRY_ASSIGN_OR_RETURN(std::shared_ptr<const blob::Mapping> mapping, blobs_.Open(blob.value));
  // Transports rely on it: an image has the length of its leaves.
  if (mapping->bytes().size() == image_bytes) return mapping;
  return Error(absl::StatusCode::kDataLoss, "DISK_FAILED",
               absl::StrCat("the file of image ", blob.value, " has ", mapping->bytes().size(),
                            " bytes and not ", image_bytes,
                            ": put it back from a backup, or publish its version again under the "
                            "next number"));
}

// Reads the next part of an image, and queues up for the rest behind all that waits by then.
void Transfers::Load(const BlobKey& blob, const std::shared_ptr<const blob::Mapping>& mapping,
                     uint64_t offset) {
  const uint64_t bytes = mapping->bytes().size();
  const uint64_t end = std::min(bytes, offset + options_.load_bytes);
  absl::Status loaded = mapping->Load(offset, end - offset);
  if (loaded.ok() && end < bytes) {
    loaded = threads_.Submit([this, blob, mapping, end] { Load(blob, mapping, end); });
    if (loaded.ok()) return;
  }
  std::vector<GetOpened> waiting;
  {
    MutexLock lock(mutex_);
    waiting = std::move(loading_.extract(blob).mapped());
    if (loaded.ok()) loaded_[blob] = mapping;
  }
  const absl::StatusOr<transfer::GetSource> source =
      loaded.ok() ? SourceOf(blob, mapping) : absl::StatusOr<transfer::GetSource>(loaded);
  for (const GetOpened& done : waiting) done(source);
}

absl::StatusOr<transfer::GetSource> Transfers::SourceOf(
    const BlobKey& blob, std::shared_ptr<const blob::Mapping> mapping) {
  LORRY_ASSIGN_OR_RETURN(const std::string leaves, catalog_.GetLeaves(blob));
  const std::span<const std::byte> bytes = mapping->bytes();
  return transfer::GetSource{
      .owner = std::move(mapping), .bytes = bytes, .leaves = ToChecksums(leaves)};
}

}  // namespace lorry::store
