#include "tests/sim/transcript.h"

#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "tests/sim/world.h"

namespace lorry::sim {
namespace {

constexpr uint64_t kAnySeed = 1;  // without faults it only draws latencies

class Player {
 public:
  Player() : world_(kAnySeed) {}

  std::string Play(const std::string& line) {
    std::istringstream in(line);
    words_.clear();
    for (std::string word; in >> word;) words_.push_back(word);
    const std::string verb = Word(0);
    std::string answer;
    if (verb == "adapter")
      Adapter();
    else if (verb == "member")
      world_.AddMember(Word(1), KindOf(Word(2)), Number("slots", 0));
    else if (verb == "leader")
      Leader();
    else if (verb == "engine")
      Engine();
    else if (verb == "proxy")
      Proxy();
    else if (verb == "publish")
      Publish();
    else if (verb == "archive")
      world_.store().Archive(AdapterName(Word(1)));
    else if (verb == "delete")
      answer = world_.store().Delete(AdapterName(Word(1))) ? "" : "held\n";
    else if (verb == "back")
      world_.store().TakeBack(AdapterName(Word(1)));
    else if (verb == "run")
      world_.store().OpenRun(AdapterName(Word(1)));
    else if (verb == "alias")
      world_.store().SetAlias(AdapterName(Word(1)), AliasName(Word(2)), Version(Word(3)));
    else if (verb == "lease")
      Lease();
    else if (verb == "override")
      Override();
    else if (verb == "request")
      answer = Request();
    else if (verb == "tick")
      world_.RunFor(std::stoll(Word(1)));
    else if (verb == "state")
      answer = world_.Describe();
    else
      answer = "unknown verb\n";
    return answer + News();
  }

 private:
  std::string Word(size_t i) const { return i < words_.size() ? words_[i] : ""; }
  bool Has(const std::string& word) const {
    for (const std::string& w : words_) {
      if (w == word) return true;
    }
    return false;
  }
  uint32_t Number(const std::string& name, uint32_t otherwise) const {
    for (const std::string& w : words_) {
      if (w.rfind(name + "=", 0) == 0)
        return static_cast<uint32_t>(std::stoul(w.substr(name.size() + 1)));
    }
    return otherwise;
  }
  static fleet::EngineKind KindOf(const std::string& kind) {
    return kind == "vllm" ? fleet::EngineKind::kVllm : fleet::EngineKind::kSglang;
  }
  // A number in the current run, or run.number.
  std::optional<VersionKey> Version(const std::string& text) const {
    if (text.empty() || text == "none") return std::nullopt;
    const AdapterName adapter(Word(1));
    const size_t dot = text.find('.');
    if (dot == std::string::npos) {
      return VersionKey{adapter,
                        const_cast<World&>(world_).store().adapters().at(adapter).current_run,
                        VersionNumber(std::stoull(text))};
    }
    return VersionKey{adapter, RunId(std::stoull(text)),
                      VersionNumber(std::stoull(text.substr(dot + 1)))};
  }

