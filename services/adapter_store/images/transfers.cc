#include "services/adapter_store/images/transfers.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "services/adapter_store/images/check.h"

namespace lorry::store {
namespace {

// Opens that wait for a thread: as many as the transports allow connections, both together.
constexpr size_t kOpensWaitingMax = 512;

absl::Status FileError(std::string_view what, const std::string& path) {
  return Error(absl::StatusCode::kFailedPrecondition, "DATA_DIR_UNUSABLE",
               absl::StrCat(ToAbsl(what), " ", path, ": ", std::strerror(errno)));
}

absl::Status WriteSecret(const std::string& path, const transfer::TicketKeys::Secret& secret) {
  // Under another name first: a crash leaves no half key.
  const std::string fresh = path + ".new";
  const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return FileError("cannot create", fresh);
  const bool written =
      ::write(fd, secret.data(), secret.size()) == static_cast<ssize_t>(secret.size()) &&
      ::fsync(fd) == 0;
  ::close(fd);
  if (!written || ::rename(fresh.c_str(), path.c_str()) != 0) {
    return FileError("cannot write", path);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<transfer::TicketKeys::Secret> LoadTicketKey(const std::string& path) {
  transfer::TicketKeys::Secret secret;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno != ENOENT) return FileError("cannot read", path);
  if (fd >= 0) {
    const ssize_t got = ::read(fd, secret.data(), secret.size());
    ::close(fd);
    if (got == static_cast<ssize_t>(secret.size())) return secret;
    // Tickets that an unreadable key has signed are refused and asked for again: no harm is done.
  }
  if (RAND_bytes(secret.data(), static_cast<int>(secret.size())) != 1) {
    return absl::InternalError("the system has no random bytes for a ticket key");
  }
  LORRY_RETURN_IF_ERROR(WriteSecret(path, secret));
  return secret;
}

Transfers::Transfers(Catalog& catalog, blob::Store& blobs, Uploads& uploads,
                     const transfer::TicketKeys& keys, Options options)
    : catalog_(catalog),
      blobs_(blobs),
      uploads_(uploads),
      keys_(keys),
      options_(std::move(options)),
      threads_({.name = "opens", .threads = 2, .waiting_max = kOpensWaitingMax}) {}

absl::StatusOr<std::string> Transfers::PutTicket(const Upload& upload, std::string_view peer) {
  return keys_.Mint({.ticket_id = absl::StrCat("put:", upload.id.value),
                     .direction = transfer::Direction::kPut,
                     .object = upload.id.value,
                     .image_bytes = upload.image_bytes,
                     .ranges = {},
                     .owner = "",
                     .peer = std::string(peer),
                     .expires_unix_ms = options_.now_unix_ms() + options_.ticket_life_ms});
}

absl::StatusOr<Manifest> Transfers::OpenFetch(const VersionKey& key, std::string_view peer) {
  Manifest manifest;
  LORRY_ASSIGN_OR_RETURN(manifest.version, catalog_.GetVersion(key));
  LORRY_ASSIGN_OR_RETURN(manifest.leaves, catalog_.GetLeaves(manifest.version.blob));
  LORRY_ASSIGN_OR_RETURN(
      manifest.ticket,
      keys_.Mint({.ticket_id = absl::StrCat("get:", manifest.version.blob.value),
                  .direction = transfer::Direction::kGet,
                  .object = manifest.version.blob.value,
                  .image_bytes = manifest.version.image_bytes,
                  .ranges = {},
                  .owner = "",
                  .peer = std::string(peer),
                  .expires_unix_ms = options_.now_unix_ms() + options_.ticket_life_ms}));
  return manifest;
}

void Transfers::OpenGet(const transfer::TicketClaims& claims, GetOpened done) {
  const BlobKey blob(claims.object);
  const absl::Status queued = threads_.Submit([this, blob, done] { done(SourceOf(blob)); });
  if (!queued.ok()) done(queued);
}

void Transfers::OpenPut(const transfer::TicketClaims& claims, PutOpened done) {
  const UploadId upload(claims.object);
  const absl::Status queued =
      threads_.Submit([this, upload, done] { done(uploads_.TargetOf(upload)); });
  if (!queued.ok()) done(queued);
}

absl::StatusOr<transfer::GetSource> Transfers::SourceOf(const BlobKey& blob) {
  std::shared_ptr<const blob::Mapping> mapping;
  {
    MutexLock lock(mutex_);
    std::erase_if(mapped_, [](const auto& entry) { return entry.second.expired(); });
    if (const auto it = mapped_.find(blob); it != mapped_.end()) mapping = it->second.lock();
  }
  if (mapping == nullptr) {
    LORRY_ASSIGN_OR_RETURN(mapping, blobs_.Open(blob.value));
    MutexLock lock(mutex_);
    mapped_[blob] = mapping;
  }
  LORRY_ASSIGN_OR_RETURN(const std::string leaves, catalog_.GetLeaves(blob));
  return transfer::GetSource{
      .owner = mapping, .bytes = mapping->bytes(), .leaves = ToChecksums(leaves)};
}

}  // namespace lorry::store
