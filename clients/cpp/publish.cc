// The two calls of Client that move bytes.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "clients/cpp/client.h"
#include "clients/cpp/peft_directory.h"
#include "lib/base/error.h"
#include "lib/base/file_lock.h"
#include "lib/base/strings.h"
#include "lib/peft/config.h"
#include "lib/peft/digest.h"
#include "lib/transfer/image_file.h"
#include "lib/transfer/transport_set.h"

namespace lorry::client {
namespace {

// Whether going round again may help: the connection broke, the ticket grew old, another rank's
// bytes are on their way, a check still runs, the store has as much to do as it takes.
bool MayHelp(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  if (reason == "TICKET_EXPIRED" || reason == "RANGES_MISSING" || reason == "CHECK_RUNNING" ||
      reason == "RANGE_CORRUPT" || transfer::IsFull(status)) {
    return true;
  }
  return absl::IsUnavailable(status) || (absl::IsDeadlineExceeded(status) && reason.empty());
}

std::vector<transfer::Range> RangesOf(const store::v1::BeginUploadResponse& begun) {
  std::vector<transfer::Range> ranges;
  for (const store::v1::Range& range : begun.missing()) {
    ranges.push_back({range.offset(), range.length()});
  }
  return ranges;
}

uint64_t ThisMoment() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

// What the manifest's own parts hash to must be what the version says.
absl::StatusOr<std::vector<peft::Leaf>> ProvenLeaves(const store::v1::OpenFetchResponse& manifest) {
  const common::v1::Version& version = manifest.version();
  std::vector<peft::Leaf> leaves(manifest.leaves().size() / sizeof(peft::Leaf::bytes));
  for (size_t i = 0; i < leaves.size(); ++i) {
    manifest.leaves().copy(reinterpret_cast<char*>(leaves[i].bytes.data()), leaves[i].bytes.size(),
                           i * leaves[i].bytes.size());
  }
  LORRY_ASSIGN_OR_RETURN(const peft::Config config, peft::ParseConfig(version.config_json()));
  LORRY_ASSIGN_OR_RETURN(const std::string canonical, peft::CanonicalConfig(config));
  LORRY_ASSIGN_OR_RETURN(const Digest digest,
                         peft::DigestOf(version.image_bytes(), leaves, canonical));
  if (digest.value == version.digest()) return leaves;
  return Error(absl::StatusCode::kDataLoss, "DIGEST_MISMATCH",
               absl::StrCat("the store's manifest hashes to ", digest.value, " and not to ",
                            version.digest()));
}

// The bytes of a file, or the names in a directory, to their device.
absl::Status SyncPath(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  // EINVAL: a file system that syncs no directories.
  const bool synced = fd >= 0 && (::fsync(fd) == 0 || errno == EINVAL);
  const int failed = errno;
  if (fd >= 0) ::close(fd);
  if (synced) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "DIRECTORY_INVALID",
               absl::StrCat(path.string(), " cannot be written: ", std::strerror(failed)));
}

absl::Status WriteText(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "DIRECTORY_INVALID",
               absl::StrCat(path.string(), " cannot be written"));
}

// Gives the image and its config their names. Weights are there last and the old ones go first, so
// that nobody ever loads those of one version by the config of another.
absl::Status PutInPlace(const std::filesystem::path& target, transfer::ImageFile& image,
                        const std::string& config) {
  const std::filesystem::path part = target / absl::StrCat(".", kConfigFile, ".part");
  const absl::Cleanup remove = [&part] {
    std::error_code ignored;
    std::filesystem::remove(part, ignored);  // nothing, once it has its name
  };
  LORRY_RETURN_IF_ERROR(WriteText(part, config));
  LORRY_RETURN_IF_ERROR(SyncPath(part));
  LORRY_RETURN_IF_ERROR(image.Sync());
  // Images are their owner's alone; this one is for whoever may read the config beside it.
  std::error_code error;
  const auto readers = std::filesystem::status(part, error).permissions();
  std::filesystem::permissions(image.path(), readers, error);
  std::filesystem::remove(target / kImageFile, error);
  if (!error) std::filesystem::rename(part, target / kConfigFile, error);
  if (error) {
    return Error(absl::StatusCode::kInvalidArgument, "DIRECTORY_INVALID",
                 absl::StrCat(target.string(), " cannot be written: ", error.message()));
  }
  LORRY_RETURN_IF_ERROR(image.MoveTo((target / kImageFile).string()));
  return SyncPath(target);
}

// Removes a directory that an export made and left empty.
struct MadeDirectory {
  ~MadeDirectory() {
    std::error_code ignored;
    if (is_new) std::filesystem::remove(path, ignored);  // only where nothing is in it
  }
  const std::filesystem::path path;
  std::error_code unknown = {};
  const bool is_new = !std::filesystem::exists(path, unknown) && !unknown;
};

