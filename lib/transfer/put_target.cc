#include "lib/transfer/put_target.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/error.h"

namespace lorry::transfer {

PutTarget::PutTarget(Options options)
    : options_(std::move(options)), received_(options_.received) {}

std::shared_ptr<PutTarget> PutTarget::Create(Options options) {
  return std::shared_ptr<PutTarget>(new PutTarget(std::move(options)));
}

PutTarget::Slot::~Slot() {
  if (target_ != nullptr) target_->Release(*this);
}

absl::StatusOr<PutTarget::Slot> PutTarget::Begin(const Range& range) {
  LORRY_RETURN_IF_ERROR(CheckRange(range, image_bytes()));
  Slot slot;
  MutexLock lock(mutex_);
  if (!ended_.ok()) return ended_;
  const bool beside = received_.Overlaps(range);
  if (in_flight_.Overlaps(range) || (beside && beside_ == kBesideMax)) {
    return Error(absl::StatusCode::kUnavailable, "RANGE_BUSY",
                 absl::StrCat("range ", ToString(range), " is just being received"));
  }
  LORRY_RETURN_IF_ERROR(in_flight_.Add(range));
  slot.range_ = range;
  if (beside) {
    ++beside_;
    slot.beside_.resize(range.length);
    slot.destination_ = slot.beside_;
  } else {
    slot.destination_ = options_.bytes.subspan(range.offset, range.length);
  }
  ++open_;
  slot.target_ = shared_from_this();
  return slot;
}

absl::Status PutTarget::Finish(Slot slot, std::span<const Checksum> claimed) {
  const Range range = slot.range();
  LORRY_RETURN_IF_ERROR(VerifyRange(range, slot.destination(), claimed, {}, image_bytes()));
  std::vector<Range> fresh;
  {
    MutexLock lock(mutex_);
    if (!ended_.ok()) return ended_;
    fresh = received_.Missing(range);
    if (!slot.beside_.empty()) {
      LORRY_RETURN_IF_ERROR(MergeBeside(slot));
    }
    LORRY_RETURN_IF_ERROR(AddReceived(range));
  }
  if (!options_.on_range) return absl::OkStatus();
  for (const Range& piece : fresh) {
    // Usually the whole range is new and the claimed checksums are its own.
    absl::Status accepted =
        piece == range
            ? options_.on_range(range, claimed)
            : options_.on_range(
                  piece,
                  PieceChecksums(piece.offset, options_.bytes.subspan(piece.offset, piece.length)));
    if (!accepted.ok()) {
      End(accepted);
      return accepted;
    }
  }
  return absl::OkStatus();
}

absl::Status PutTarget::AddReceived(const Range& range) {
  LORRY_RETURN_IF_ERROR(received_.Add(range));
  if (!options_.on_pieces) return absl::OkStatus();
  absl::Status kept = options_.on_pieces(received_.pieces());
  // The pieces are more only where the range touches none of them, so that it can be taken out again.
  if (!kept.ok()) received_.Remove(range);
  return kept;
}

absl::Status PutTarget::MergeBeside(const Slot& slot) {
  const Range range = slot.range_;
  const std::byte* beside = slot.beside_.data();
  for (const Range& there : received_.Common(range)) {
    if (std::memcmp(options_.bytes.data() + there.offset, beside + (there.offset - range.offset),
                    there.length) != 0) {
      ended_ = Error(absl::StatusCode::kAborted, "RANGE_CONFLICT",
                     absl::StrCat("range ", ToString(range),
                                  " came with other bytes than before; "
                                  "the upload is dead, begin another attempt"));
      return ended_;
    }
  }
  for (const Range& fresh : received_.Missing(range)) {
    std::memcpy(options_.bytes.data() + fresh.offset, beside + (fresh.offset - range.offset),
                fresh.length);
  }
  return absl::OkStatus();
}

void PutTarget::Release(const Slot& slot) {
  MutexLock lock(mutex_);
  in_flight_.Remove(slot.range_);
  if (!slot.beside_.empty()) --beside_;
  --open_;
}

void PutTarget::End(absl::Status status) {
  LORRY_CHECK(!status.ok());
  MutexLock lock(mutex_);
  if (ended_.ok()) ended_ = std::move(status);
}

bool PutTarget::idle() const {
  MutexLock lock(mutex_);
  return open_ == 0;
}

absl::Status PutTarget::ended() const {
  MutexLock lock(mutex_);
  return ended_;
}

absl::StatusOr<bool> PutTarget::Has(const Range& range) const {
  MutexLock lock(mutex_);
  if (received_.Contains(range)) return true;
  if (!ended_.ok()) return ended_;
  return false;
}

RangeSet PutTarget::received() const {
  MutexLock lock(mutex_);
  return received_;
}

std::vector<Range> PutTarget::missing() const {
  MutexLock lock(mutex_);
  return received_.Missing({0, image_bytes()});
}

std::vector<Range> PutTarget::in_flight() const {
  MutexLock lock(mutex_);
  std::vector<Range> awaited;
  for (const Range& range : received_.Missing({0, image_bytes()})) {
    const std::vector<Range> coming = in_flight_.Common(range);
    awaited.insert(awaited.end(), coming.begin(), coming.end());
  }
  return awaited;
}

}  // namespace lorry::transfer
