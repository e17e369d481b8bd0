// A file of exactly an image's length, mapped shared: what transports write into and engines read.
//
// Space is allocated before the file is mapped, so that a full disk or tmpfs is RESOURCE_EXHAUSTED
// DISK_FULL here and never a SIGBUS later. Pages are touched in advance where asked: copying into
// fresh pages of a tmpfs file runs at 1.5 GB/s, into touched ones at 12. The object owns mapping
// and descriptor, not the file's name: destroying it leaves the file where it is. Not synchronised,
// except that disjoint bytes may be written at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorry::transfer {

class ImageFile {
 public:
  struct CreateOptions {
    bool prefault = true;  // false for files on disk, which the page cache serves anyway
  };

  // A new file (ALREADY_EXISTS if there is one) of `bytes` zero bytes, mode 0600, writable.
  static absl::StatusOr<std::unique_ptr<ImageFile>> Create(const std::string& path, uint64_t bytes,
                                                           CreateOptions options);
  // An existing file, read-only. NOT_FOUND, or FAILED_PRECONDITION if it is not a regular file.
  static absl::StatusOr<std::unique_ptr<ImageFile>> Open(const std::string& path);
  // An existing file, to be written anew, its pages in place. FAILED_PRECONDITION unless IsSole().
  static absl::StatusOr<std::unique_ptr<ImageFile>> Reopen(const std::string& path);

  ~ImageFile();
  ImageFile(const ImageFile&) = delete;
  ImageFile& operator=(const ImageFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::span<std::byte> writable();  // CHECKs that the file was created or reopened, not opened

  // Whether nobody else can read what is written here: the file is writable, whole, has one name,
  // and no other descriptor or mapping of it exists in any process. It stays so while nobody else
  // knows its name.
  bool IsSole() const;

  // Whether the file still has a name, and is as long as it is mapped. Somebody of the same user can
  // cut it, and whoever touches the bytes that it lost gets a SIGBUS; or remove it, and it cannot be
  // given a name any more. To be asked before a file is used that lay there for a while.
  bool IsWhole() const;

  // Gives the file another name on the same file system instead of its present one; an existing file
  // of that name is replaced.
  absl::Status MoveTo(const std::string& path);
  // Cuts the file to `bytes`, at most its size; the mapping keeps its place. Frees the tail.
  absl::Status Shrink(uint64_t bytes);
  // Data and metadata of the file to its device (not the directory's entry).
  absl::Status Sync();
  // Removes the name; the mapping stays valid until the object goes.
  absl::Status Unlink();

 private:
  ImageFile(std::string path, int fd, std::byte* data, uint64_t size, bool writable);

  std::string path_;
  int fd_;
  std::byte* data_;
  uint64_t size_;
  uint64_t mapped_;  // length of the mapping, at least size_
  bool writable_;
};

}  // namespace lorry::transfer
