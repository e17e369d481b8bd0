// What becomes of a running request of `latest` when its row flips to another version: what the
// policy's `in_flight` said when the request was admitted. Versions, aliases and leases that were
// named are left alone, and most requests simply finish: for them nothing here is made.
//
// An abort makes the engine end the request in its own words, which pass to the client like any
// other reply.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "services/engine_proxy/door/net.h"
#include "services/engine_proxy/machine/door_table.h"

namespace lorry::door {

struct Exchange;
struct Resolved;
struct Shard;

// Before the engine gets the request: gives it a FlipWatch if policy asks for one and the engine
// can abort it; says in the exchange why not otherwise. On vLLM it also gives it an id of the
// door's.
void FollowFlips(Exchange& x);
// On the shard's thread, after each new table.
void TellFlips(Shard& shard);

// Aborts a request at its engine when its row flips. Belongs to the request's exchange, and so to
// one shard and its thread.
class FlipWatch {
 public:
  explicit FlipWatch(Exchange& x);
  ~FlipWatch();
  FlipWatch(const FlipWatch&) = delete;
  FlipWatch& operator=(const FlipWatch&) = delete;
  void OnTable(const proxy::DoorTable& table);
  // The door has asked for its end.
  bool flipped() const { return flipped_; }

 private:
  struct Aborting;
  static Task<void> AbortUntilOver(Shard& shard, std::shared_ptr<Aborting> it);
  // The reference number `i` is unwanted.
  void Abort(size_t i);

  Exchange& x_;
  bool flipped_ = false;
  std::vector<bool> unwanted_;          // by reference
  std::shared_ptr<Aborting> aborting_;  // ids that are aborted until the request is over
};

}  // namespace lorry::door