  void Adapter() {
    fleet::AdapterPolicy policy;
    policy.min_engines = {false, Number("min", 1)};
    policy.max_staleness = Number("staleness", 1);
    policy.stage_deadline_ms = Number("deadline", 60'000);
    if (Number("keep", 0) > 0) policy.keep = {fleet::KeepRule::Kind::kCount, Number("keep", 0)};
    if (Has("mode=barrier")) policy.mode = fleet::SyncMode::kBarrier;
    if (Has("skip=never")) policy.skip = fleet::SkipMode::kNever;
    if (Has("mode=barrier")) policy.mode = fleet::SyncMode::kBarrier;
    if (Has("quiesce=drain")) policy.quiesce = fleet::PauseKind::kDrain;
    if (Has("quiesce=wait")) policy.quiesce = fleet::PauseKind::kWait;
    policy.barrier_deadline_ms = Number("hold", 30'000);
    policy.drain_deadline_ms = Number("drain", 600'000);
    world_.store().SetAdapter(AdapterName(Word(1)), policy);
    world_.store().OpenRun(AdapterName(Word(1)));
  }
  void Leader() {
    if (Word(1) == "kill" || Word(1) == "lose") world_.KillLeader();
    if (Word(1) == "lose") world_.LoseRecords();
    if (Word(1) == "up") world_.StartLeader();
    if (Word(1) == "adopts") world_.AdoptIfAsked();
  }
  void Engine() {
    SimProxy& proxy = world_.proxy(Word(1));
    if (Word(2) == "kill") world_.KillEngine(proxy);
    if (Word(2) == "start") world_.StartEngine(proxy);
    if (Word(2) == "fragile") proxy.engine().MakeFragile(true);
    if (Word(2) == "sound") proxy.engine().MakeFragile(false);
    if (Word(2) == "vanish") proxy.engine().Vanish();
    if (Word(2) == "sleep") world_.PutToSleep(MemberId(Word(1)), std::stoll(Word(3)));
    if (Word(2) == "slow") world_.sim().faults.engine_slow = 1'000;
    if (Word(2) == "breaks-off") world_.sim().faults.breaks_off = 1'000;
    if (Word(2) == "answers") world_.sim().faults.breaks_off = 0;
    if (Word(2) == "leaky") world_.sim().faults.counter_leaks = 1'000;
  }
  void Proxy() {
    SimProxy& proxy = world_.proxy(Word(1));
    if (Word(2) == "start") return proxy.Start();
    if (Word(2) == "drain") return proxy.Drain();
    proxy.Kill(Word(2) == "lose");
  }
  void Publish() {
    const std::string number = Word(2);
    std::optional<VersionNumber> chosen;
    if (!number.empty() && HarmOf() == Harm::kNone) chosen = VersionNumber(std::stoull(number));
    world_.Watch(world_.store().Publish(AdapterName(Word(1)), chosen, HarmOf()),
                 PoolName("rollout"));
  }
  Harm HarmOf() const {
    if (Has("kills")) return Harm::kKillsAtLoad;
    if (Has("kills-at-use")) return Harm::kKillsAtUse;
    return Has("refused") ? Harm::kRefusedByAll : Harm::kNone;
  }
  std::string Request() {
    const SimDoor::Answer answer =
        world_.proxy(Word(1)).Request({{Word(2)}, Number("n", 1), std::stoll(Word(3))});
    return !answer.served.empty() ? absl::StrCat("served by ", ToString(answer.served[0]), "\n")
                                  : absl::StrCat("refused: ", answer.refused, "\n");
  }
  void Lease() {
    const std::optional<VersionKey> version = Version(Word(2));
    sync::LeaseAsked ask;
    ask.request = world_.NewRequest();
    ask.selector = {
        version->adapter, sync::Selector::Kind::kVersion, {}, version->run, version->number};
    ask.pool = PoolName("rollout");
    ask.holder = "client";
    ask.ttl_ms = std::stoll(Word(3));
    world_.Call(ask, ask.request);
  }
  void Override() {
    sync::OverrideSet set{world_.NewRequest(), AdapterName(Word(1)), PoolName("rollout"),
                          Version(Word(2))};
    world_.Call(set, set.request);
  }

  std::string News() {
    std::string news;
    for (; told_ < world_.notes().size(); ++told_)
      absl::StrAppend(&news, world_.notes()[told_], "\n");
    for (const auto& [request, reply] : world_.replies()) {
      if (request <= answered_) continue;
      answered_ = request;
      absl::StrAppend(&news, "reply ", reply.status.ok() ? "OK" : ReasonOf(reply.status));
      if (!reply.status.ok()) absl::StrAppend(&news, ": ", reply.status.message());
      if (reply.epoch.value != 0) absl::StrAppend(&news, " epoch=", reply.epoch.value);
      absl::StrAppend(&news, "\n");
    }
    if (world_.sim().oracle.violated())
      absl::StrAppend(&news, "VIOLATED ", world_.sim().oracle.violation(), "\n");
    return news;
  }

  World world_;
  std::vector<std::string> words_;
  size_t told_ = 0;
  sync::RequestId answered_ = 0;
};

std::string Indented(const std::string& text) {
  std::string out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) absl::StrAppend(&out, "    ", line, "\n");
  return out;
}

}  // namespace

std::string RunTranscript(const std::string& text) {
  Player player;
  std::string out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("    ", 0) == 0) continue;  // an earlier answer
    absl::StrAppend(&out, line, "\n");
    if (line.empty() || line[0] == '#') continue;
    absl::StrAppend(&out, Indented(player.Play(line)));
  }
  return out;
}

}  // namespace lorry::sim
