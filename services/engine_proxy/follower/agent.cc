#include "services/engine_proxy/follower/agent.h"

#include <filesystem>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::proxy {
namespace {

// As the leader's fetcher judges it: what is permanent there is so here.
absl::Status StatusOf(const FetchFailed& failed) {
  const absl::StatusCode code = failed.away        ? absl::StatusCode::kUnavailable
                                : failed.permanent ? absl::StatusCode::kDataLoss
                                                   : absl::StatusCode::kInternal;
  return Error(code, failed.reason, failed.detail);
}

}  // namespace

Agent::Agent(OpenShelf open, transfer::TransportSet& transports, ManifestSource source,
             OnFetched on_fetched, OpenLast open_last)
    : open_(std::move(open)),
      transports_(transports),
      source_(std::move(source)),
      on_fetched_(std::move(on_fetched)),
      open_last_(std::move(open_last)),
      nobody_({}, JournalId(), "", [] { return std::set<std::string>(); }) {}

Agent::~Agent() {
  MutexLock turn(turn_);
  holding_.fetcher.reset();
  if (holding_.shelf != nullptr) holding_.shelf->Close(/*engine_ended=*/false);
}

absl::StatusOr<bool> Agent::Follow(const FollowerOrder& order, Tick until) {
  {
    MutexLock turn(turn_);
    LORRY_RETURN_IF_ERROR(TakeOn(order));
    if (!order.place.has_value()) return true;
    const std::string path = holding_.shelf->PathOf(order.place->name);
    if (order.place->path != path)
      return Error(absl::StatusCode::kFailedPrecondition, "IMAGE_DIR_DIFFERS",
                   absl::StrCat("the engine is to read ", order.place->path, ", which is ", path,
                                " on this node; give both the same --image-dir"));
    if (!paths_.contains(path))
      return Error(absl::StatusCode::kAborted, "ORDER_STALE",
                   absl::StrCat("a later order has no ", order.place->name.value));
    Pursue(*order.place, order.doubts);
  }
  return Await(order.place->name, until);
}

absl::Status Agent::TakeOn(const FollowerOrder& order) {
  if (holding_.shelf == nullptr || order.journal != journal_)
    LORRY_RETURN_IF_ERROR(OpenFor(order.journal));
  if (order.life == life_ && order.revision < revision_) return absl::OkStatus();
  life_ = order.life;
  revision_ = order.revision;
  paths_ = order.paths;
  Keep(order.paths);
  return absl::OkStatus();
}

absl::Status Agent::OpenFor(const JournalId& journal) {
  // Its events find their entries until it has ended.
  holding_.fetcher.reset();
  holding_.last.reset();
  holding_.shelf.reset();
  {
    MutexLock lock(mutex_);
    entries_.clear();
  }
  LORRY_ASSIGN_OR_RETURN(holding_.shelf, open_(journal));
  holding_.last = open_last_(*holding_.shelf);
  holding_.fetcher = std::make_unique<Fetcher>(
      *holding_.shelf, transports_, source_, nobody_, /*relay=*/nullptr, /*ahead=*/nullptr,
      [this](const Event& event) { OnEvent(event); }, on_fetched_, holding_.last.get());
  journal_ = journal;
  revision_ = 0;
  return absl::OkStatus();
}

void Agent::Keep(const std::set<std::string>& paths) {
  ImageShelf& shelf = *holding_.shelf;
  shelf.RemoveForeign(paths);
  std::set<OpId> cancelled;
  std::set<EngineName> busy;
  {
    MutexLock lock(mutex_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      const auto& [name, entry] = *it;
      const bool works = entry.phase == Phase::kFetching || entry.phase == Phase::kHashing;
      const bool stays = paths.contains(shelf.PathOf(name));
      if (works) busy.insert(name);
      if (works && !stays) cancelled.insert(entry.op);
      // What works ends by an event, and what it leaves goes with the next order.
      it = works || stays ? std::next(it) : entries_.erase(it);
    }
  }
  for (const OpId op : cancelled) holding_.fetcher->Cancel(op);
  for (const std::string& path : shelf.Paths()) {
    const EngineName name(std::filesystem::path(path).filename().string());
    if (!paths.contains(path) && shelf.PathOf(name) == path && !busy.contains(name))
      (void)shelf.Delete(name);
  }
}

