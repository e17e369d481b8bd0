// Who reads an image from whom while many fetch it at once: a tree with the store at its root.
//
// Each proxy that is about to fetch joins. It reads from one that joined before it and passes its
// bytes on as they come, so that the store sends an image `width` times, however many want it, and
// the last of n has it log(n) steps after the first. Whoever joins again was let down, and reads
// from the store: so nobody reads from one who reads from him.
//
// Kept in memory, for as long as a burst of fetches lasts: a store that forgets serves everybody by
// itself. Thread-safe. docs/adr/0025-relays.md has the reasons, tests/bench/relays the figures.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/mutex.h"
#include "lib/transfer/ticket.h"

namespace lorry::store {

// A proxy that passes on what it fetches, and the key of the tickets that open it there.
struct OfferedRelay {
  std::string address;
  transfer::TicketKeys::Secret key;
};

struct FanOutOptions {
  // Readers of the store, and of each relay; 0: nobody is sent to a relay. Two: a place with twice
  // as many readers gives each half as much, and one is a chain, which is as long as the fleet.
  int width = 2;
  // How long after it joined somebody is sent to a relay. Fetches that begin together begin within
  // a second or two; a relay that has gone since costs whoever asks it a moment.
  Tick life_ms = 10'000;
  // Over all images, some 300 bytes each; beyond that the store serves by itself.
  size_t relays_max = 16'384;
};

class FanOut {
 public:
  // `clock` outlives it.
  FanOut(const Clock& clock, FanOutOptions options) : clock_(clock), options_(options) {}

  // The relays that `relay` may read `image` from, best first; none: the store.
  std::vector<OfferedRelay> Join(const Digest& image, const OfferedRelay& relay)
      LORRY_EXCLUDES(mutex_);

 private:
  struct Node {
    OfferedRelay relay;
    const Node* parent = nullptr;  // null: the store
    int readers = 0;
    Tick joined_at = 0;
  };
  // Of one image; in the order of joining, which is the order of depth.
  struct Tree {
    std::deque<Node> nodes;  // whose elements stay where they are
    std::map<std::string, size_t> by_address;
    int readers_of_store = 0;
    size_t first_open = 0;  // nodes before it have all their readers, or are too old
    Tick joined_at = 0;     // the last
  };
  void Forget(Tick now) LORRY_REQUIRES(mutex_);
  Node* FindOpen(Tree& tree, Tick now) const;

  const Clock& clock_;
  const FanOutOptions options_;
  Mutex mutex_;
  std::map<Digest, Tree> trees_ LORRY_GUARDED_BY(mutex_);
  size_t relays_ LORRY_GUARDED_BY(mutex_) = 0;
};

}  // namespace lorry::store
