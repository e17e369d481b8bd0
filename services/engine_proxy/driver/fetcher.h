// Fetches versions: reads the manifest from the store, then, unless the host has the image already,
// its ranges from where the store says, and makes a directory on the shelf of it. While many
// proxies fetch one image, the store names other proxies to read it from. Where the engine runs on
// several nodes, its followers fetch at the same time, and a fetch is done when all of them have
// the directory. What came before a fetch failed is not fetched again by the next one.
//
// The manifest is proved by the digest before a byte is asked for: digest = H(length, leaves,
// config), so a range that agrees with its leaf is right wherever it came from. Work that blocks
// runs on an executor; transfers on their transports' threads. Thread-safe. Owned by main; shelf,
// transports, source, followers, relay and what is read ahead outlive it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/mutex.h"
#include "lib/runtime/executor.h"
#include "lib/transfer/transport_set.h"
#include "services/engine_proxy/driver/event_sink.h"
#include "services/engine_proxy/driver/followers.h"
#include "services/engine_proxy/driver/image_shelf.h"
#include "services/engine_proxy/driver/last_images.h"
#include "services/engine_proxy/driver/manifest.h"
#include "services/engine_proxy/driver/read_ahead.h"
#include "services/engine_proxy/driver/relay.h"
#include "services/engine_proxy/machine/effects.h"

namespace lorry::proxy {

// One image came, by this transport, in so many seconds.
using OnFetched = std::function<void(const std::string& transport, double seconds)>;

class Fetcher {
 public:
  // `relay`: passes on what is fetched, and knows from where else than the store to read it; null:
  // only the store is read from. `ahead`: may have some of an image already; null: there is no such
  // thing. `last`: what the next image of an adapter may be told by; null: images come as they are.
  Fetcher(ImageShelf& shelf, transfer::TransportSet& transports, ManifestSource source,
          Followers& followers, Relay* relay, ReadAhead* ahead, EventSink sink,
          OnFetched on_fetched, LastImages* last = nullptr);
  ~Fetcher();  // cancels what runs

  void Start(const Fetch& fetch);
  void Cancel(OpId op);
  void Hash(const HashDirectory& hash);
  void Check(const CheckShapes& check);
  void Delete(const DeleteDirectory& deletion);
  // Passes the load on to `engine` once every node has its directory; otherwise it is answered by
  // LoadDone, unsent.
  void Confirm(const Load& load, std::function<void(const Load&)> engine);

  // Bytes that arrived, by transport; "ahead" are those that were read before their version was
  // stored, "delta" those that did not travel, as they follow from the last image.
  std::map<std::string, uint64_t> fetched_bytes() const;
  // Versions that came here whole, by where their images were.
  struct Sources {
    uint64_t store = 0, host = 0;
  };
  Sources sources() const;

 private:
  struct Job;  // one fetch
  void Run(const std::shared_ptr<Job>& job);
  absl::Status Begin(const std::shared_ptr<Job>& job);
  absl::StatusOr<bool> Obtain(Job& job);
  std::vector<transfer::Source> SourcesOf(Job& job);
  void OnRange(Job& job, const transfer::Range& range);
  void Count(const std::string& transport, uint64_t bytes, uint64_t spared) LORRY_EXCLUDES(mutex_);
  void TellOfCarrier(const Job& job, const std::string& transport) LORRY_EXCLUDES(mutex_);
  void OnDone(const std::shared_ptr<Job>& job, transfer::Outcome outcome);
  void Arrived(const std::shared_ptr<Job>& job);  // every byte of it
  void Finish(const std::shared_ptr<Job>& job, uint64_t Sources::*source);
  void End(const std::shared_ptr<Job>& job, Event event);
  enum class Whose { kOurs, kPeers };  // on whose side it failed
  void Fail(const std::shared_ptr<Job>& job, const absl::Status& status,
            Whose whose = Whose::kOurs);

  ImageShelf& shelf_;
  transfer::TransportSet& transports_;
  const ManifestSource source_;
  Followers& followers_;
  Relay* const relay_;
  ReadAhead* const ahead_;
  LastImages* const last_;
  const EventSink sink_;
  const OnFetched on_fetched_;
  mutable Mutex mutex_;
  std::map<OpId, std::shared_ptr<Job>> jobs_ LORRY_GUARDED_BY(mutex_);
  // What carried the last image: the log tells when another does.
  std::string carrier_ LORRY_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> fetched_bytes_ LORRY_GUARDED_BY(mutex_);
  Sources sources_ LORRY_GUARDED_BY(mutex_);
  bool stopping_ LORRY_GUARDED_BY(mutex_) = false;
  CondVar idle_;
  // The machine's operations bound what waits here.
  runtime::Executor executor_;
};

}  // namespace lorry::proxy
