#include "lib/blob/local_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/file_lock.h"
#include "lib/base/mutex.h"
#include "lib/base/strings.h"
#include "lib/blob/file.h"
#include "lib/blob/spare_files.h"

namespace lorry::blob {
namespace {

class LocalMapping final : public Mapping {
 public:
  explicit LocalMapping(MappedFile file) : file_(std::move(file)) {}
  std::span<const std::byte> bytes() const override { return file_.bytes(); }
  absl::Status Load(uint64_t offset, uint64_t length) const override {
    return file_.Load(offset, length);
  }

 private:
  const MappedFile file_;
};

// The store's directories. What is in creating/ has no space yet and is swept at the next start.
struct Layout {
  explicit Layout(const std::string& root)
      : creating(root + "/creating/"), staging(root + "/staging/"), sealed(root + "/sealed/") {}
  const std::string creating, staging, sealed;
};

// Which stagings are held; shared with them, so that a staging may outlive its store.
class Held {
 public:
  bool Take(std::string_view key) {
    MutexLock lock(mutex_);
    return keys_.emplace(key).second;
  }
  void Release(const std::string& key) {
    MutexLock lock(mutex_);
    keys_.erase(key);
  }

 private:
  Mutex mutex_;
  std::set<std::string, std::less<>> keys_ LORRY_GUARDED_BY(mutex_);
};

// One key while it is held.
class Hold {
 public:
  Hold(std::shared_ptr<Held> held, std::string_view key)
      : held_(std::move(held)), key_(key), taken_(held_->Take(key)) {}
  Hold(Hold&& other) noexcept
      : held_(other.held_), key_(other.key_), taken_(std::exchange(other.taken_, false)) {}
  ~Hold() {
    if (taken_) held_->Release(key_);
  }
  bool taken() const { return taken_; }
  const std::string& key() const { return key_; }

 private:
  const std::shared_ptr<Held> held_;
  const std::string key_;
  bool taken_;
};

class LocalStaging final : public Staging {
 public:
  LocalStaging(const Layout& layout, std::shared_ptr<SpareFiles> spares, Hold hold, Fd fd,
               MappedFile file)
      : layout_(layout),
        spares_(std::move(spares)),
        hold_(std::move(hold)),
        fd_(std::move(fd)),
        file_(std::move(file)) {}

  std::span<std::byte> bytes() override { return file_.bytes(); }
  absl::Status Sync() override { return SyncFile(fd_); }
  absl::Status Seal() override;

 private:
  const Layout layout_;
  const std::shared_ptr<SpareFiles> spares_;
  const Hold hold_;
  const Fd fd_;
  const MappedFile file_;
  bool sealed_ = false;
};

absl::Status LocalStaging::Seal() {
  if (sealed_) {
    return Error(absl::StatusCode::kFailedPrecondition, "",
                 absl::StrCat("the blob ", hold_.key(), " is sealed already"));
  }
  LORRY_RETURN_IF_ERROR(SyncFile(fd_));
  const std::string from = layout_.staging + hold_.key(), to = layout_.sealed + hold_.key();
  LORRY_RETURN_IF_ERROR(RenameNew(from, to));
  absl::Status synced = SyncDirectory(layout_.sealed);
  if (synced.ok()) synced = SyncDirectory(layout_.staging);
  if (!synced.ok()) {
    // Not durable, so not visible either.
    (void)RenameNew(to, from);
    return synced;
  }
  sealed_ = true;
  // Last, because a staging that a crash leaves behind must stay writable for its owner, who need
  // not be root. It only guards against accidents: a blob that kept its mode is no worse.
  (void)fchmod(fd_.get(), 0400);
  spares_->Prepare(file_.bytes().size());
  return absl::OkStatus();
}

class LocalStore final : public Store {
 public:
  LocalStore(LocalOptions options, FileLock lock)
      : options_(std::move(options)),
        layout_(options_.root),
        lock_(std::move(lock)),
        spares_(std::make_shared<SpareFiles>(SpareFiles::Options{
            .directory = layout_.creating,
            // It must not be what keeps the next blob out.
            .has_room = [this](uint64_t bytes) { return CheckFree(2 * bytes).ok(); },
            .delay = options_.spare_after})) {}
  ~LocalStore() override { spares_->Stop(); }

