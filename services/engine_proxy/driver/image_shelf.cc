#include "services/engine_proxy/driver/image_shelf.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/peft/config.h"
#include "lib/peft/image.h"
#include "lib/peft/render.h"
#include "lib/transfer/checksum.h"
#include "services/engine_proxy/driver/small_file.h"

namespace lorry::proxy {
namespace {

constexpr char kImageName[] = "/adapter_model.safetensors";
constexpr char kPool[] = "/pool";

namespace fs = std::filesystem;

absl::Status DiskError(std::string_view what, const std::string& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  return Error(full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable,
               full ? "DISK_FULL" : "DISK_FAILED",
               absl::StrCat(std::string(what), " ", path, ": ", std::strerror(error),
                            full ? "; make room or give --image-dir a larger file system" : ""));
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return DiskError("writing", path, errno);
  size_t done = 0;
  int error = 0;
  while (done < text.size() && error == 0) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) error = errno;
    if (n > 0) done += static_cast<size_t>(n);
  }
  if (error == 0 && ::fsync(fd) != 0) error = errno;
  ::close(fd);
  return error == 0 ? absl::OkStatus() : DiskError("writing", path, error);
}

absl::StatusOr<std::string> Rendered(const std::string& config_json,
                                     std::span<const std::string> modules, fleet::Render render) {
  LORRY_ASSIGN_OR_RETURN(const peft::Config config, peft::ParseConfig(config_json));
  return peft::RenderConfig(
      config, modules,
      {.fold_rslora = render == fleet::Render::kRsloraFolded, .base_model_name_or_path = ""});
}

}  // namespace

ImageShelf::ImageShelf(std::string root, const JournalId& journal, const ImageReaders& readers)
    : root_(std::move(root)),
      versions_(root_ + "/versions/" + journal.value),
      manifests_(root_ + "/manifests/" + journal.value),
      readers_(readers) {}

absl::Status ImageShelf::MakeDirectories() const {
  for (const std::string& folder : {root_, root_ + "/versions", versions_})
    LORRY_RETURN_IF_ERROR(MakePrivateDirectory(folder, readers_));
  LORRY_RETURN_IF_ERROR(MakePrivateDirectory(manifests_));
  return MakePrivateDirectory(root_ + kPool);
}

// systemd empties /dev/shm of a user who has logged out (RemoveIPC).
absl::Status ImageShelf::MakeAnew() const {
  spdlog::warn("{} was removed and is made anew", root_);
  LORRY_RETURN_IF_ERROR(MakeDirectories());
  return cache_ == nullptr ? absl::OkStatus() : cache_->MakeDirectories();
}

absl::StatusOr<std::unique_ptr<ImageShelf>> ImageShelf::Open(const std::string& root,
                                                             const JournalId& journal,
                                                             const ImageReaders& readers,
                                                             const std::string& host_cache) {
  std::unique_ptr<ImageShelf> self(new ImageShelf(root, journal, readers));
  LORRY_RETURN_IF_ERROR(self->MakeDirectories());
  if (const std::string parent = UnsafeParentOf(root); !parent.empty()) {
    spdlog::warn("users who may write to {} could replace the images under {}", parent, root);
  }
  LORRY_ASSIGN_OR_RETURN(self->pool_, transfer::ImagePool::Open({.directory = root + kPool}));
  if (!host_cache.empty()) {
    LORRY_ASSIGN_OR_RETURN(self->cache_, HostCache::Open(host_cache, readers, *self->pool_));
  }
  return self;
}

absl::StatusOr<ImageShelf::Start> ImageShelf::Obtain(const HostCache::Wanted& wanted,
                                                     const std::function<bool()>& cancelled) {
  Start start;
  if (cache_ != nullptr) {
    absl::StatusOr<HostCache::Found> found = cache_->Find(wanted, cancelled);
    if (absl::IsNotFound(found.status()) && MakeAnew().ok())
      found = cache_->Find(wanted, cancelled);
    if (absl::IsCancelled(found.status())) return found.status();
    if (!found.ok())
      spdlog::warn("fetching without the host's cache: {}", std::string(found.status().message()));
    if (found.ok() && found->image != nullptr) {
      Forget(wanted.digest);
      return Start{.file = std::move(found->image), .proven = {}, .complete = true, .claim = {}};
    }
    if (found.ok()) start.claim = std::move(found->claim);
  }
  if (std::optional<Begun> begun = TakeBegun(wanted.digest)) {
    start.file = std::move(begun->file);
    start.proven = std::move(begun->proven);
    return start;
  }
  LORRY_ASSIGN_OR_RETURN(start.file, Acquire(wanted.bytes));
  return start;
}