void Agent::Pursue(const Placement& placement, uint64_t doubts) {
  const bool is_there = holding_.shelf->Has(placement.name);
  const auto& [key, digest, traits, render] = placement.contents;
  bool hash = false;
  OpId op = 0;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(placement.name);
    // What an earlier process placed, or a load has failed of, is believed once it was read again.
    hash = is_there && found == entries_.end();
    if (found != entries_.end()) {
      const Phase phase = found->second.phase;
      if (phase == Phase::kFetching || phase == Phase::kHashing) return;
      if (phase == Phase::kFailed) return;  // which is told before it is tried again
      hash = phase == Phase::kPlaced && is_there;
      const bool is_proven =
          doubts == 0 || (found->second.doubts == doubts && found->second.life == life_);
      if (hash && is_proven) return;
    }
    op = ++last_op_;
    entries_[placement.name] = {.op = op,
                                .phase = hash ? Phase::kHashing : Phase::kFetching,
                                .doubts = doubts,
                                .life = life_};
  }
  if (hash) return holding_.fetcher->Hash({op, placement.name, digest, render, placement.path});
  holding_.fetcher->Start({.op = op,
                           .name = placement.name,
                           .key = key,
                           .digest = digest,
                           .traits = traits,
                           .render = render});
}

absl::StatusOr<bool> Agent::Await(const EngineName& name, Tick until) {
  const SteadyClock clock;
  MutexLock lock(mutex_);
  while (true) {
    const auto found = entries_.find(name);
    if (found == entries_.end()) return false;  // cancelled by another order
    switch (found->second.phase) {
      case Phase::kPlaced:
        return true;
      case Phase::kBroken:
        return false;
      case Phase::kFailed: {
        const absl::Status why = found->second.why;
        entries_.erase(found);
        return why;
      }
      case Phase::kHashing:
      case Phase::kFetching:
        break;
    }
    const int64_t left_ms = until - clock.Now();
    if (left_ms <= 0) return false;
    changed_.wait_for(mutex_, std::chrono::milliseconds(left_ms));
  }
}

void Agent::OnEvent(const Event& event) {
  if (const auto* done = std::get_if<FetchDone>(&event)) return Settle(done->op, Phase::kPlaced);
  if (const auto* failed = std::get_if<FetchFailed>(&event))
    return Settle(failed->op, Phase::kFailed, StatusOf(*failed));
  if (const auto* hashed = std::get_if<DirectoryHashed>(&event))
    return Settle(hashed->op, hashed->matches ? Phase::kPlaced : Phase::kBroken);
  if (const auto* cancelled = std::get_if<FetchCancelled>(&event)) Drop(cancelled->op);
}

void Agent::Settle(OpId op, Phase phase, absl::Status why) {
  MutexLock lock(mutex_);
  for (auto& [name, entry] : entries_) {
    if (entry.op != op) continue;
    entry.phase = phase;
    entry.why = std::move(why);
  }
  changed_.notify_all();
}

void Agent::Drop(OpId op) {
  MutexLock lock(mutex_);
  std::erase_if(entries_, [op](const auto& entry) { return entry.second.op == op; });
  changed_.notify_all();
}

std::map<std::string, uint64_t> Agent::fetched_bytes() const {
  MutexLock turn(turn_);
  return holding_.fetcher == nullptr ? std::map<std::string, uint64_t>()
                                     : holding_.fetcher->fetched_bytes();
}

Fetcher::Sources Agent::sources() const {
  MutexLock turn(turn_);
  return holding_.fetcher == nullptr ? Fetcher::Sources() : holding_.fetcher->sources();
}

size_t Agent::directories() const {
  MutexLock lock(mutex_);
  size_t placed = 0;
  for (const auto& [name, entry] : entries_) placed += entry.phase == Phase::kPlaced;
  return placed;
}

}  // namespace lorry::proxy
