// The seam engines::Engine: both drivers against the fakes, which tests/contract/engines holds to
// the real engines. With LORRY_SGLANG_URL and LORRY_VLLM_URL set, SeamTest, whose cases need no
// switch, runs against those servers instead: so it does once a `make test`, against the real ones.
#include <gmock/gmock.h>

#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>

#include "lib/base/error.h"
#include "services/engine_proxy/engines/engines.h"
#include "tests/unit/engine_proxy/engines/answered.h"
#include "tests/unit/engine_proxy/engines/fake_process.h"

namespace lorry::engines {
namespace {

using fleet::EngineKind;
using fleet::PauseKind;
using fleet::ProbeKind;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr milliseconds kLong{30'000};

// The verbs as plain calls: runs the io_context until the answer is there.
class Blocking {
 public:
  Blocking(std::unique_ptr<Engine> engine, boost::asio::io_context& io)
      : engine_(std::move(engine)), io_(io) {}

  EngineKind kind() const { return engine_->kind(); }
  absl::StatusOr<EngineFacts> Inspect() {
    return Wait<absl::StatusOr<EngineFacts>>([&](auto done) { engine_->Inspect(kLong, done); });
  }
  Engine::Listing List() {
    return Wait<absl::StatusOr<Engine::Listing>>([&](auto done) { engine_->List(kLong, done); })
        .value();
  }
  absl::Status Load(const std::string& name, const std::string& path, milliseconds within = kLong) {
    return Wait<absl::Status>(
        [&](auto done) { engine_->Load(EngineName(name), path, within, done); });
  }
  absl::Status Probe(const std::string& name, ProbeKind probe, milliseconds within = kLong) {
    return Ask(name, probe, within).status();
  }
  absl::StatusOr<fleet::ProbeAnswer> Ask(const std::string& name, ProbeKind probe,
                                         milliseconds within = kLong,
                                         const peft::Reference& reference = {}) {
    return Wait<absl::StatusOr<fleet::ProbeAnswer>>([&](auto done) {
      engine_->Probe(EngineName(name), {.kind = probe, .reference = reference}, within, done);
    });
  }
  // The mean distance of its log-probabilities from these.
  double GapTo(const std::string& name, const peft::Reference& reference) {
    const auto answer = Ask(name, ProbeKind::kReference, kLong, reference);
    EXPECT_TRUE(answer.ok() && answer->gap.has_value()) << answer.status();
    return answer.ok() && answer->gap.has_value() ? answer->gap->mean : -1;
  }
  absl::Status Unload(const std::string& name, milliseconds within = kLong) {
    return Wait<absl::Status>([&](auto done) { engine_->Unload(EngineName(name), within, done); });
  }
  absl::StatusOr<Occupancy> GetOccupancy() {
    return Wait<absl::StatusOr<Occupancy>>([&](auto done) { engine_->GetOccupancy(kLong, done); });
  }
  absl::StatusOr<RawReply> Pass(const std::string& path, const std::string& body) {
    return Wait<absl::StatusOr<RawReply>>([&](auto done) {
      engine_->Pass({"POST", path, body}, kLong, done);
    });
  }
  absl::Status SetPause(PauseKind pause, bool flush = false) {
    return Wait<absl::Status>([&](auto done) { engine_->SetPause(pause, flush, kLong, done); });
  }

 private:
  template <typename T, typename Call>
  T Wait(Call call) {
    return Answered<T>(io_, std::move(call));
  }

  std::unique_ptr<Engine> engine_;
  boost::asio::io_context& io_;
};

absl::StatusOr<std::unique_ptr<Engine>> Detect(boost::asio::io_context& io,
                                               const std::string& url) {
  return Answered<absl::StatusOr<std::unique_ptr<Engine>>>(io, [&](auto done) {
    DetectEngine(io, {.url = url, .api_key = "", .admin_key = ""}, kLong, done);
  });
}

class DriverTest : public testing::TestWithParam<const char*> {
 protected:
  bool is_sglang() const { return std::string(GetParam()) == "sglang"; }

  // The fake that all cases share, or the server that the environment names.
  Blocking Engine() {
    static std::map<std::string, FakeProcess>* const shared =
        new std::map<std::string, FakeProcess>();
    const char* url = std::getenv(is_sglang() ? "LORRY_SGLANG_URL" : "LORRY_VLLM_URL");
    if (url != nullptr) return Detected(url);
    return Detected(shared->try_emplace(GetParam(), GetParam()).first->second.url());
  }

  // A fake of the case's own, to be changed and killed.
  Blocking OwnFake(std::vector<std::string> arguments = {},
                   std::vector<std::string> environment = {}) {
    fake_.emplace(GetParam(), std::move(arguments), std::move(environment));
    return Detected(fake_->url());
  }
  FakeProcess& fake() { return *fake_; }

  std::string Adapter(const std::string& name) const { return TinyAdapters() + "/" + name; }

  // Names are never used twice, not even by two runs against one server.
  std::string Fresh() const {
    static int count = 0;
    return "policy-v" + std::to_string(++count) + "-" + std::to_string(getpid());
  }

 private:
  Blocking Detected(const std::string& url) {
    auto engine = Detect(io_, url);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return Blocking(*std::move(engine), io_);
  }

  boost::asio::io_context io_;
  std::optional<FakeProcess> fake_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, DriverTest, testing::Values("sglang", "vllm"),
                         [](const auto& kind) { return std::string(kind.param); });

class SeamTest : public DriverTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, SeamTest, testing::Values("sglang", "vllm"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST_P(SeamTest, DetectsTheKindAndInspectsLimits) {
  Blocking engine = Engine();
  EXPECT_EQ(engine.kind(), is_sglang() ? EngineKind::kSglang : EngineKind::kVllm);
  const auto facts = engine.Inspect();
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->version, is_sglang() ? "0.5.23" : "0.32.0");
  EXPECT_THAT(facts->base_models, testing::ElementsAre("base"));
  EXPECT_THAT(facts->model_path, testing::EndsWith("/model")) << "where its config.json lies";
  EXPECT_EQ(facts->limits.rank_limit, 16u);
  EXPECT_EQ(facts->limits.batch_slots, 4u);
  EXPECT_EQ(facts->limits.engine_modules.size(), is_sglang() ? 7u : 0u);
  EXPECT_EQ(facts->cumulative_streams, is_sglang());
  EXPECT_THAT(facts->problems, IsEmpty());
  EXPECT_THAT(facts->warnings, IsEmpty());
  EXPECT_EQ(engine.Inspect()->boot, facts->boot);
}

TEST_P(SeamTest, LoadsProbesAndUnloads) {
  Blocking engine = Engine();
  const std::string name = Fresh();
  EXPECT_EQ(engine.Load(name, Adapter("v1")), absl::OkStatus());
  EXPECT_EQ(engine.List().at(EngineName(name)), Adapter("v1"));
  EXPECT_EQ(engine.Probe(name, ProbeKind::kPresence), absl::OkStatus());
  EXPECT_EQ(engine.Probe(name, ProbeKind::kToken), absl::OkStatus());
  const absl::StatusOr<fleet::ProbeAnswer> compared = engine.Ask(name, ProbeKind::kCompare);
  ASSERT_TRUE(compared.ok() && compared->compared.has_value()) << compared.status();
  EXPECT_GT(compared->compared->difference, 1e-3);
  EXPECT_LT(compared->compared->noise, 1e-3);
  EXPECT_EQ(engine.Unload(name), absl::OkStatus());
  EXPECT_THAT(engine.List(), Not(testing::Contains(testing::Key(EngineName(name)))));
  EXPECT_EQ(ReasonOf(engine.Probe(name, ProbeKind::kPresence)), "ENGINE_NAME_UNKNOWN");
}

TEST_P(SeamTest, AReferenceIsAnsweredTokenByToken) {
  Blocking engine = Engine();
  const std::string first = Fresh(), other = Fresh();
  ASSERT_EQ(engine.Load(first, Adapter("v1")), absl::OkStatus());
  ASSERT_EQ(engine.Load(other, Adapter("v2")), absl::OkStatus());
  // What v1 says of two prompts, one token of which comes twice; found one by one, since an engine
  // tells only how far it is away.
  peft::Reference reference = {{.tokens = {1, 40, 90, 40, 130}, .logprobs = {0, 0, 0, 0}},
                               {.tokens = {7, 9}, .logprobs = {0}}};
  for (peft::ReferencePrompt& prompt : reference) {
    for (size_t i = 0; i < prompt.logprobs.size(); ++i) {
      const peft::Reference alone = {
          {{prompt.tokens.begin(), prompt.tokens.begin() + i + 2}, std::vector<double>(i + 1, 0)}};
      double before = 0;
      for (size_t k = 0; k < i; ++k) before -= prompt.logprobs[k];
      prompt.logprobs[i] = -(engine.GapTo(first, alone) * static_cast<double>(i + 1) - before);
    }
  }
  EXPECT_LT(engine.GapTo(first, reference), 1e-3);
  EXPECT_GT(engine.GapTo(other, reference), 1e-2);
  reference[0].logprobs[2] -= 1;
  EXPECT_NEAR(engine.GapTo(first, reference), 1.0 / 5, 1e-3);
  EXPECT_EQ(engine.Unload(first), absl::OkStatus());
  EXPECT_EQ(engine.Unload(other), absl::OkStatus());
}

TEST_P(DriverTest, TheBaseModelIsAskedOnlyWhereAReferenceLeavesItInDoubt) {
  Blocking engine = OwnFake();
  const std::string name = Fresh();
  ASSERT_EQ(engine.Load(name, Adapter("v1")), absl::OkStatus());
  peft::Reference reference(3, {.tokens = {1, 40}, .logprobs = {0}, .base = {-1000}});
  const auto sure = engine.Ask(name, ProbeKind::kReference, kLong, reference);
  ASSERT_TRUE(sure.ok() && sure->gap.has_value()) << sure.status();
  EXPECT_FALSE(sure->compared.has_value());
  for (peft::ReferencePrompt& prompt : reference) prompt.base = {0};
  const auto doubt = engine.Ask(name, ProbeKind::kReference, kLong, reference);
  ASSERT_TRUE(doubt.ok() && doubt->gap.has_value()) << doubt.status();
  EXPECT_TRUE(doubt->compared.has_value());
}

TEST_P(SeamTest, LoadingAgainIsSuccessOnlyFromTheSamePath) {
  Blocking engine = Engine();
  const std::string name = Fresh();
  EXPECT_EQ(engine.Load(name, Adapter("v1")), absl::OkStatus());
  EXPECT_EQ(engine.Load(name, Adapter("v1")), absl::OkStatus());
  const absl::Status other = engine.Load(name, Adapter("v2"));
  EXPECT_EQ(other.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReasonOf(other), "ENGINE_NAME_TAKEN");
  EXPECT_EQ(engine.Unload(name), absl::OkStatus());
}

TEST_P(SeamTest, WhatIsGoneIsGone) {
  Blocking engine = Engine();
  const std::string name = Fresh();
  EXPECT_EQ(engine.Unload(name), absl::OkStatus());
  EXPECT_EQ(ReasonOf(engine.Probe(name, ProbeKind::kToken)), "ENGINE_NAME_UNKNOWN");
}

TEST_P(SeamTest, ABadAdapterIsRefusedInTheEnginesWords) {
  Blocking engine = Engine();
  for (const char* damage : {"bigrank", "absent", "truncated"}) {
    const absl::Status status = engine.Load(Fresh(), Adapter(damage));
    EXPECT_EQ(ReasonOf(status), "ENGINE_REFUSED") << damage << ": " << status;
    EXPECT_EQ(EndOf(status), End::kRefused);
  }
  EXPECT_THAT(std::string(engine.Load(Fresh(), Adapter("bigrank")).message()), HasSubstr("64"));
}

TEST_P(SeamTest, FilesThatItCannotReadAreNoRefusalOfTheAdapter) {
  Blocking engine = Engine();
  for (const char* damage : {"noconfig", "no-such-directory"}) {
    const absl::Status status = engine.Load(Fresh(), Adapter(damage));
    EXPECT_EQ(ReasonOf(status), "ENGINE_LOAD_FAILED") << damage << ": " << status;
    EXPECT_EQ(EndOf(status), End::kFailed);
  }
}

TEST_P(SeamTest, PausesOnlyInTheEnginesOwnWays) {
  Blocking engine = Engine();
  const PauseKind own[] = {PauseKind::kAbort, is_sglang() ? PauseKind::kRetract : PauseKind::kKeep,
                           is_sglang() ? PauseKind::kInPlace : PauseKind::kWait};
  for (const PauseKind pause : own) {
    EXPECT_EQ(engine.SetPause(pause, /*flush=*/true), absl::OkStatus());
    EXPECT_EQ(engine.SetPause(PauseKind::kNone), absl::OkStatus());
  }
  const absl::Status other = engine.SetPause(is_sglang() ? PauseKind::kKeep : PauseKind::kInPlace);
  EXPECT_EQ(ReasonOf(other), "ENGINE_PAUSE_KIND");
  EXPECT_EQ(EndOf(other), End::kFailed);
  EXPECT_EQ(engine.GetOccupancy()->running, 0u);
}

TEST_P(SeamTest, AProbeWaitsDuringAPauseUntilItsDeadline) {
  Blocking engine = Engine();
  const std::string name = Fresh();
  EXPECT_EQ(engine.Load(name, Adapter("v1")), absl::OkStatus());
  EXPECT_EQ(engine.SetPause(PauseKind::kAbort), absl::OkStatus());
  const absl::Status status = engine.Probe(name, ProbeKind::kToken, milliseconds(2000));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(engine.Probe(name, ProbeKind::kPresence), absl::OkStatus());
  EXPECT_EQ(engine.SetPause(PauseKind::kNone), absl::OkStatus());
  EXPECT_EQ(engine.Unload(name), absl::OkStatus());
}

TEST_P(DriverTest, ALoadThatTimedOutIsUnknownAndSettlesByLoadingAgain) {
  Blocking engine = OwnFake();
  const std::string name = Fresh();
  fake().Set(R"({"hold_loads": true})");
  const absl::Status status = engine.Load(name, Adapter("v1"), milliseconds(2000));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(MayHaveHappened(status));
  fake().Set(R"({"hold_loads": false})");
  EXPECT_EQ(engine.Load(name, Adapter("v1")), absl::OkStatus());
  EXPECT_EQ(engine.List().at(EngineName(name)), Adapter("v1"));
}

TEST_P(DriverTest, AnAdapterThatHasNoEffectIsCaughtByComparingWithTheBase) {
  Blocking engine = OwnFake({"--fake", R"({"serve_base": true})"});
  const std::string name = Fresh();
  EXPECT_EQ(engine.Load(name, Adapter("v1")), absl::OkStatus());
  EXPECT_EQ(engine.Probe(name, ProbeKind::kToken), absl::OkStatus());
  EXPECT_EQ(engine.Ask(name, ProbeKind::kCompare)->compared->difference, 0);
}

TEST_P(DriverTest, NoiseIsMeasured) {
  Blocking engine = OwnFake({"--fake", R"({"serve_base": true, "logprob_noise": 0.01})"});
  const std::string name = Fresh();
  EXPECT_EQ(engine.Load(name, Adapter("v1")), absl::OkStatus());
  const auto compared = engine.Ask(name, ProbeKind::kCompare)->compared;
  EXPECT_GT(compared->noise, 0);
  EXPECT_LT(compared->noise, 0.01);
}

TEST_P(DriverTest, WhereTheBaseModelAnswersWithNoNumbersNothingIsCompared) {
  if (is_sglang()) return;  // it writes null, which probe_test.cc has
  Blocking engine = OwnFake({"--fake", R"({"logprob_noise": NaN})"});
  const std::string name = Fresh();
  EXPECT_EQ(engine.Load(name, Adapter("v1")), absl::OkStatus());
  const auto answer = engine.Ask(name, ProbeKind::kCompare);
  ASSERT_EQ(answer.status(), absl::OkStatus());
  EXPECT_FALSE(answer->compared.has_value());
}

TEST_P(DriverTest, ARestartForgetsAdaptersAndHasAnotherBoot) {
  Blocking engine = OwnFake();
  const BootId first = engine.Inspect()->boot;
  EXPECT_EQ(engine.Load(Fresh(), Adapter("v1")), absl::OkStatus());
  fake().Kill();
  EXPECT_EQ(ReasonOf(engine.Inspect().status()), "ENGINE_UNREACHABLE");
  fake().StartAgain();
  EXPECT_NE(engine.Inspect()->boot, first);
  EXPECT_THAT(engine.List(), IsEmpty());
}

TEST_P(DriverTest, LoraSwitchedOffIsNamedByThePreflightAndByLoads) {
  Blocking engine = OwnFake({"--no-enable-lora"});
  const auto facts = engine.Inspect();
  ASSERT_EQ(facts->problems.size(), 1u);
  EXPECT_EQ(facts->problems[0].reason, "ENGINE_LORA_DISABLED");
  // All that it takes, so that nobody starts it anew to be told of the next thing.
  const char* needed = is_sglang() ? "--lora-target-modules" : "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1";
  EXPECT_THAT(facts->problems[0].remedy, AllOf(HasSubstr("--enable-lora"), HasSubstr(needed)));
  const absl::Status refused = engine.Load(Fresh(), Adapter("v1"));
  EXPECT_EQ(ReasonOf(refused), "ENGINE_LORA_DISABLED");
  EXPECT_THAT(refused.message(), HasSubstr(needed));
}

class SglangTest : public DriverTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, SglangTest, testing::Values("sglang"));

TEST_P(SglangTest, FlagsThatBreakAdaptersAreNamed) {
  Blocking engine = OwnFake({"--tokenizer-worker-num", "2", "--dp-size", "2"});
  const auto facts = engine.Inspect();
  ASSERT_EQ(facts->problems.size(), 2u);
  EXPECT_EQ(facts->problems[0].reason, "ENGINE_DP_UNSUPPORTED");
  EXPECT_EQ(facts->problems[1].reason, "ENGINE_TOKENIZER_WORKERS");
}

TEST_P(SglangTest, AttentionGroupsTakeAdaptersThatArePinned) {
  Blocking engine = OwnFake({"--attn-dp-size", "2", "--max-loras-per-batch", "3"});
  const auto facts = engine.Inspect();
  ASSERT_TRUE(facts.ok() && facts->problems.empty()) << facts.status();
  ASSERT_EQ(facts->limits.slots, 2u);
  const std::string name = Fresh();
  EXPECT_EQ(engine.Load(name, Adapter("v1")), absl::OkStatus());
  EXPECT_EQ(engine.Load(Fresh(), Adapter("v2")), absl::OkStatus());
  EXPECT_EQ(ReasonOf(engine.Load(Fresh(), Adapter("v1"))), "ENGINE_REFUSED") << "no slot is left";
  EXPECT_EQ(engine.Unload(name), absl::OkStatus());
  EXPECT_EQ(engine.Load(Fresh(), Adapter("v1")), absl::OkStatus());
}

TEST_P(SglangTest, WhatALoadLeftOnSomeRanksIsUnloadedBeforeTheNext) {
  Blocking engine = OwnFake();
  const std::string name = Fresh();
  fake().Set(R"({"load_error_of_a_rank": "out of memory"})");
  EXPECT_EQ(ReasonOf(engine.Load(name, Adapter("v1"))), "ENGINE_LOAD_FAILED");
  fake().Set(R"({"load_error_of_a_rank": ""})");
  EXPECT_EQ(engine.Load(name, Adapter("v1")), absl::OkStatus());
  EXPECT_EQ(engine.Probe(name, ProbeKind::kToken), absl::OkStatus());
}

TEST_P(SglangTest, AnUnloadThatHangsIsLeftAtItsDeadline) {
  Blocking engine = OwnFake({"--fake", R"({"unload_delay_s": 60})"});
  const std::string name = Fresh();
  EXPECT_EQ(engine.Load(name, Adapter("v1")), absl::OkStatus());
  EXPECT_TRUE(MayHaveHappened(engine.Unload(name, milliseconds(2000))));
  EXPECT_TRUE(MayHaveHappened(engine.Load(Fresh(), Adapter("v2"), milliseconds(2000))));
}

TEST_P(SglangTest, AWrongShapeEndsTheEngineAtItsProbe) {
  Blocking engine = OwnFake();
  const std::string name = Fresh();
  EXPECT_EQ(engine.Load(name, Adapter("wrongshape")), absl::OkStatus());
  EXPECT_EQ(ReasonOf(engine.Probe(name, ProbeKind::kToken)), "ENGINE_CONNECTION_BROKEN");
  // It takes a moment to die: connections are accepted and broken off until then.
  std::string reason;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (reason != "ENGINE_UNREACHABLE" && std::chrono::steady_clock::now() < until) {
    reason = ReasonOf(engine.Inspect().status());
  }
  EXPECT_EQ(reason, "ENGINE_UNREACHABLE");
}

class VllmTest : public DriverTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, VllmTest, testing::Values("vllm"));

TEST_P(VllmTest, RuntimeUpdatesSwitchedOffAreNamed) {
  Blocking engine = OwnFake({}, {"VLLM_ALLOW_RUNTIME_LORA_UPDATING=0"});
  const auto facts = engine.Inspect();
  ASSERT_EQ(facts->problems.size(), 1u);
  EXPECT_EQ(facts->problems[0].reason, "ENGINE_RUNTIME_LORA_DISABLED");
  EXPECT_EQ(ReasonOf(engine.Load(Fresh(), Adapter("v1"))), "ENGINE_RUNTIME_LORA_DISABLED");
  EXPECT_EQ(ReasonOf(engine.Unload(Fresh())), "ENGINE_RUNTIME_LORA_DISABLED");
}

TEST_P(VllmTest, WithoutDevModeLimitsAreUnknownPausesRefusedAndThatIsSaid) {
  Blocking engine = OwnFake({}, {"VLLM_SERVER_DEV_MODE=0"});
  const auto facts = engine.Inspect();
  EXPECT_THAT(facts->problems, IsEmpty());
  ASSERT_EQ(facts->warnings.size(), 1u);
  EXPECT_EQ(facts->warnings[0].reason, "ENGINE_DEV_MODE_OFF");
  EXPECT_EQ(facts->limits.slots, 0u);
  EXPECT_EQ(facts->limits.batch_slots, 0u);
  EXPECT_EQ(ReasonOf(engine.SetPause(PauseKind::kAbort)), "ENGINE_DEV_MODE_OFF");
  EXPECT_EQ(engine.SetPause(PauseKind::kNone), absl::OkStatus()) << "it cannot be paused";
  const std::string name = Fresh();
  EXPECT_EQ(engine.Load(name, Adapter("v1")), absl::OkStatus());
  EXPECT_EQ(engine.Probe(name, ProbeKind::kToken), absl::OkStatus());
  EXPECT_EQ(engine.Inspect()->limits.batch_slots, 4u) << "known since a request was scheduled";
}

TEST_P(VllmTest, WithoutDevModeArealsServerIsPausedByItsOwnRoutes) {
  Blocking engine = OwnFake({"--areal"}, {"VLLM_SERVER_DEV_MODE=0"});
  const std::string name = Fresh();
  EXPECT_EQ(engine.Load(name, Adapter("v1")), absl::OkStatus());
  EXPECT_EQ(engine.SetPause(PauseKind::kAbort, /*flush=*/true), absl::OkStatus());
  const absl::Status paused = engine.Probe(name, ProbeKind::kToken, milliseconds(2000));
  EXPECT_EQ(paused.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(engine.SetPause(PauseKind::kNone), absl::OkStatus());
  EXPECT_EQ(engine.Probe(name, ProbeKind::kToken), absl::OkStatus());
  EXPECT_EQ(ReasonOf(engine.SetPause(PauseKind::kKeep)), "ENGINE_DEV_MODE_OFF") << "it has no such";
}

TEST_P(VllmTest, WithoutDevModeLoraSwitchedOffIsNamedAllTheSame) {
  Blocking engine = OwnFake({"--no-enable-lora"}, {"VLLM_SERVER_DEV_MODE=0"});
  const auto facts = engine.Inspect();
  ASSERT_EQ(facts->problems.size(), 1u);
  EXPECT_EQ(facts->problems[0].reason, "ENGINE_LORA_DISABLED");
  EXPECT_EQ(ReasonOf(engine.Load(Fresh(), Adapter("v1"))), "ENGINE_LORA_DISABLED");
}

TEST_P(VllmTest, AProbeComparesWithTheBaseModelThatIsThereNow) {
  Blocking engine = OwnFake({"--device", "cpu"});
  engine.Inspect().IgnoreError();
  const std::string name = Fresh();
  EXPECT_EQ(engine.Load(name, Adapter("v1")), absl::OkStatus());
  EXPECT_GT(engine.Ask(name, ProbeKind::kCompare)->compared->difference, 1e-3);
  for (const char* path : {"/update_weights", "/sleep?level=2"}) {
    // Other weights, under which the adapter has no effect any more.
    const std::string weights = path[1] == 'u' ? "updated" : "slept";
    fake().Set(R"({"serve_base": true, "other_base": ")" + weights + R"("})");
    ASSERT_EQ(engine.Pass(path, R"({"update_info": {}})")->status, 200u);
    ASSERT_EQ(engine.Pass("/wake_up", "")->status, 200u);
    EXPECT_EQ(engine.Ask(name, ProbeKind::kCompare)->compared->difference, 0) << path;
  }
}

TEST_P(VllmTest, SleepIsSeenAndToldFromAPause) {
  Blocking engine = OwnFake();
  EXPECT_EQ(engine.Inspect()->asleep, false);
  EXPECT_EQ(engine.SetPause(PauseKind::kAbort), absl::OkStatus());
  EXPECT_EQ(engine.Inspect()->asleep, false);
  EXPECT_EQ(engine.SetPause(PauseKind::kNone), absl::OkStatus());
  fake().Post("/sleep?level=1", "");
  EXPECT_EQ(engine.Inspect()->asleep, true);
  fake().Post("/wake_up", "");
  EXPECT_EQ(engine.Inspect()->asleep, false);
}

TEST(Detect, ANonsenseAddressAndAClosedPort) {
  boost::asio::io_context io;
  EXPECT_EQ(ReasonOf(Detect(io, "engine:1").status()), "ENGINE_URL_INVALID");
  EXPECT_EQ(ReasonOf(Detect(io, "http://127.0.0.1:1").status()), "ENGINE_UNREACHABLE");
}

}  // namespace
}  // namespace lorry::engines

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!lorry::engines::CanRunFakes()) {
    std::cerr << "skipped: the fakes need .venv/dev; run tools/setup-venvs dev\n";
    return 77;
  }
  return RUN_ALL_TESTS();
}
