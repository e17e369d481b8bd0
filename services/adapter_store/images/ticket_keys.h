// The ticket keys of a store: one that mints, and the one before it, which verifies until its
// tickets have expired. Kept in a file of mode 0600, so that a restart ends no transfer. While that
// cannot be written, on a full disk, the key that is there goes on, so that engines can fetch.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/mutex.h"
#include "lib/transfer/ticket.h"

namespace lorry::store {

class RotatingKeys {
 public:
  struct Options {
    std::string path;           // empty: kept in memory only
    int64_t life_ms = 600'000;  // of a ticket; a key mints for as long
    std::function<int64_t()> now_unix_ms = &transfer::NowUnixMs;
  };
  // FAILED_PRECONDITION DATA_DIR_UNUSABLE when the file cannot be read, or has no key and cannot be
  // written.
  static absl::StatusOr<std::unique_ptr<RotatingKeys>> Open(Options options);

  // Like TicketKeys::Mint, with a key that is younger than a life where the file can be written.
  absl::StatusOr<std::string> Mint(const transfer::TicketClaims& claims) LORRY_EXCLUDES(mutex_);
  // What verifies: for transports.
  const transfer::TicketKeys& keys() const { return keys_; }

 private:
  struct Key {
    uint32_t id;
    int64_t made_unix_ms;
    transfer::TicketKeys::Secret secret;
  };
  explicit RotatingKeys(Options options) : options_(std::move(options)) {}
  absl::Status Load();
  absl::Status RotateIfOld() LORRY_EXCLUDES(mutex_);
  absl::Status Save(const std::vector<Key>& kept) const;

  const Options options_;
  transfer::TicketKeys keys_;
  Mutex mutex_;
  std::vector<Key> kept_ LORRY_GUARDED_BY(mutex_);       // oldest first, at most two
  int64_t failed_unix_ms_ LORRY_GUARDED_BY(mutex_) = 0;  // when the file could not be written
};

}  // namespace lorry::store