  absl::StatusOr<std::unique_ptr<Staging>> Create(std::string_view key, uint64_t bytes) override;
  absl::StatusOr<std::unique_ptr<Staging>> Resume(std::string_view key) override;
  absl::StatusOr<std::shared_ptr<const Mapping>> Open(std::string_view key) override;
  absl::Status Delete(std::string_view key) override;
  absl::StatusOr<std::vector<BlobInfo>> List() override;

 private:
  absl::Status CheckFree(uint64_t bytes) const;

  const LocalOptions options_;
  const Layout layout_;
  const FileLock lock_;
  const std::shared_ptr<Held> held_ = std::make_shared<Held>();
  const std::shared_ptr<SpareFiles> spares_;  // shared with stagings, which may outlive this
};

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

absl::StatusOr<std::unique_ptr<Staging>> LocalStore::Create(std::string_view key, uint64_t bytes) {
  LORRY_RETURN_IF_ERROR(CheckKey(key));
  if (bytes == 0)
    return Error(absl::StatusCode::kInvalidArgument, "", "a blob has at least a byte");
  absl::Status free = CheckFree(bytes);
  if (!free.ok() && spares_->Drop()) free = CheckFree(bytes);
  LORRY_RETURN_IF_ERROR(free);
  Hold hold(held_, key);
  const std::string name(key);
  if (!hold.taken() || Exists(layout_.sealed + name) || Exists(layout_.staging + name)) {
    return BlobExists(key);
  }
  // A staging appears whole: its space is allocated before it has its name.
  if (!spares_->Take(bytes, layout_.staging + name)) {
    const std::string path = layout_.creating + name;
    LORRY_RETURN_IF_ERROR(CreateAllocated(path, bytes).status());
    const absl::Status named = RenameNew(path, layout_.staging + name);
    if (!named.ok()) unlink(path.c_str());
    LORRY_RETURN_IF_ERROR(named);
  }
  LORRY_RETURN_IF_ERROR(SyncDirectory(layout_.staging));
  LORRY_ASSIGN_OR_RETURN(Fd fd, Fd::Open(layout_.staging + name, O_RDWR));
  LORRY_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Map(fd, /*writable=*/true));
  return std::make_unique<LocalStaging>(layout_, spares_, std::move(hold), std::move(fd),
                                        std::move(file));
}

absl::Status LocalStore::CheckFree(uint64_t bytes) const {
  struct statvfs disk {};
  if (statvfs(options_.root.c_str(), &disk) != 0)
    return ErrnoStatus(errno, "asking for free space");
  const uint64_t free_bytes = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (free_bytes >= bytes && free_bytes - bytes >= options_.free_bytes_min) return absl::OkStatus();
  return Error(absl::StatusCode::kResourceExhausted, "DISK_FULL",
               absl::StrCat("a blob of ", bytes, " bytes does not fit: ", free_bytes,
                            " are free and ", options_.free_bytes_min, " must stay so"));
}

absl::StatusOr<std::unique_ptr<Staging>> LocalStore::Resume(std::string_view key) {
  LORRY_RETURN_IF_ERROR(CheckKey(key));
  Hold hold(held_, key);
  if (!hold.taken()) return BlobBusy(key);
  const std::string path = layout_.staging + std::string(key);
  if (!Exists(path)) return BlobMissing(key);
  LORRY_ASSIGN_OR_RETURN(Fd fd, Fd::Open(path, O_RDWR));
  LORRY_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Map(fd, /*writable=*/true));
  return std::make_unique<LocalStaging>(layout_, spares_, std::move(hold), std::move(fd),
                                        std::move(file));
}

