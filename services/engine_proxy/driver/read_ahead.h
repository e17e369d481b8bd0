// Reads an image while its trainer still sends it, so that a version that is then committed is here
// already, but for its last bytes.
//
// What comes ahead is a guess: nobody has said yet that these bytes are a version, or that this
// engine will want it. The fetch compares each leaf with the proved manifest, takes what agrees, and
// reads the rest as ever; so whatever goes wrong here costs the time that was to be won, and no more.
// A proxy follows the adapters whose images came to it by gRPC, from another host: shared memory
// needs no head start, and where proxies share a host's cache each would read for itself what one of
// them fetches. Bounded: kReadingsMax images, each at most twice as large as the adapter's last one,
// until its version is fetched, a newer upload of the adapter begins, or room is needed.
// Thread-safe. Owned by main; shelf and transport outlive it.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lib/base/ids.h"
#include "lib/base/mutex.h"
#include "lib/runtime/executor.h"
#include "lib/transfer/transport_set.h"
#include "services/engine_proxy/driver/image_shelf.h"
#include "services/engine_proxy/driver/last_images.h"

namespace lorry::proxy {

// An image that is being uploaded.
struct ComingImage {
  VersionKey key;  // of the version that it becomes
  uint64_t bytes = 0;
  transfer::Source source;  // the store, at an address of the transport's
};

class ReadAhead {
 public:
  static constexpr size_t kReadingsMax = 4;
  static constexpr size_t kAdaptersMax = 64;

  // `transport`: one that waits for bytes which are still coming, gRPC.
  // `last`: what an image may be told by; null: images come as they are.
  // Gives up what came ahead where the shelf is full; so nobody takes files of it once this is gone.
  ReadAhead(ImageShelf& shelf, transfer::Transport& transport, LastImages* last = nullptr);
  ~ReadAhead();  // cancels what runs

  // Who asks the store for uploads of these adapters from now on. Before the first fetch.
  void OnFollow(std::function<void(const std::set<AdapterName>&)> follow) {
    follow_ = std::move(follow);
  }
  // An image of `adapter` came here, by this transport.
  void OnFetched(const AdapterName& adapter, uint64_t bytes, const std::string& transport)
      LORRY_EXCLUDES(mutex_);
  // Begins to read it. Does not block.
  void Begin(ComingImage image) LORRY_EXCLUDES(mutex_);

  // What came ahead of an image: the file, and what of it is proven to be the image's.
  struct Draft {
    std::unique_ptr<transfer::ImageFile> file;
    transfer::RangeSet proven;
    uint64_t spared = 0;  // bytes that did not travel (transfer::Outcome)
  };
  // None where nothing agrees with `leaves`. Ends the reading; returns once the file is this
  // caller's alone.
  std::optional<Draft> Take(const VersionKey& key, uint64_t bytes,
                            std::span<const transfer::Checksum> leaves) LORRY_EXCLUDES(mutex_);
  // Gives up what came ahead: its room is needed.
  void GiveUp() LORRY_EXCLUDES(mutex_);

 private:
  struct Reading;
  void Start(const std::shared_ptr<Reading>& reading) LORRY_EXCLUDES(mutex_);
  void Run(const std::shared_ptr<Reading>& reading) LORRY_REQUIRES(mutex_);
  static std::unique_ptr<transfer::ImageFile> End(Reading& reading);
  void Discard(Reading& reading) LORRY_EXCLUDES(mutex_);

  ImageShelf& shelf_;
  transfer::Transport& transport_;
  LastImages* const last_;
  std::function<void(const std::set<AdapterName>&)> follow_ = [](const auto&) {};
  mutable Mutex mutex_;
  // And how large the last image of each was.
  std::map<AdapterName, uint64_t> followed_ LORRY_GUARDED_BY(mutex_);
  std::list<std::shared_ptr<Reading>> readings_ LORRY_GUARDED_BY(mutex_);  // oldest first
  runtime::Executor executor_;
};

}  // namespace lorry::proxy