absl::StatusOr<std::unique_ptr<transfer::ImageFile>> ImageShelf::Acquire(uint64_t bytes) {
  absl::StatusOr<std::unique_ptr<transfer::ImageFile>> file = AcquireSpare(bytes);
  if (!absl::IsResourceExhausted(file.status())) return file;
  // What is wanted goes before what may be.
  GiveUpBegun(0);
  if (make_room_ != nullptr) make_room_();
  return AcquireSpare(bytes);
}

absl::StatusOr<std::unique_ptr<transfer::ImageFile>> ImageShelf::AcquireSpare(uint64_t bytes) {
  if (cache_ != nullptr) {
    if (auto file = cache_->TakeUnused(bytes)) return file;
  }
  absl::StatusOr<std::unique_ptr<transfer::ImageFile>> file = pool_->Acquire(bytes);
  if (absl::IsNotFound(file.status())) {
    LORRY_RETURN_IF_ERROR(MakeAnew());
    return pool_->Acquire(bytes);
  }
  if (cache_ == nullptr || !absl::IsResourceExhausted(file.status())) return file;
  cache_->RemoveUnused();  // a full tmpfs may be full of what nobody uses
  return pool_->Acquire(bytes);
}

void ImageShelf::Keep(const Digest& digest, std::unique_ptr<transfer::ImageFile> file,
                      transfer::RangeSet proven) {
  {
    MutexLock lock(mutex_);
    begun_.push_back({digest, std::move(file), std::move(proven)});
  }
  GiveUpBegun(kBegunMax);
}

void ImageShelf::Forget(const Digest& digest) {
  if (std::optional<Begun> begun = TakeBegun(digest)) GiveBack(std::move(begun->file));
}

std::optional<ImageShelf::Begun> ImageShelf::TakeBegun(const Digest& digest) {
  MutexLock lock(mutex_);
  const auto it = std::ranges::find(begun_, digest, &Begun::digest);
  if (it == begun_.end()) return std::nullopt;
  std::optional<Begun> begun(std::move(*it));
  begun_.erase(it);
  if (begun->file->IsWhole()) return begun;
  GiveBack(std::move(begun->file));
  return std::nullopt;
}

void ImageShelf::GiveUpBegun(size_t left) {
  std::list<Begun> given_up;
  {
    MutexLock lock(mutex_);
    while (begun_.size() > left) given_up.splice(given_up.end(), begun_, begun_.begin());
  }
  for (Begun& begun : given_up) GiveBack(std::move(begun.file));
}

void ImageShelf::Share(const Digest& digest, transfer::ImageFile& image) {
  if (cache_ == nullptr) return;
  if (const absl::Status shared = cache_->Share(digest, image); !shared.ok())
    spdlog::warn("other proxies of this host fetch it too: {}", std::string(shared.message()));
}

void ImageShelf::Close(bool engine_ended) {
  std::error_code error;
  if (engine_ended) {
    for (const char* folder : {"/versions", "/manifests"}) fs::remove_all(root_ + folder, error);
  }
  if (cache_ != nullptr) cache_->RemoveUnused();
  cache_.reset();
  pool_.reset();
  fs::remove_all(root_ + kPool, error);
  // remove() takes empty directories only: what an engine may yet read stays.
  const std::string parent = fs::path(root_).parent_path().string();
  for (const std::string& path : {versions_, manifests_, root_ + "/versions", root_ + "/manifests",
                                  root_, parent == SharedMemoryDirectory() ? parent : root_}) {
    fs::remove(path, error);
  }
}

absl::Status ImageShelf::Fill(const EngineName& name, transfer::ImageFile& image,
                              const std::string& config_json, const std::string& rendered) {
  const std::string path = PathOf(name), config = path + "/adapter_config.json";
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return DiskError("making", path, error.value());
  LORRY_RETURN_IF_ERROR(WriteFile(ManifestOf(name), config_json));
  LORRY_RETURN_IF_ERROR(WriteFile(config, rendered));
  LORRY_RETURN_IF_ERROR(image.Sync());
  LORRY_RETURN_IF_ERROR(image.MoveTo(path + kImageName));
  for (const std::string& made : {image.path(), config, path})
    LORRY_RETURN_IF_ERROR(OpenTo(readers_, made));
  return absl::OkStatus();
}

absl::StatusOr<std::string> ImageShelf::Place(const EngineName& name,
                                              std::unique_ptr<transfer::ImageFile> image,
                                              const std::string& config_json,
                                              const fleet::VersionTraits& traits,
                                              fleet::Render render) {
  const absl::StatusOr<std::string> rendered = Rendered(config_json, traits.modules, render);
  const absl::Status filled =
      rendered.ok() ? Fill(name, *image, config_json, *rendered) : rendered.status();
  if (!filled.ok()) {
    pool_->Recycle(std::move(image));
    (void)Delete(name);  // what was written of it; the reason to fail says more than its end
    return filled;
  }
  if (cache_ != nullptr && !image->IsSole()) {
    pool_->Forget(std::move(image));  // the host's by now
    return PathOf(name);
  }
  MutexLock lock(mutex_);
  placed_[name] = std::move(image);
  return PathOf(name);
}