absl::StatusOr<std::shared_ptr<const Mapping>> LocalStore::Open(std::string_view key) {
  LORRY_RETURN_IF_ERROR(CheckKey(key));
  absl::StatusOr<Fd> fd = Fd::Open(layout_.sealed + std::string(key), O_RDONLY);
  if (absl::IsNotFound(fd.status())) return BlobMissing(key);
  LORRY_RETURN_IF_ERROR(fd.status());
  LORRY_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Map(*fd, /*writable=*/false));
  return std::make_shared<LocalMapping>(std::move(file));
}

absl::Status LocalStore::Delete(std::string_view key) {
  LORRY_RETURN_IF_ERROR(CheckKey(key));
  const std::string name(key);
  if (unlink((layout_.sealed + name).c_str()) == 0) return SyncDirectory(layout_.sealed);
  if (errno != ENOENT) return ErrnoStatus(errno, absl::StrCat("deleting ", name));
  const Hold hold(held_, key);
  if (!hold.taken()) return BlobBusy(key);
  if (unlink((layout_.staging + name).c_str()) == 0) return SyncDirectory(layout_.staging);
  return errno == ENOENT ? BlobMissing(key) : ErrnoStatus(errno, absl::StrCat("deleting ", name));
}

absl::Status ListDirectory(const std::string& path, BlobState state, std::vector<BlobInfo>& found) {
  DIR* const directory = opendir(path.c_str());
  if (directory == nullptr) return ErrnoStatus(errno, absl::StrCat("listing ", path));
  while (const dirent* entry = readdir(directory)) {
    struct stat info {};
    if (!CheckKey(entry->d_name).ok() ||
        fstatat(dirfd(directory), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
      continue;
    }
    found.push_back(
        {.key = entry->d_name, .bytes = static_cast<uint64_t>(info.st_size), .state = state});
  }
  closedir(directory);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<BlobInfo>> LocalStore::List() {
  std::vector<BlobInfo> found;
  LORRY_RETURN_IF_ERROR(ListDirectory(layout_.staging, BlobState::kStaging, found));
  LORRY_RETURN_IF_ERROR(ListDirectory(layout_.sealed, BlobState::kSealed, found));
  std::sort(found.begin(), found.end());
  // A blob that was sealed between the two looks was seen twice: it is sealed, which sorts last.
  std::reverse(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end(),
                          [](const auto& a, const auto& b) { return a.key == b.key; }),
              found.end());
  std::reverse(found.begin(), found.end());
  return found;
}

absl::Status Sweep(const std::string& path) {
  std::vector<BlobInfo> leftovers;
  LORRY_RETURN_IF_ERROR(ListDirectory(path, BlobState::kStaging, leftovers));
  for (const BlobInfo& leftover : leftovers) unlink((path + leftover.key).c_str());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenLocalStore(const LocalOptions& options) {
  LORRY_RETURN_IF_ERROR(MakeDirectory(options.root));
  const std::string lock_path = options.root + "/lock";
  FileLock lock(lock_path);
  if (lock.error() != 0) return ErrnoStatus(lock.error(), absl::StrCat("locking ", lock_path));
  if (!lock.held()) {
    return Error(absl::StatusCode::kFailedPrecondition, "ALREADY_LOCKED",
                 absl::StrCat(options.root, " is locked: another process has this store open"));
  }
  const Layout layout(options.root);
  for (const std::string& directory : {layout.creating, layout.staging, layout.sealed}) {
    LORRY_RETURN_IF_ERROR(MakeDirectory(directory));
  }
  LORRY_RETURN_IF_ERROR(Sweep(layout.creating));
  LORRY_RETURN_IF_ERROR(SweepSpareFiles(layout.creating));
  LORRY_RETURN_IF_ERROR(SyncDirectory(options.root));
  return std::make_unique<LocalStore>(options, std::move(lock));
}

}  // namespace lorry::blob
