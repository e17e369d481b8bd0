#include "tests/sim/answers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::sim {
namespace {

constexpr size_t kRemembered = 16;  // overrides of a pool, by a leader
constexpr int64_t kOnItsWayMs = 15'000;
constexpr int64_t kWeekMs = int64_t{7} * 24 * 3'600'000;

bool IsVerdict(std::string_view reason) {
  return reason == "POISONED" || reason == "REFUSED" || reason == "STALLS_ENGINES";
}

}  // namespace

// Nor does a mark count that was asked for and is not answered yet.
void Answers::Forgotten(const MemberId& member) {
  marks_.erase(member);
  for (auto& [request, call] : open_) {
    auto* mark = std::get_if<sync::MemberMarked>(&call);
    if (mark != nullptr && mark->member == member) mark->why.clear();
  }
}

void Answers::Asked(const sync::Event& call) {
  if (const auto* lease = std::get_if<sync::LeaseAsked>(&call)) {
    open_[lease->request] = call;
    if (lease->ttl_ms > 0) given_back_.erase({lease->holder, lease->selector.adapter});
  }
  if (const auto* mark = std::get_if<sync::MemberMarked>(&call)) {
    open_[mark->request] = call;
    Forgotten(mark->member);
    std::get<sync::MemberMarked>(open_[mark->request]).why = mark->why.empty() ? " " : mark->why;
  }
  if (const auto* pin = std::get_if<sync::OverrideSet>(&call)) {
    open_[pin->request] = call;
    ++times_asked_[pin->request_id];
  }
}

void Answers::Replied(const sync::Reply& reply) {
  const auto call = open_.extract(reply.request);
  if (call.empty()) return;
  if (const auto* lease = std::get_if<sync::LeaseAsked>(&call.mapped())) Judge(*lease, reply);
  if (const auto* pin = std::get_if<sync::OverrideSet>(&call.mapped())) Judge(*pin, reply);
  // Of several the last counts, which is not answered yet.
  const auto* mark = std::get_if<sync::MemberMarked>(&call.mapped());
  if (mark != nullptr && !mark->why.empty() && reply.status.ok()) marks_[mark->member] = *mark;
}

void Answers::Judge(const sync::LeaseAsked& ask, const sync::Reply& reply) {
  const std::string who = absl::StrCat("the lease that ", ask.holder, " asked for ");
  const std::string reason(ReasonOf(reply.status));
  if ((ask.ttl_ms > kWeekMs) != (reason == "MESSAGE_INVALID"))
    return Violate(who + "is answered " + reason);
  if (ask.ttl_ms <= 0 && !reply.status.ok())
    return Violate(absl::StrCat(ask.holder, " cannot give back what it leased: ", reason));
  if (IsVerdict(reason)) return JudgeVerdict(reason, ask.selector.adapter);
  if (!reply.status.ok()) return;
  if (ask.ttl_ms <= 0) {
    const bool asks_again = std::ranges::any_of(open_, [&](const auto& call) {
      const auto* later = std::get_if<sync::LeaseAsked>(&call.second);
      return later != nullptr && later->request > ask.request && later->holder == ask.holder;
    });
    if (!asks_again) given_back_[{ask.holder, ask.selector.adapter}].push_back(ask.selector);
    return;
  }
  const sync::Resolved& resolved = reply.resolved;
  const VersionKey& version = resolved.version.key;
  const bool is_current = ask.selector.kind != fleet::Selector::Kind::kNumber ||
                          version.run <= store_.adapters().at(version.adapter).current_run;
  if (!MayName(ask.selector, version) || !is_current ||
      resolved.version.digest != store_.Digest(version))
    return Violate(absl::StrCat(who, "is of ", ToString(version)));
  if (resolved.loaded > resolved.members || (resolved.members > 0) == resolved.renders.empty())
    return Violate(who + "counts its engines wrongly");
}

