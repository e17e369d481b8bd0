// What a simulated proxy does with frameworks' names.
#include "absl/strings/str_cat.h"
#include "services/engine_proxy/machine/binding_name.h"
#include "tests/sim/sim_proxy.h"

namespace lorry::sim {
namespace {

constexpr char kNewName[] = "new";

}  // namespace

void SimProxy::Bind(Prng& prng, int64_t lasts_ms) {
  if (!alive()) return;
  Post(binder_.Draw(prng));
  Request({{SimBinder::NameOf(prng.Below(SimBinder::kNames))}, 1, lasts_ms});
}

void SimProxy::BeginOnFullEngine(int64_t paused_after_ms) {
  constexpr int64_t kBindsAfterMs = 500;
  if (!engine_.up() || engine_.asleep() || !engine_.released().empty()) return;
  Kill(false);
  engine_.FillUp();
  Start();
  const uint64_t ticket = ++framework_.last;
  framework_.open[ticket] = {.is_pause = true, .at = sim_.now() + paused_after_ms};
  Later(paused_after_ms, proxy::CallMade{ticket, proxy::PauseCall{fleet::PauseKind::kAbort}});
  Later(paused_after_ms + kBindsAfterMs, binder_.BindNew(kNewName));
}

// Whoever has no room for it at all says NO_SLOT. An engine whose registry hangs makes none.
std::string SimProxy::WhyNoRoom() const {
  const bool is_asked =
      alive() && engine_.limits().slots != 0 && engine_.paused_since().has_value();
  if (!is_asked || machine().door_table().FindBinding(kNewName) != nullptr) return "";
  if (binder_.last_refusal() == "NO_SLOT" || engine_.RegistryLocked()) return "";
  return absl::StrCat(member_.value, " makes no room for a framework that paused it");
}

void SimProxy::Put(const std::string& path, SimDirectory directory) {
  if (engine_.ListsPathAsKnown(path))
    sim_.oracle.Violate(10, absl::StrCat("a fetch writes ", path, ", which the engine lists"));
  disk_[path] = std::move(directory);
}

void SimProxy::Do(const proxy::ReadBinding& effect) {
  sim_.queue.In(sim_.Latency(200), [this, life = life_, effect] {
    if (life_ != life || !alive()) return;
    proxy::BindingRead read{.op = effect.op};
    if (sim_.Chance(sim_.faults.fetch_fails)) {
      read.outcome = proxy::Outcome::kFailed;
      read.reason = "DIRECTORY_CHANGED";
      return Post(read);
    }
    SimDirectory directory = binder_.Has(effect.path);
    read.digest = directory.digest;
    read.name = proxy::BindingName(read.digest, read.render);
    const std::string path = PathOf(read.name);
    // Nobody knows before it is read that an engine lists that name; but it is put there whole.
    const SimDirectory& there = disk_.try_emplace(path, std::move(directory)).first->second;
    if (there.is_readable && there.digest == read.digest) read.path = path;
    Post(read);
  });
}

void SimProxy::Do(const proxy::AnswerBinding& effect) {
  binder_.Answered(effect, *doors_.back()->table());
}

}  // namespace lorry::sim
