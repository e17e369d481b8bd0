#include "services/adapter_store/images/ticket_keys.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"

namespace lorry::store {
namespace {

constexpr size_t kKeysKept = 2;
constexpr int64_t kTryAgainMs = 60'000;

// A key in the file, in this machine's byte order: the file does not leave its data directory.
struct Record {
  uint64_t id;
  int64_t made_unix_ms;
  transfer::TicketKeys::Secret secret;
};
static_assert(sizeof(Record) == 48);

absl::Status FileError(std::string_view what, const std::string& path) {
  return Error(absl::StatusCode::kFailedPrecondition, "DATA_DIR_UNUSABLE",
               absl::StrCat(ToAbsl(what), " ", path, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RotatingKeys>> RotatingKeys::Open(Options options) {
  std::unique_ptr<RotatingKeys> keys(new RotatingKeys(std::move(options)));
  LORRY_RETURN_IF_ERROR(keys->Load());
  LORRY_RETURN_IF_ERROR(keys->RotateIfOld());
  return keys;
}

absl::Status RotatingKeys::Load() {
  if (options_.path.empty()) return absl::OkStatus();
  const int fd = ::open(options_.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno != ENOENT) return FileError("cannot read", options_.path);
  if (fd < 0) return absl::OkStatus();
  MutexLock lock(mutex_);
  // Anything but whole records is of no use: tickets that it signed are asked for again, which does
  // no harm.
  Record record;
  while (kept_.size() < kKeysKept && ::read(fd, &record, sizeof(record)) == sizeof(record)) {
    if (record.id == 0 || record.id > UINT32_MAX) break;
    const Key key{static_cast<uint32_t>(record.id), record.made_unix_ms, record.secret};
    keys_.Add(key.id, key.secret);
    kept_.push_back(key);
  }
  ::close(fd);
  return absl::OkStatus();
}

absl::Status RotatingKeys::RotateIfOld() {
  MutexLock lock(mutex_);
  const int64_t now = options_.now_unix_ms();
  // A clock that was set back makes a key from the future, which would never grow old.
  if (!kept_.empty() && now >= kept_.back().made_unix_ms &&
      now - kept_.back().made_unix_ms < options_.life_ms) {
    return absl::OkStatus();
  }
  if (!kept_.empty() && now >= failed_unix_ms_ && now - failed_unix_ms_ < kTryAgainMs) {
    return absl::OkStatus();
  }
  std::vector<Key> kept = kept_;
  Key fresh{.id = kept.empty() ? 1 : kept.back().id + 1, .made_unix_ms = now, .secret = {}};
  if (RAND_bytes(fresh.secret.data(), static_cast<int>(fresh.secret.size())) != 1) {
    return absl::InternalError("the system has no random bytes for a ticket key");
  }
  kept.push_back(fresh);
  if (kept.size() > kKeysKept) kept.erase(kept.begin());
  // On disk first: a ticket must not outlive its key by a crash.
  if (absl::Status saved = Save(kept); !saved.ok()) {
    if (kept_.empty()) return saved;
    spdlog::warn("tickets are signed with an old key, as no new one can be written: {}",
                 std::string(saved.message()));
    failed_unix_ms_ = now;
    return absl::OkStatus();
  }
  keys_.Add(fresh.id, fresh.secret);
  if (kept_.size() == kKeysKept) keys_.Remove(kept_.front().id);
  kept_ = std::move(kept);
  return absl::OkStatus();
}

absl::Status RotatingKeys::Save(const std::vector<Key>& kept) const {
  if (options_.path.empty()) return absl::OkStatus();
  std::vector<Record> records;
  for (const Key& key : kept) records.push_back({key.id, key.made_unix_ms, key.secret});
  const auto bytes = static_cast<ssize_t>(records.size() * sizeof(Record));
  // Written under another name and then renamed, so that a crash leaves no half of a key.
  const std::string fresh = options_.path + ".new";
  const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return FileError("cannot create", fresh);
  const bool written =
      ::write(fd, records.data(), static_cast<size_t>(bytes)) == bytes && ::fsync(fd) == 0;
  ::close(fd);
  if (!written || ::rename(fresh.c_str(), options_.path.c_str()) != 0) {
    return FileError("cannot write", options_.path);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RotatingKeys::Mint(const transfer::TicketClaims& claims) {
  LORRY_RETURN_IF_ERROR(RotateIfOld());
  return keys_.Mint(claims);
}

}  // namespace lorry::store