// Whoever was given leave to try it and was lost counts as one that hangs.
void Answers::JudgeVerdict(const std::string& reason, const AdapterName& adapter) {
  if (reason != "STALLS_ENGINES" && !sim_.lives.IsAnyToBlame(adapter))
    Violate(absl::StrCat("a call is refused as ", reason, ", and no engine minded any version of ",
                         adapter.value));
}

void Answers::Says(const std::vector<sync::MemberStatus>& members) {
  using Standing = sync::MemberStanding;
  for (const sync::MemberStatus& said : members) {
    const auto mark = marks_.find(said.member);
    const bool needs_reason =
        said.standing == Standing::kExcluded || said.standing == Standing::kJoining ||
        said.standing == Standing::kAsleep || said.standing == Standing::kWedged;
    if (needs_reason && said.reason.empty())
      Violate(absl::StrCat("nobody says why ", said.member.value, " is not ready"));
    if (mark == marks_.end()) continue;
    const bool may_serve = said.standing == Standing::kReady ||
                           said.standing == Standing::kAsleep || said.standing == Standing::kWedged;
    const bool is_out = said.standing == Standing::kExcluded;
    if (mark->second.mark == sync::MemberMark::kExcluded &&
        (may_serve || (is_out && said.reason != mark->second.why)))
      Violate(absl::StrCat(said.member.value, " was taken out by an operator, and is not"));
    if (mark->second.mark != sync::MemberMark::kDead && said.standing == Standing::kDead)
      Violate(absl::StrCat(said.member.value, " is said to be dead, and nobody said so"));
  }
}

void Answers::JudgeEpoch(const sync::OverrideSet& ask, const sync::Reply& reply) {
  if (!ask.version.has_value() && reply.epoch.value != 0)
    return Violate("a pin that is lifted is answered by an epoch");
  if (reply.epoch.value != 0 &&
      sim_.oracle.IsAnothers(ask.adapter, ask.pool, reply.epoch, *ask.version))
    Violate(absl::StrCat("a pin to ", ToString(*ask.version), " is answered by epoch ",
                         reply.epoch.value, ", which is another's"));
}

// Whoever asks again by the same name is told the same, and may not mean something else.
void Answers::Judge(const sync::OverrideSet& ask, const sync::Reply& reply) {
  if (reply.status.ok()) JudgeEpoch(ask, reply);
  if (IsVerdict(ReasonOf(reply.status))) JudgeVerdict(ReasonOf(reply.status), ask.adapter);
  if (ask.request_id.empty() || were_gone_.contains(ask.adapter)) return;
  std::vector<Once>& once = once_[{ask.adapter, ask.pool}];
  const auto before = std::ranges::find(once, ask.request_id, &Once::request_id);
  const bool is_reused = ReasonOf(reply.status) == "REQUEST_ID_REUSED";
  if (before == once.end()) {
    // What was asked first may have happened, though nobody was told.
    if (is_reused && times_asked_[ask.request_id] < 2)
      return Violate("a pin is said to be asked for twice, and was not");
    if (!reply.status.ok()) return;
    once.push_back({ask.request_id, ask.version, reply.epoch});
    if (once.size() > kRemembered) once.erase(once.begin());
    return;
  }
  const bool is_same = before->version == ask.version;
  if (is_same ? !reply.status.ok() || reply.epoch != before->epoch : !is_reused)
    Violate(absl::StrCat("who asks again for pin ", ask.request_id,
                         " is told something else: ", reply.status.ToString()));
}

void Answers::SaysLeases(const std::vector<sync::LeaseStatus>& leases) {
  for (const auto& [lease, left_ms] : leases) {
    const VersionKey& version = lease.version.key;
    if (left_ms > lease.ttl_ms)
      Violate(absl::StrCat("the lease of ", lease.holder, " lasts longer than it was asked for"));
    const auto given_back = given_back_.find({lease.holder, version.adapter});
    if (given_back == given_back_.end()) continue;
    if (std::ranges::any_of(given_back->second, [&](const fleet::Selector& selector) {
          return MayName(selector, version);
        }))
      Violate(absl::StrCat(lease.holder, " has given back ", ToString(version),
                           ", and still has a lease of it"));
  }
}

