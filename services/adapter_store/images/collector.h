// Garbage: files that no record needs any more, removed in the background.
//
// Two kinds. Blobs that the catalogue says are DELETING, once no ticket can name them: the file
// goes first, then the record, so that a crash between the two repeats the removal. They are found
// by an index, so that a sweep costs what is being deleted and not what is stored. And files without
// a record, left by a crash between the two steps.
//
// The first sweep looks at every file and every record: for files without a record, and for blobs
// that were doomed before there was an index. The files are listed before the records: a file is
// created after its record, so whatever is listed without one is garbage for good. Unless another
// catalogue named it: then this one is new or somebody else's, and knows nothing of it. One thread
// at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/blob/store.h"
#include "services/adapter_store/catalog/catalog.h"

namespace lorry::store {

class Collector {
 public:
  // Catalogue and blobs outlive it.
  Collector(Catalog& catalog, blob::Store& blobs, std::function<int64_t()> now_unix_ms)
      : catalog_(catalog), blobs_(blobs), now_unix_ms_(std::move(now_unix_ms)) {}

  // Removes what may go now; returns how many files went, or the first failure, which keeps none of
  // the others. What is still open is left for later.
  absl::StatusOr<int> Run();

 private:
  Catalog& catalog_;
  blob::Store& blobs_;
  struct Swept {
    int removed = 0;
    absl::Status failed;  // the first
  };
  bool Remove(const std::string& key, Swept& swept);
  absl::Status LookAtAll();

  const std::function<int64_t()> now_unix_ms_;
  bool looked_at_all_ = false;
  std::vector<std::string> orphans_;  // files without a record that are still there
};

}  // namespace lorry::store
