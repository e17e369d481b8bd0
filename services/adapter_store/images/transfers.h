// What tickets open: the store's side of bulk transfer. Mints tickets, and gives transports the
// mapping behind each.
//
// Thread-safe. OpenGet and OpenPut return at once; the work, which may touch the disk, runs on a
// few threads of this object.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/mutex.h"
#include "lib/blob/store.h"
#include "lib/runtime/executor.h"
#include "lib/transfer/server.h"
#include "lib/transfer/ticket.h"
#include "lib/transfer/transport_set.h"
#include "services/adapter_store/catalog/catalog.h"
#include "services/adapter_store/images/fan_out.h"
#include "services/adapter_store/images/ticket_keys.h"
#include "services/adapter_store/images/uploads.h"

namespace lorry::store {

struct Manifest {
  Version version;
  std::string leaves;  // 16 bytes each
  std::string ticket;
};

class Transfers final : public transfer::TransferHandler {
 public:
  struct Options {
    int64_t ticket_life_ms = 600'000;
    std::function<int64_t()> now_unix_ms = &transfer::NowUnixMs;
    FanOutOptions fan_out = {};
    // Images are read from the disk so much at a time, in turns, so that one of many GB keeps no
    // other waiting. 16 MiB: a tenth of a second of a slow disk.
    uint64_t load_bytes = uint64_t{16} << 20;
    // Told of each session that failed, on transports' threads.
    std::function<void(const transfer::FailedSession&)> on_failed =
        [](const transfer::FailedSession&) {};
  };
  // All outlive it.
  Transfers(Catalog& catalog, blob::Store& blobs, Uploads& uploads, RotatingKeys& keys,
            const Clock& clock, Options options);
  // Answers what was asked; later opens are refused. Before the objects above go.
  void Stop() { threads_.Stop(); }

  absl::StatusOr<std::string> PutTicket(const Upload& upload, std::string_view peer);
  // The right of `peer` to read an image, also while it is uploaded.
  absl::StatusOr<std::string> GetTicket(const BlobKey& blob, uint64_t image_bytes,
                                        std::string_view peer);
  // A version and the right of `peer` to read its image.
  absl::StatusOr<Manifest> OpenFetch(const VersionKey& key, std::string_view peer);
  // Where the one who offers `relay` may read the version's image but here, best first.
  absl::StatusOr<std::vector<transfer::Source>> JoinFanOut(const VersionKey& key,
                                                           const OfferedRelay& relay);

  void OpenGet(const transfer::TicketClaims& claims, GetOpened done) override;
  void OpenPut(const transfer::TicketClaims& claims, PutOpened done) override;
  void OnFailed(const transfer::FailedSession& failed) override { options_.on_failed(failed); }

 private:
  void Open(const BlobKey& blob, uint64_t image_bytes, GetOpened done) LORRY_EXCLUDES(mutex_);
  absl::StatusOr<std::shared_ptr<const blob::Mapping>> Map(const BlobKey& blob,
                                                           uint64_t image_bytes);
  void Load(const BlobKey& blob, const std::shared_ptr<const blob::Mapping>& mapping,
            uint64_t offset) LORRY_EXCLUDES(mutex_);
  absl::StatusOr<transfer::GetSource> SourceOf(const BlobKey& blob,
                                               std::shared_ptr<const blob::Mapping> mapping);

  Catalog& catalog_;
  blob::Store& blobs_;
  Uploads& uploads_;
  RotatingKeys& keys_;
  const Options options_;
  FanOut fan_out_;
  Mutex mutex_;
  // Images that somebody reads, so that a fan-out reads each from the disk once.
  std::map<BlobKey, std::weak_ptr<const blob::Mapping>> loaded_ LORRY_GUARDED_BY(mutex_);
  // Images that are being read from the disk, with who waits for each.
  std::map<BlobKey, std::vector<GetOpened>> loading_ LORRY_GUARDED_BY(mutex_);
  runtime::Executor threads_;  // last: its threads use the rest
};

}  // namespace lorry::store
