#include "services/engine_proxy/driver/followers.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::proxy {
namespace {

// A look at what a follower has needs no longer than the way there and back.
constexpr int64_t kLookMs = 0;
// How long a follower may keep the question while it fetches: the fetch may be cancelled meanwhile.
constexpr int64_t kWaitMs = 1'000;

}  // namespace

Followers::Followers(std::vector<Follower> nodes, JournalId journal, std::string life,
                     ListPaths list)
    : nodes_(std::move(nodes)),
      journal_(std::move(journal)),
      life_(std::move(life)),
      list_(std::move(list)) {}

size_t Followers::answering() const {
  MutexLock lock(mutex_);
  return nodes_.size() - silent_.size();
}

bool Followers::IsSilent(size_t node) const {
  MutexLock lock(mutex_);
  return silent_.contains(node);
}

FollowerOrder Followers::Order(const Placement* placement) {
  FollowerOrder order{.journal = journal_, .life = life_};
  if (placement != nullptr) order.place = *placement;
  // Listed and numbered under one lock, so that a higher number never tells of an earlier shelf.
  MutexLock lock(mutex_);
  order.revision = ++revision_;
  order.paths = list_();
  order.paths.insert(fetching_.begin(), fetching_.end());
  std::erase_if(doubts_, [&](const auto& entry) { return !order.paths.contains(entry.first); });
  const auto doubts = doubts_.find(placement == nullptr ? "" : placement->path);
  if (doubts != doubts_.end()) order.doubts = doubts->second;
  return order;
}

absl::StatusOr<bool> Followers::Ask(size_t node, const FollowerOrder& order, int64_t wait_ms) {
  const Follower& follower = nodes_[node];
  absl::StatusOr<bool> has = follower.ask(order, wait_ms);
  const bool silent = ReasonOf(has.status()) == "FOLLOWER_UNANSWERED";
  bool is_news = false;
  {
    MutexLock lock(mutex_);
    is_news = silent ? silent_.insert(node).second : silent_.erase(node) > 0;
  }
  if (is_news)
    spdlog::warn("follower {} {}", follower.address,
                 silent ? absl::StrCat("does not answer: ", has.status().message())
                        : std::string("answers again"));
  if (has.ok()) return has;
  return Error(has.status().code(), ReasonOf(has.status()),
               absl::StrCat("follower ", follower.address, ": ", has.status().message()));
}

absl::Status Followers::Begin(const Placement& placement) {
  if (empty()) return absl::OkStatus();
  {
    MutexLock lock(mutex_);
    fetching_.insert(placement.path);
  }
  const FollowerOrder order = Order(&placement);
  for (size_t node = 0; node < nodes_.size(); ++node)
    LORRY_RETURN_IF_ERROR(Ask(node, order, kLookMs).status());
  return absl::OkStatus();
}

absl::Status Followers::Await(const Placement& placement, const std::function<bool()>& cancelled,
                              const Waits& waits) {
  for (size_t node = 0, slow = nodes_.size(); node < nodes_.size();) {
    if (cancelled()) return absl::CancelledError("no longer wanted");
    LORRY_ASSIGN_OR_RETURN(const bool has, Ask(node, Order(&placement), kWaitMs));
    if (!has && std::exchange(slow, node) != node)
      waits(absl::StrCat("follower ", nodes_[node].address, " does not have ", placement.name.value,
                         " yet"));
    if (has) ++node;
  }
  return absl::OkStatus();
}

void Followers::End(const Placement& placement) {
  MutexLock lock(mutex_);
  if (const auto its = fetching_.find(placement.path); its != fetching_.end()) fetching_.erase(its);
}

void Followers::Doubt(const std::string& path) {
  if (empty()) return;
  MutexLock lock(mutex_);
  ++doubts_[path];
}

absl::Status Followers::Confirm(const Placement& placement) {
  const FollowerOrder order = Order(&placement);
  for (size_t node = 0; node < nodes_.size(); ++node) {
    LORRY_ASSIGN_OR_RETURN(const bool has, Ask(node, order, kLookMs));
    if (!has)
      return Error(absl::StatusCode::kUnavailable, "FOLLOWER_FETCHES",
                   absl::StrCat("follower ", nodes_[node].address, " does not have ",
                                placement.name.value, " any more, and gets it again"));
  }
  return absl::OkStatus();
}

void Followers::Tell() {
  if (empty()) return;
  const FollowerOrder order = Order(nullptr);
  for (size_t node = 0; node < nodes_.size(); ++node) {
    if (!IsSilent(node)) (void)Ask(node, order, kLookMs);
  }
}

}  // namespace lorry::proxy
