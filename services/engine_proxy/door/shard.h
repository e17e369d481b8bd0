// What the connections of one thread share, and what all threads share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/base/prng.h"
#include "services/engine_proxy/door/door.h"
#include "services/engine_proxy/door/ids.h"
#include "services/engine_proxy/door/net.h"
#include "services/engine_proxy/door/upstream.h"

namespace lorry::door {

class Client;
class FlipWatch;

// Shared by all threads; everything in it is constant, atomic or locked. Outlives the shards.
struct Shared {
  explicit Shared(DoorOptions given)
      : options(std::move(given)),
        router(options.limits.live_requests,
               [this] {
                 if (options.on_counts) options.on_counts(router.Snapshot());
               }),
        explained(options.explained_requests),
        facts(std::make_shared<const EngineFacts>()) {}

  // By whoever made one of its conditions true last.
  void TellIfClosed() {
    if (!listening && connections == 0) TellClosed();
  }
  void TellClosed() {
    if (!closed.exchange(true) && options.on_closed) options.on_closed();
  }

  const DoorOptions options;
  Router router;
  ExplainRing explained;
  LiveIds live_ids;
  std::atomic<std::shared_ptr<const EngineFacts>> facts;
  std::atomic<bool> draining{false};
  std::atomic<bool> listening{false};
  std::atomic<bool> closed{false};  // it was told
  std::atomic<uint32_t> connections{0};
  std::atomic<uint32_t> held{0};
  // Of SGLang, by clients: what waits here is over, and, where the engine took them, what runs there.
  std::atomic<uint64_t> aborts_of_all{0};
  std::atomic<uint64_t> aborts_taken{0};
  std::function<void()> ask_held_again;  // of all shards; set before the threads start
  std::atomic<uint32_t> calls{0};
  std::atomic<size_t> body_bytes{0};
  std::atomic<size_t> tensors_bytes{0};   // of calls that carry tensors; not among the others
  std::atomic<uint64_t> pieces_heard{0};  // Door::pieces_heard
  std::string engine_authority;           // for Host; set before the threads start
};

// Bytes of one request's body, counted among those of all requests until it goes.
class BodyLease {
 public:
  explicit BodyLease(Shared& shared)
      : all_(&shared.body_bytes), most_(shared.options.limits.all_bodies_bytes) {}
  ~BodyLease() { Resize(0); }
  BodyLease(const BodyLease&) = delete;
  BodyLease& operator=(const BodyLease&) = delete;
  // False: what all requests together hold is more than they may.
  bool Grow(size_t by) { return Resize(bytes_ + by); }
  bool Resize(size_t bytes) {
    const size_t all = *all_ += bytes - bytes_;
    bytes_ = bytes;
    return all <= most_;
  }
  // From here on it is counted among the calls that carry tensors. False: they leave no room for
  // `bytes`, and it holds nothing.
  bool HoldTensors(Shared& shared, size_t bytes) {
    Resize(0);
    all_ = &shared.tensors_bytes;
    most_ = shared.options.limits.tensors_bytes;
    size_t all = *all_;
    do {
      if (bytes > most_ || all > most_ - bytes) return false;
    } while (!all_->compare_exchange_weak(all, all + bytes));
    bytes_ = bytes;
    return true;
  }

 private:
  std::atomic<size_t>* all_;
  size_t most_;
  size_t bytes_ = 0;
};

struct Shard {
  Shard(Shared& shared_state, UpstreamPool::Endpoints engine, uint64_t seed)
      : shared(shared_state), pool(io, sweeper, shared.options, std::move(engine)), prng(seed) {}

  // Valid until this is called again: a thread keeps the table that it saw last, as all threads at
  // one lock would slow each other down at every request.
  const proxy::DoorTable& Table() {
    shared.router.Follow(&table);
    return *table;
  }
  // A random id of 32 hex digits: unique, and no id is the prefix of another.
  std::string NewId();

  Shared& shared;
  Sweeper sweeper;  // outlives the sockets that io and pool hold
  std::unordered_set<Client*> clients;
  std::unordered_set<Timer*> held;  // requests at HELD rows, and calls: cancelled to look again
  std::unordered_set<FlipWatch*> flips;  // requests that do not simply finish when their row flips
  asio::io_context io{1};
  UpstreamPool pool;
  Prng prng;
  std::shared_ptr<const proxy::DoorTable> table;  // for Table()
};

}  // namespace lorry::door