void Answers::Forget() {
  once_.clear();
  given_back_.clear();
  open_.clear();
  marks_.clear();
  stored_at_.clear();
}

void Answers::Heard(const sync::Event& change) {
  if (const auto* stored = std::get_if<sync::VersionStored>(&change))
    stored_at_[stored->version.key] = sim_.now();
  if (const auto* deleted = std::get_if<sync::VersionDeleted>(&change))
    stored_at_.erase(deleted->version);
  if (const auto* deleted = std::get_if<sync::AdapterDeleted>(&change)) {
    were_gone_.insert(deleted->adapter);
    std::erase_if(once_, [&](const auto& its) { return its.first.first == deleted->adapter; });
    std::erase_if(given_back_,
                  [&](const auto& its) { return its.first.second == deleted->adapter; });
    std::erase_if(stored_at_,
                  [&](const auto& its) { return its.first.adapter == deleted->adapter; });
  }
}

bool Answers::IsLongStored(const VersionKey& version) const {
  const auto since = stored_at_.find(version);
  return since != stored_at_.end() &&
         sim_.now() - std::max(since->second, listens_since_) > kOnItsWayMs;
}

// --- watches

void Answers::Watched(sync::WatchId watch, const VersionKey& version, const PoolName& pool) {
  watches_[watch] = {{version.adapter, pool}, version};
}

void Answers::Told(sync::WatchId id, const sync::WatchEvent& event) {
  const auto it = watches_.find(id);
  if (it == watches_.end()) return;
  Watch& watch = it->second;
  const std::string of = "the watch of " + ToString(watch.version);
  if (watch.is_over) return Violate(of + " goes on after its end");
  if (closed_.contains(id)) return Violate(of + " is told something though nobody is there");
  watch.is_over = event.final;
  if (const std::string why = WhyUntrue(watch, event); !why.empty())
    Violate(absl::StrCat(of, " is told what is not so: ", why));
}

std::string Answers::WhyUntrue(const Watch& watch, const sync::WatchEvent& event) const {
  using State = sync::WatchEvent::State;
  const auto& [adapter, pool] = watch.pool;
  if (event.done > event.members) return "more engines than there are have it";
  const bool is_decided = event.state == State::kCommitted || event.state == State::kActive;
  if (is_decided && sim_.oracle.IsAnothers(adapter, pool, event.epoch, watch.version))
    return absl::StrCat("epoch ", event.epoch.value, " is another version's");
  if (!event.final) return "";
  const auto policies = store_.PoliciesSince(adapter, 0);
  const std::string& reason = event.reason;
  switch (event.state) {
    case State::kActive:
      return event.epoch.value == 0 ? "it was decided by no epoch" : "";
    case State::kSuperseded:
      return event.superseded_by == watch.version || event.superseded_by.adapter != adapter
                 ? "it is succeeded by " + ToString(event.superseded_by)
                 : "";
    case State::kStored:
      return "";
    case State::kFailed:
      break;
    default:
      return "it ends before its end";
  }
  if (reason.empty()) return "nobody says why it failed";
  if (reason == "UNKNOWN_VERSION" && IsLongStored(watch.version)) return "it is stored";
  if (reason == "RUN_FENCED" && store_.adapters().at(adapter).current_run <= watch.version.run)
    return "no newer run was opened";
  const auto never = [](const fleet::AdapterPolicy& policy) {
    return policy.skip == fleet::SkipMode::kNever;
  };
  if (reason == "SYNC_BACKLOG" && std::ranges::none_of(policies, never)) return "nothing waits";
  // Whoever was given leave to try it and was lost counts as one that hangs.
  if (IsVerdict(reason) && reason != "STALLS_ENGINES" && !sim_.lives.IsToBlame(watch.version))
    return reason + ", and no engine minded it";
  return "";
}

}  // namespace lorry::sim
