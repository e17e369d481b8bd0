// What may be remembered of uploads that arrive in pieces, over all of them.
//
// Each piece of an upload costs memory until its neighbours have come, and a publisher chooses how
// scattered it sends. So a publisher's uploads together may lie in as many pieces as the store has
// left for the others: one gets half of all there is, two get a third each, and whoever comes next
// always finds some. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "lib/base/mutex.h"
#include "lib/transfer/ranges.h"

namespace lorry::store {

class PieceShares : public std::enable_shared_from_this<PieceShares> {
 public:
  // 256 MB of memory. One publisher alone has half of it: twice the worst that one upload may do,
  // and twenty times the worst that an honest one does.
  static constexpr size_t kPiecesMax = 4 * transfer::RangeSet::kPiecesMax;
  // Of each upload, beside these, so that ranks that each send their part in order are taken in
  // whatever others do. As many as a ledger may name: after a restart all that it names is taken up.
  // 1 MB, and 256 MB over all uploads.
  static constexpr size_t kFree = 16'384;

  // What one upload takes; given back when it is destroyed.
  class Share {
   public:
    Share(std::shared_ptr<PieceShares> all, std::string owner)
        : all_(std::move(all)), owner_(std::move(owner)) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share();
    // The upload lies in so many pieces. RESOURCE_EXHAUSTED SERVER_BUSY, changing nothing, when
    // these are more than before and other uploads leave no room for them.
    absl::Status Resize(size_t pieces);

   private:
    const std::shared_ptr<PieceShares> all_;
    const std::string owner_;
    size_t taken_ = 0;  // guarded by all_->mutex_
  };

  static std::shared_ptr<PieceShares> Create(size_t pieces_max);
  // For an upload of `owner`; empty where the store knows no names.
  std::shared_ptr<Share> Open(const std::string& owner);

 private:
  explicit PieceShares(size_t pieces_max) : pieces_max_(pieces_max) {}

  const size_t pieces_max_;
  Mutex mutex_;
  size_t taken_ LORRY_GUARDED_BY(mutex_) = 0;
  std::map<std::string, size_t> taken_by_ LORRY_GUARDED_BY(mutex_);  // whoever has any
};

}  // namespace lorry::store
