// kv::Store in one SQLite file: the embedded default. Write-ahead log, synced at every commit.
//
// One process at a time: a lock on `<path>.lock` is held while the store is open and goes with the
// process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lib/kv/store.h"

namespace lorry::kv {

struct SqliteOptions {
  std::string path;  // its directory must exist
  // Above, commits answer DISK_FULL; metadata of millions of versions stays below.
  int64_t bytes_max = 4ll << 30;
};

// FAILED_PRECONDITION ALREADY_LOCKED: another process has it open. DATA_LOSS DATABASE_CORRUPT: it
// fails SQLite's own check. RESOURCE_EXHAUSTED DISK_FULL, NOT_FOUND (no such directory),
// PERMISSION_DENIED.
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const SqliteOptions& options);

}  // namespace lorry::kv
