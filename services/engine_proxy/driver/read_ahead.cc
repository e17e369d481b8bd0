#include "services/engine_proxy/driver/read_ahead.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace lorry::proxy {
namespace {

// A trainer may take its time, and the store's ticket lives for as long.
constexpr Tick kDeadlineMs = 600'000;

}  // namespace

// One image. What is not the transport's is guarded by the owner's mutex while it is in the list,
// and belongs to whoever took it out afterwards.
struct ReadAhead::Reading {
  explicit Reading(ComingImage coming)
      : image(std::move(coming)), leaves(transfer::LeafCount(image.bytes)) {}

  const ComingImage image;
  std::unique_ptr<transfer::ImageFile> file;  // null: not there yet, and nothing runs
  std::optional<transfer::Base> base;
  std::shared_ptr<transfer::Transfer> transfer;

  Mutex mutex;
  CondVar ended_changed;
  bool ended LORRY_GUARDED_BY(mutex) = false;  // the transport has let go of the file
  uint64_t spared LORRY_GUARDED_BY(mutex) = 0;
  std::vector<std::optional<transfer::Checksum>> leaves LORRY_GUARDED_BY(mutex);  // in the file
};

ReadAhead::ReadAhead(ImageShelf& shelf, transfer::Transport& transport, LastImages* last)
    : shelf_(shelf),
      transport_(transport),
      last_(last),
      executor_({.name = "ahead", .threads = 1, .waiting_max = kReadingsMax}) {
  shelf_.OnFull([this] { GiveUp(); });
}

ReadAhead::~ReadAhead() {
  executor_.Stop();
  GiveUp();
}

void ReadAhead::OnFetched(const AdapterName& adapter, uint64_t bytes,
                          const std::string& transport) {
  if (shelf_.IsShared()) return;
  std::set<AdapterName> followed;
  {
    MutexLock lock(mutex_);
    const auto known = followed_.find(adapter);
    // However this one came: the next may be as large.
    if (known != followed_.end()) return (void)(known->second = bytes);
    if (transport != transport_.name() || followed_.size() == kAdaptersMax) return;
    followed_[adapter] = bytes;
    for (const auto& [each, last] : followed_) followed.insert(each);
  }
  follow_(followed);
}

void ReadAhead::Begin(ComingImage image) {
  {
    MutexLock lock(mutex_);
    const auto followed = followed_.find(image.key.adapter);
    if (followed == followed_.end() || image.bytes == 0 || image.bytes / 2 > followed->second)
      return;
  }
  auto reading = std::make_shared<Reading>(std::move(image));
  // Refused when several wait already: this one is read when it is a version.
  (void)executor_.Submit([this, reading] { Start(reading); });
}

void ReadAhead::Start(const std::shared_ptr<Reading>& reading) {
  std::vector<std::shared_ptr<Reading>> superseded;
  {
    MutexLock lock(mutex_);
    // A newer attempt at the same version, or a version after one that was never asked for.
    const AdapterName& adapter = reading->image.key.adapter;
    for (auto it = readings_.begin(); it != readings_.end();) {
      const bool stays = (*it)->image.key.adapter != adapter;
      if (!stays) superseded.push_back(*it);
      it = stays ? std::next(it) : readings_.erase(it);
    }
    if (readings_.size() == kReadingsMax) {
      superseded.push_back(readings_.front());
      readings_.pop_front();
    }
    readings_.push_back(reading);
  }
  for (const std::shared_ptr<Reading>& other : superseded) Discard(*other);
  absl::StatusOr<std::unique_ptr<transfer::ImageFile>> file =
      shelf_.AcquireSpare(reading->image.bytes);
  std::optional<transfer::Base> base;
  if (last_ != nullptr && file.ok()) {
    base = last_->BaseOf(reading->image.key.adapter, reading->image.bytes);
  }
  MutexLock lock(mutex_);
  const auto it = std::ranges::find(readings_, reading);
  if (!file.ok()) {
    spdlog::debug("not reading ahead: {}", std::string(file.status().message()));
    if (it != readings_.end()) readings_.erase(it);
  } else if (it == readings_.end()) {
    shelf_.GiveBack(*std::move(file));  // its version was fetched meanwhile
  } else {
    reading->file = *std::move(file);
    reading->base = std::move(base);
    Run(reading);
  }
}

