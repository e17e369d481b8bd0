#include "services/adapter_store/images/piece_shares.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::store {

std::shared_ptr<PieceShares> PieceShares::Create(size_t pieces_max) {
  return std::shared_ptr<PieceShares>(new PieceShares(pieces_max));
}

std::shared_ptr<PieceShares::Share> PieceShares::Open(const std::string& owner) {
  return std::make_shared<Share>(shared_from_this(), owner);
}

PieceShares::Share::~Share() { (void)Resize(0); }

absl::Status PieceShares::Share::Resize(size_t pieces) {
  const size_t wanted = pieces - std::min(pieces, kFree);
  MutexLock lock(all_->mutex_);
  const size_t had = all_->taken_by_[owner_];
  const size_t own = had - taken_ + wanted, all = all_->taken_ - taken_ + wanted;
  if (wanted > taken_ && own > all_->pieces_max_ - std::min(all, all_->pieces_max_)) {
    // It is no fault of this upload, which would be taken if others were not open: clients try again.
    return Error(
        absl::StatusCode::kResourceExhausted, "SERVER_BUSY",
        absl::StrCat("no more scattered pieces can be remembered: the open uploads",
                     owner_.empty() ? "" : " of ", owner_, " lie in ", had, ", all together in ",
                     all_->taken_, "; try again once some have been ",
                     "committed or aborted, or send in order, for which there is room"));
  }
  taken_ = wanted;
  all_->taken_ = all;
  all_->taken_by_[owner_] = own;
  if (own == 0) all_->taken_by_.erase(owner_);
  return absl::OkStatus();
}

}  // namespace lorry::store