// Makes the directory where there is none. Two exports at once would take away each other's half
// images, or give one of them the final name: the lock keeps the second out.
absl::StatusOr<FileLock> PrepareDirectory(const std::filesystem::path& directory, bool replace) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return Error(absl::StatusCode::kInvalidArgument, "DIRECTORY_INVALID",
                 absl::StrCat(directory.string(), " cannot be made: ", error.message()));
  }
  FileLock lock(directory / absl::StrCat(".", kImageFile, ".lock"), FileLock::File::kIsRemoved);
  if (!lock.held()) {
    return Error(absl::StatusCode::kInvalidArgument, "DIRECTORY_INVALID",
                 lock.error() == 0
                     ? absl::StrCat(directory.string(), " is written by another export just now")
                     : absl::StrCat(directory.string(),
                                    " cannot be written: ", std::strerror(lock.error())));
  }
  for (const char* name : {kConfigFile, kImageFile}) {
    if (!replace && std::filesystem::exists(directory / name, error)) {
      return Error(absl::StatusCode::kAlreadyExists, "DIRECTORY_INVALID",
                   absl::StrCat(directory.string(),
                                " holds an adapter already; name another "
                                "directory, or ask to replace it"));
    }
  }
  return lock;
}

}  // namespace

absl::StatusOr<common::v1::Version> Client::UploadOnce(const store::v1::BeginUploadRequest& request,
                                                       const AdapterImage& image,
                                                       const Progress& progress, Tick ends_at) {
  LORRY_ASSIGN_OR_RETURN(const store::v1::BeginUploadResponse begun, BeginUpload(request));
  if (begun.has_stored()) {
    if (progress) progress(image.size(), image.size());
    return begun.stored();
  }
  if (begun.missing_size() > 0 && begun.addresses_size() == 0) {
    return absl::UnavailableError("the adapter-store offers no transfer address yet");
  }
  if (begun.missing_size() > 0) {
    const transfer::Outcome outcome =
        mover_.Push({begun.addresses().begin(), begun.addresses().end()},
                    {.ticket = begun.ticket(),
                     .ranges = RangesOf(begun),
                     .source = image.bytes(),
                     .options = {.deadline_ms = std::max<Tick>(1, ends_at - SteadyClock().Now())}},
                    progress);
    // Once somebody commits, the store refuses what it has, such as bytes whose answer was lost.
    if (ReasonOf(outcome.status) != "UPLOAD_COMPLETE") LORRY_RETURN_IF_ERROR(outcome.status);
  }
  return Commit(begun.upload_id());
}

absl::StatusOr<common::v1::Version> Client::Publish(const AdapterImage& image,
                                                    const common::v1::VersionRef& version,
                                                    const PublishOptions& options) {
  store::v1::BeginUploadRequest request;
  *request.mutable_version() = version;
  request.set_attempt(options.attempt == 0 ? ThisMoment() : options.attempt);
  request.set_header(image.header_bytes());
  request.set_config_json(image.config_json());
  request.set_image_bytes(image.size());
  request.set_expected_digest(options.expected_digest);

  const SteadyClock clock;
  const Tick ends_at = clock.Now() + options_.transfer_timeout_ms;
  while (true) {
    auto stored = UploadOnce(request, image, options.progress, ends_at);
    if (stored.ok() || !MayHelp(stored.status()) || clock.Now() >= ends_at) return stored;
    PauseBeforeRetry();  // what arrived stays: the next round asks only for what is missing
  }
}

absl::StatusOr<common::v1::Version> Client::Export(const common::v1::VersionRef& version,
                                                   const std::string& directory, bool replace,
                                                   const Progress& progress) {
  const std::filesystem::path target(directory);
  const MadeDirectory made{target};  // outlives the lock, which lies in it
  LORRY_ASSIGN_OR_RETURN(const FileLock lock, PrepareDirectory(target, replace));
  LORRY_ASSIGN_OR_RETURN(const store::v1::OpenFetchResponse manifest, OpenFetch(version));
  LORRY_ASSIGN_OR_RETURN(std::vector<peft::Leaf> leaves, ProvenLeaves(manifest));

  // Under another name until it is whole, so that no half image is ever read as an adapter.
  const std::string part = (target / absl::StrCat(".", kImageFile, ".part")).string();
  std::error_code ignored;
  std::filesystem::remove(part, ignored);  // of an export that was broken off
  LORRY_ASSIGN_OR_RETURN(
      const std::unique_ptr<transfer::ImageFile> file,
      transfer::ImageFile::Create(part, manifest.version().image_bytes(), {.prefault = false}));
  const transfer::Outcome outcome =
      mover_.Fetch({manifest.addresses().begin(), manifest.addresses().end()},
                   {.ticket = manifest.ticket(),
                    .destination = file->writable(),
                    .leaves = std::move(leaves),
                    .options = {.deadline_ms = options_.transfer_timeout_ms}},
                   progress);
  absl::Status written = outcome.status;
  if (written.ok()) written = PutInPlace(target, *file, manifest.version().config_json());
  if (!written.ok()) {
    file->Unlink().IgnoreError();
    return written;
  }
  return manifest.version();
}

}  // namespace lorry::client