void ReadAhead::Run(const std::shared_ptr<Reading>& reading) {
  transfer::FetchRequest request;
  request.address = reading->image.source.address;
  request.ticket = reading->image.source.ticket;
  request.destination = reading->file->writable();
  request.base = std::move(reading->base);
  request.options.deadline_ms = kDeadlineMs;
  const auto on_range = [reading](const transfer::Range& range,
                                  std::span<const transfer::Checksum> pieces) {
    const std::vector<transfer::Range> cut =
        transfer::CutRanges(std::span(&range, 1), transfer::kLeafBytes);
    MutexLock lock(reading->mutex);
    for (size_t i = 0; i < std::min(cut.size(), pieces.size()); ++i) {
      if (transfer::IsLeaf(cut[i], reading->image.bytes))
        reading->leaves[cut[i].offset / transfer::kLeafBytes] = pieces[i];
    }
  };
  const auto on_done = [reading](const transfer::Outcome& outcome) {
    spdlog::debug("read ahead {} of {} bytes of {}: {}", outcome.bytes, reading->image.bytes,
                  ToString(reading->image.key), outcome.status.ToString());
    MutexLock lock(reading->mutex);
    reading->ended = true;
    reading->spared = outcome.spared;
    reading->ended_changed.notify_all();
  };
  reading->transfer = transport_.Fetch(std::move(request), on_range, on_done);
}

// Waits until the transport has let go of the file, which it does soon after it was told to.
std::unique_ptr<transfer::ImageFile> ReadAhead::End(Reading& reading) {
  if (reading.file == nullptr) return nullptr;
  reading.transfer->Cancel();
  MutexLock lock(reading.mutex);
  while (!reading.ended) reading.ended_changed.wait(reading.mutex);
  reading.transfer.reset();  // whose callbacks hold the reading
  return std::move(reading.file);
}

void ReadAhead::Discard(Reading& reading) {
  if (std::unique_ptr<transfer::ImageFile> file = End(reading)) shelf_.GiveBack(std::move(file));
}

std::optional<ReadAhead::Draft> ReadAhead::Take(const VersionKey& key, uint64_t bytes,
                                                std::span<const transfer::Checksum> leaves) {
  std::shared_ptr<Reading> reading;
  {
    MutexLock lock(mutex_);
    const auto it =
        std::ranges::find_if(readings_, [&](const auto& each) { return each->image.key == key; });
    if (it == readings_.end()) return std::nullopt;
    reading = *it;
    readings_.erase(it);
  }
  Draft draft{.file = End(*reading), .proven = {}};
  if (draft.file == nullptr) return std::nullopt;
  if (reading->image.bytes == bytes && draft.file->IsWhole()) {
    MutexLock lock(reading->mutex);
    draft.spared = reading->spared;
    for (size_t i = 0; i < reading->leaves.size(); ++i) {
      // A set that is full leaves out what is then read again.
      if (reading->leaves[i] == leaves[i])
        draft.proven.Add(transfer::LeafRange(i, bytes)).IgnoreError();
    }
  }
  if (draft.proven.empty()) {
    shelf_.GiveBack(std::move(draft.file));
    return std::nullopt;
  }
  return draft;
}

void ReadAhead::GiveUp() {
  std::list<std::shared_ptr<Reading>> all;
  {
    MutexLock lock(mutex_);
    all.swap(readings_);
  }
  for (const std::shared_ptr<Reading>& reading : all) Discard(*reading);
}

}  // namespace lorry::proxy