absl::StatusOr<peft::Adapter> ImageShelf::Read(const EngineName& name, const std::string& path) {
  LORRY_ASSIGN_OR_RETURN(const std::string config_json, ReadSmallFile(ManifestOf(name)));
  LORRY_ASSIGN_OR_RETURN(const peft::Config config, peft::ParseConfig(config_json));
  LORRY_ASSIGN_OR_RETURN(const std::unique_ptr<transfer::ImageFile> image,
                         transfer::ImageFile::Open(path + kImageName));
  LORRY_ASSIGN_OR_RETURN(const peft::ImageHeader header,
                         peft::ParseImageHeader(image->bytes(), image->size()));
  return peft::ValidateAdapter(header, config);
}

bool ImageShelf::Proves(const EngineName& name, const std::string& path, const Digest& digest,
                        fleet::Render render) {
  if (path != PathOf(name)) return false;
  const absl::StatusOr<std::string> config_json = ReadSmallFile(ManifestOf(name));
  const absl::StatusOr<std::string> on_disk = ReadSmallFile(path + "/adapter_config.json");
  if (!config_json.ok() || !on_disk.ok()) return false;
  const absl::StatusOr<peft::Config> config = peft::ParseConfig(*config_json);
  if (!config.ok()) return false;
  const absl::StatusOr<std::unique_ptr<transfer::ImageFile>> image =
      transfer::ImageFile::Open(path + kImageName);
  if (!image.ok()) return false;
  const absl::StatusOr<std::string> canonical = peft::CanonicalConfig(*config);
  if (!canonical.ok()) return false;
  const absl::StatusOr<Digest> found =
      peft::DigestOf((*image)->size(), transfer::LeavesOf((*image)->bytes()), *canonical);
  if (!found.ok() || *found != digest) return false;
  const absl::StatusOr<peft::Adapter> adapter = Read(name, path);
  if (!adapter.ok()) return false;
  const absl::StatusOr<std::string> rendered =
      Rendered(*config_json, adapter->traits.modules, render);
  return rendered.ok() && *rendered == *on_disk;
}

absl::StatusOr<std::unique_ptr<transfer::ImageFile>> ImageShelf::OpenProven(const EngineName& name,
                                                                            const Digest& digest,
                                                                            fleet::Render render) {
  // Opened before it is proved: from then on the pool leaves the file alone.
  LORRY_ASSIGN_OR_RETURN(std::unique_ptr<transfer::ImageFile> image,
                         transfer::ImageFile::Open(PathOf(name) + kImageName));
  if (Proves(name, PathOf(name), digest, render)) return image;
  return absl::NotFoundError("the image is not what it was");
}

absl::Status ImageShelf::Delete(const EngineName& name) {
  std::unique_ptr<transfer::ImageFile> image;
  {
    MutexLock lock(mutex_);
    if (const auto it = placed_.find(name); it != placed_.end()) {
      image = std::move(it->second);
      placed_.erase(it);
    }
  }
  if (image != nullptr) pool_->Recycle(std::move(image));
  std::error_code error;
  fs::remove_all(PathOf(name), error);
  if (error) return DiskError("removing", PathOf(name), error.value());
  fs::remove(ManifestOf(name), error);
  if (cache_ != nullptr) cache_->Trim();
  return absl::OkStatus();
}

bool ImageShelf::Has(const EngineName& name) const {
  std::error_code error;
  return fs::exists(PathOf(name), error);
}

std::set<std::string> ImageShelf::Paths() const {
  std::set<std::string> paths;
  std::error_code error;
  for (const fs::directory_entry& journal : fs::directory_iterator(root_ + "/versions", error)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(journal.path(), error))
      paths.insert(entry.path().string());
  }
  return paths;
}

void ImageShelf::RemoveUnrecorded(const std::set<EngineName>& recorded) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(versions_, error)) {
    const EngineName name(entry.path().filename().string());
    if (!recorded.contains(name)) (void)Delete(name);
  }
}

void ImageShelf::RemoveForeign(const std::set<std::string>& listed) {
  std::error_code error;
  for (const fs::directory_entry& journal : fs::directory_iterator(root_ + "/versions", error)) {
    const std::string path = journal.path().string();
    if (path == versions_) continue;
    const auto first = listed.lower_bound(path + "/");
    if (first != listed.end() && first->starts_with(path + "/")) continue;
    fs::remove_all(journal.path(), error);
    fs::remove_all(root_ + "/manifests/" + journal.path().filename().string(), error);
  }
}

}  // namespace lorry::proxy
