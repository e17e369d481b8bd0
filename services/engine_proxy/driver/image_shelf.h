// The adapter directories that the engine reads: one for each engine name, complete before anybody
// hears of it.
//
//   <root>/pool/...                                recycled files (lib/transfer/image_pool.h)
//   <root>/versions/<journal>/<engine name>/       adapter_model.safetensors, adapter_config.json;
//                                                  nothing else: SGLang reads any *.safetensors
//   <root>/manifests/<journal>/<engine name>.json  the config as published: proves the digest again
//
// Where the proxies of a host share a cache (host_cache.h), an image in versions/ is one more name
// of the cache's file, which nobody writes.
//
// A name certifies its contents, so its path is the same for as long as the journal lives. A proxy
// that lost its journal writes under another: it never touches a directory that the engine may have
// open. Thread-safe. Owned by main.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/digest.h"
#include "lib/base/ids.h"
#include "lib/base/mutex.h"
#include "lib/fleet/engine_name.h"
#include "lib/peft/validate.h"
#include "lib/transfer/image_pool.h"
#include "lib/transfer/ranges.h"
#include "services/engine_proxy/driver/host_cache.h"
#include "services/engine_proxy/driver/private_directory.h"

namespace lorry::proxy {

class ImageShelf {
 public:
  // FAILED_PRECONDITION POOL_IN_USE: another proxy has `root`; DIRECTORY_UNSAFE: another user has.
  // Put it on a tmpfs such as /dev/shm, shared with the engine, which is among `readers`.
  // `host_cache`: a directory; empty: images are this proxy's alone.
  static absl::StatusOr<std::unique_ptr<ImageShelf>> Open(const std::string& root,
                                                          const JournalId& journal,
                                                          const ImageReaders& readers,
                                                          const std::string& host_cache = "");
  // Removes what is empty; with `engine_ended` everything, as nobody has it open any more.
  void Close(bool engine_ended);

  // What a fetch begins with: the image, whole and proven, where the host has it already; otherwise
  // a file to fetch it into and the right to fetch it for the whole host.
  struct Start {
    std::unique_ptr<transfer::ImageFile> file;
    transfer::RangeSet proven;  // what of the image is in a file that is not complete
    bool complete = false;
    std::unique_ptr<HostCache::Claim> claim;
  };
  // May block while another proxy fetches it, until `cancelled`. Otherwise as Acquire.
  absl::StatusOr<Start> Obtain(const HostCache::Wanted& wanted,
                               const std::function<bool()>& cancelled);
  // What came of an image whose fetch has failed: the next one of it begins with that. Of
  // kBegunMax images, until there is no room for others.
  void Keep(const Digest& digest, std::unique_ptr<transfer::ImageFile> file,
            transfer::RangeSet proven);
  // What was kept of an image that has come in another way.
  void Forget(const Digest& digest);
  // As many as are fetched at a time.
  static constexpr size_t kBegunMax = 2;
  // Gives a fetched image to the proxies of the host.
  void Share(const Digest& digest, transfer::ImageFile& image);

  // Whether the host's proxies have images in common.
  bool IsShared() const { return cache_ != nullptr; }
  // A file to write into. As ImagePool::Acquire, after `OnFull` where there was no room.
  absl::StatusOr<std::unique_ptr<transfer::ImageFile>> Acquire(uint64_t bytes);
  // The same of room that nobody has to make.
  absl::StatusOr<std::unique_ptr<transfer::ImageFile>> AcquireSpare(uint64_t bytes);
  // Who gives up what only may be wanted. Before the first Acquire; lives as long as anybody calls
  // that.
  void OnFull(std::function<void()> make_room) { make_room_ = std::move(make_room); }
  void GiveBack(std::unique_ptr<transfer::ImageFile> file) { pool_->Recycle(std::move(file)); }

  // Makes the directory of `name` out of a fetched image; returns its path. The engine's config is
  // written from `config_json` as `traits` and `render` ask.
  absl::StatusOr<std::string> Place(const EngineName& name,
                                    std::unique_ptr<transfer::ImageFile> image,
                                    const std::string& config_json,
                                    const fleet::VersionTraits& traits, fleet::Render render);

  // True when what is on disk under `path` is what `digest` names, and the engine's config is ours.
  bool Proves(const EngineName& name, const std::string& path, const Digest& digest,
              fleet::Render render);

  // The same, with the image, which nobody writes over while this is held. NOT_FOUND where it is not
  // there or not so.
  absl::StatusOr<std::unique_ptr<transfer::ImageFile>> OpenProven(const EngineName& name,
                                                                  const Digest& digest,
                                                                  fleet::Render render);

  // What the image in the directory adapts.
  absl::StatusOr<peft::Adapter> Read(const EngineName& name, const std::string& path);
  // Removes the directory; its file is recycled where nobody else uses it. OK when there is none.
  absl::Status Delete(const EngineName& name);

  // Where the directory of a name is, or would be.
  std::string PathOf(const EngineName& name) const { return versions_ + "/" + name.value; }
  // Whether there is a directory of that name, whole or not.
  bool Has(const EngineName& name) const;
  // The paths of all directories, other journals' included.
  std::set<std::string> Paths() const;

  // At start: removes this journal's directories that it has no record of. They were being written
  // when a predecessor died, and no engine was ever asked to load them.
  void RemoveUnrecorded(const std::set<EngineName>& recorded);
  // Removes other journals' directories, unless the engine lists a path in them.
  void RemoveForeign(const std::set<std::string>& listed);

 private:
  ImageShelf(std::string root, const JournalId& journal, const ImageReaders& readers);
  absl::Status MakeDirectories() const;
  absl::Status MakeAnew() const;
  absl::Status Fill(const EngineName& name, transfer::ImageFile& image,
                    const std::string& config_json, const std::string& rendered);
  struct Begun {
    Digest digest;
    std::unique_ptr<transfer::ImageFile> file;
    transfer::RangeSet proven;
  };
  std::optional<Begun> TakeBegun(const Digest& digest) LORRY_EXCLUDES(mutex_);
  // All but the newest `left` of them.
  void GiveUpBegun(size_t left) LORRY_EXCLUDES(mutex_);
  std::string ManifestOf(const EngineName& name) const {
    return manifests_ + "/" + name.value + ".json";
  }

  const std::string root_;
  const std::string versions_, manifests_;  // this journal's
  const ImageReaders readers_;
  std::unique_ptr<transfer::ImagePool> pool_;
  std::unique_ptr<HostCache> cache_;  // null: none
  std::function<void()> make_room_;   // null: there is nothing to give up
  Mutex mutex_;
  std::map<EngineName, std::unique_ptr<transfer::ImageFile>> placed_
      LORRY_GUARDED_BY(mutex_);                      // placed by this process, and used by it alone
  std::list<Begun> begun_ LORRY_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace lorry::proxy
