#include "tests/sim/sim_binder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/engine_proxy/machine/binding_name.h"

namespace lorry::sim {
namespace {

// Its own deadline, and what a slow disk and a slow turn add.
constexpr int64_t kAnswerMostMs = 100'000;

Digest DigestOf(uint64_t bytes) { return Digest{absl::StrCat("foreign-", bytes)}; }

}  // namespace

proxy::Event SimBinder::Draw(Prng& prng) {
  const std::string name = NameOf(prng.Below(kNames));
  const uint64_t ticket = ++last_ticket_;
  if (const std::string text = absl::StrCat("reserved ", member_, ticket); IsOneIn(text, 80)) {
    const std::string reserved = IsOneIn("words " + text, 500) ? "two words" : "l-v1-0123456789ab";
    calls_[ticket] = {reserved, IsOneIn("binds " + text, 500) ? "/foreign/0" : "", {}, sim_.now()};
    calls_[ticket].is_reserved = true;
    if (calls_[ticket].path.empty()) return proxy::UnbindAsked{ticket, reserved};
    return proxy::BindAsked{ticket, reserved, calls_[ticket].path};
  }
  bound_.erase(name);
  if (prng.Below(4) == 0) {
    calls_[ticket] = {name, "", {}, sim_.now()};
    return proxy::UnbindAsked{ticket, name};
  }
  const std::string path = absl::StrCat("/foreign/", prng.Below(kNames));
  // In place, as it may be while another call is still to read it; sometimes back to older bytes.
  if (!files_.contains(path) || prng.Below(2) == 0) {
    files_[path] =
        prng.Below(3) == 0 && last_bytes_ > 0 ? 1 + prng.Below(last_bytes_) : ++last_bytes_;
    for (auto& [other, call] : calls_) {
      if (call.path == path) call.maybe.insert(DigestOf(files_[path]));
    }
  }
  calls_[ticket] = {name, path, {DigestOf(files_[path])}, sim_.now()};
  return proxy::BindAsked{ticket, name, path, prng.Below(3) == 0};
}

proxy::Event SimBinder::BindNew(const std::string& name) {
  const std::string path = absl::StrCat("/foreign/", name);
  files_[path] = ++last_bytes_;
  bound_.erase(name);
  calls_[++last_ticket_] = {name, path, {DigestOf(last_bytes_)}, sim_.now()};
  return proxy::BindAsked{last_ticket_, name, path};
}

bool SimBinder::Awaits(const std::string& name) const {
  return std::ranges::any_of(calls_, [&](const auto& call) { return call.second.name == name; });
}

SimDirectory SimBinder::Has(const std::string& path) const {
  const auto file = files_.find(path);
  if (file == files_.end()) return {};
  SimDirectory directory;
  directory.digest = DigestOf(file->second);
  directory.key = proxy::BindingKey();
  directory.key.number = VersionNumber(file->second);
  return directory;
}

void SimBinder::ProxyDied(bool lost_journal) {
  for (const auto& [ticket, call] : calls_) {
    if (!call.path.empty()) stands_for_[call.name].insert(call.maybe.begin(), call.maybe.end());
  }
  calls_.clear();
  if (!lost_journal) return;
  stands_for_.clear();
  bound_.clear();
}

std::set<Digest> SimBinder::MayServe(const std::string& name) const {
  std::set<Digest> may;
  const auto known = stands_for_.find(name);
  if (known != stands_for_.end()) may = known->second;
  for (const auto& [ticket, call] : calls_) {
    if (call.name == name && !call.is_overtaken) may.insert(call.maybe.begin(), call.maybe.end());
  }
  return may;
}

void SimBinder::Answered(const proxy::AnswerBinding& answer, const proxy::DoorTable& by) {
  const auto it = calls_.find(answer.ticket);
  if (it == calls_.end())
    return sim_.oracle.Violate(14, absl::StrCat(member_, " answers a call twice"));
  const Call call = it->second;
  calls_.erase(it);
  const bool is_said_reserved = answer.reason == "NAME_RESERVED";
  if (call.is_reserved != is_said_reserved)
    sim_.oracle.Violate(
        14, absl::StrCat(member_, " is asked to bind ", call.name, " and says ", answer.reason));
  if (call.is_reserved) return;
  last_refusal_ = answer.reason;
  if (answer.answer != proxy::BindAnswer::kDone) return;
  if (call.is_overtaken)
    sim_.oracle.Violate(2, absl::StrCat(call.name, " at ", member_, " is an older call's again"));
  for (auto& [ticket, older] : calls_) {
    if (ticket < answer.ticket && older.name == call.name) older.is_overtaken = true;
  }
  const proxy::DoorBinding* binding = by.FindBinding(call.name);
  if (call.path.empty()) {
    stands_for_.erase(call.name);
    if (binding != nullptr && MayServe(call.name).empty())
      sim_.oracle.Violate(2, absl::StrCat(call.name, " is unbound at ", member_, " and resolves"));
    return;
  }
  stands_for_[call.name] = call.maybe;
  const bool is_asked_again = std::ranges::any_of(
      calls_, [&](const auto& other) { return other.second.name == call.name; });
  if (!is_asked_again) bound_.insert(call.name);
  // It is loaded, and probed once more where the engine has just been told to sleep, or got other
  // weights under a pause.
  const bool rests = by.asleep || by.updating || by.paused;
  if (binding == nullptr || (by.FindRoute(binding->target) == nullptr && !rests)) {
    sim_.oracle.Violate(
        2, absl::StrCat(call.name, " is said to be bound at ", member_, " and cannot be used"));
  }
}

void SimBinder::Began(const std::string& name, const Digest& digest) {
  if (MayServe(name).contains(digest)) return;
  sim_.oracle.Violate(2, absl::StrCat(member_, " answers ", name, " by ", digest.value,
                                      ", which it does not stand for"));
}

void SimBinder::TurnIsOver(const proxy::Machine& machine, const proxy::Records& journal) {
  constexpr std::string_view kPrefix = "binding/";
  auto written = journal.lower_bound(std::string(kPrefix));
  const auto is_over = [&] {
    return written == journal.end() || !written->first.starts_with(kPrefix);
  };
  // Both are sorted by name.
  const auto is_next = [&](const proxy::DoorBinding& binding) {
    if (is_over()) return false;
    const auto& [key, record] = *written++;
    return std::string_view(key).substr(kPrefix.size()) == binding.name &&
           std::get<proxy::BindingRecord>(record).name == binding.target;
  };
  const proxy::DoorTable& table = machine.door_table();
  if (!std::ranges::all_of(table.bindings, is_next) || !is_over())
    sim_.oracle.Violate(2, absl::StrCat(member_, " resolves bindings that are not written down"));
  // The oldest that nobody uses is forgotten where there are more than so many.
  std::erase_if(bound_, [&](const std::string& name) {
    if (table.FindBinding(name) != nullptr) return false;
    if (table.bindings.size() < kNames)
      sim_.oracle.Violate(14, absl::StrCat(member_, " has forgotten its binding ", name));
    return true;
  });
  for (const auto& [ticket, call] : calls_) {
    if (sim_.now() - call.made_at > kAnswerMostMs)
      sim_.oracle.Violate(14, absl::StrCat(member_, " leaves a call for ", call.name, " alone"));
  }
}

}  // namespace lorry::sim
