// Bindings: names of frameworks, what they stand on, and how calls end.
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

const Config kDefaults;

class BindingsTest : public ::testing::Test {
 protected:
  BindingsTest() : BindingsTest(3) {}
  explicit BindingsTest(uint32_t slots) : bench_(fleet::EngineKind::kVllm, slots) {
    bench_.files_ = {{"/d/one", "1"}, {"/d/two", "2"}, {"/d/three", "3"}, {"/d/four", "4"}};
  }

  uint64_t Ask(const std::string& name, const std::string& path, bool in_place = false) {
    bench_.Wait(2'000);  // no name is unloaded twice within a second
    bench_.Tell(BindAsked{++ticket_, name, path, in_place});
    return ticket_;
  }
  uint64_t Unbind(const std::string& name) {
    bench_.Wait(2'000);
    bench_.Tell(UnbindAsked{++ticket_, name});
    return ticket_;
  }
  std::string Answered(uint64_t ticket) const {
    const auto it = bench_.bind_answers_.find(ticket);
    if (it == bench_.bind_answers_.end()) return "nothing yet";
    switch (it->second.answer) {
      case BindAnswer::kDone:
        return "done";
      case BindAnswer::kAlreadyLoaded:
        return "already loaded";
      case BindAnswer::kNotBound:
        return "not bound";
      case BindAnswer::kNoDirectory:
        return "no directory";
      case BindAnswer::kRefused:
        return it->second.reason;
    }
    return "?";
  }
  static EngineName Of(const std::string& digest) {
    return BindingName(Digest{digest}, fleet::Render::kPlain);
  }
  // The bytes by which a request of that name is answered; "away": it waits; "": no such name.
  std::string Serves(const std::string& name) const {
    const DoorTable& table = bench_.machine_->door_table();
    const DoorBinding* binding = table.FindBinding(name);
    if (binding == nullptr) return "";
    const DoorRoute* route = table.FindRoute(binding->target);
    if (route == nullptr) return "away";
    EXPECT_EQ(route->digest, binding->digest);
    return route->digest.value;
  }
  void Use(const std::string& digest, uint32_t requests) {
    bench_.counts_.erase(Of(digest));
    if (requests > 0) bench_.counts_[Of(digest)] = requests;
    bench_.Report();
  }

  Bench bench_;
  uint64_t ticket_ = 0;
};

TEST_F(BindingsTest, AnAnswerSaysThatTheNameCanBeUsed) {
  const uint64_t ticket = Ask("lora_v1", "/d/one");
  EXPECT_EQ(Answered(ticket), "done");
  EXPECT_EQ(Serves("lora_v1"), "1");
  EXPECT_EQ(bench_.probes_.size(), 1u);
  EXPECT_EQ(bench_.bind_answers_[ticket].bound.at("lora_v1"), "/d/one");
}

TEST_F(BindingsTest, NothingIsAnsweredBeforeTheEngineHasShownIt) {
  bench_.silent_ = {kProbeEffect};
  const uint64_t ticket = Ask("lora_v1", "/d/one");
  EXPECT_EQ(Answered(ticket), "nothing yet");
  EXPECT_EQ(Serves("lora_v1"), "");
  bench_.Pass(60'000);
  EXPECT_EQ(Answered(ticket), "BIND_TIMEOUT");
  EXPECT_EQ(Serves("lora_v1"), "");
}

TEST_F(BindingsTest, AnEngineThatTakesNoAdapterSaysSoAtOnce) {
  bench_.Tell(EngineSeen{bench_.boot_, bench_.limits_, "1", "ENGINE_API_SERVERS: start it: so"});
  const uint64_t ticket = Ask("lora_v1", "/d/one");
  EXPECT_EQ(Answered(ticket), "ENGINE_API_SERVERS");
  EXPECT_EQ(bench_.bind_answers_[ticket].detail, "start it: so");
}

TEST_F(BindingsTest, VersionsComeAndGoWhileADirectoryIsRead) {
  bench_.silent_ = {kReadBindingEffect};
  bench_.may_load_ = false;
  Ask("lora_v1", "/d/one");
  bench_.Desire(0, {1});
  EXPECT_EQ(bench_.fetches_, 1);
  bench_.Desire(0, {});
  EXPECT_EQ(bench_.deletes_, 1);
}

TEST_F(BindingsTest, TheSameBytesAgainChangeNothing) {
  Ask("lora_v1", "/d/one");
  const uint64_t again = Ask("lora_v1", "/d/one");
  EXPECT_EQ(Answered(again), "done");
  EXPECT_EQ(bench_.loads_.size(), 1u);
}

TEST_F(BindingsTest, WhatIsReadWhileItsNameIsUnloadedIsReadOnce) {
  bench_.engine_[Of("1")] = "/elsewhere";
  bench_.silent_ = {kUnloadEffect};
  bench_.Pass(kDefaults.list_ms + kDefaults.orphans_ms + 1'000);
  ASSERT_TRUE(bench_.records_.contains("unloading"));
  const uint64_t ticket = Ask("lora_v1", "/d/one");
  ASSERT_EQ(bench_.reads_, 1);
  bench_.engine_.clear();
  bench_.silent_ = {};
  for (OpId op = 1; op < 50; ++op) bench_.Tell(UnloadDone{op, Outcome::kOk});
  bench_.Pass(1'000);
  EXPECT_EQ(Answered(ticket), "done");
  EXPECT_EQ(bench_.fetches_, 0);
}

TEST_F(BindingsTest, OtherBytesTakeTheNameWhereNobodyUsesIt) {
  Ask("lora_v1", "/d/one");
  bench_.files_["/d/one"] = "2";  // the trainer wrote it anew, in place
  EXPECT_EQ(Answered(Ask("lora_v1", "/d/one")), "done");
  EXPECT_EQ(Serves("lora_v1"), "2");
  EXPECT_FALSE(bench_.engine_.contains(Of("1")));
  EXPECT_EQ(bench_.deletes_, 1) << "what nobody wants leaves the disk, too";
}

TEST_F(BindingsTest, OtherBytesDoNotTakeTheNameFromRequests) {
  Ask("lora_v1", "/d/one");
  Use("1", 1);
  EXPECT_EQ(Answered(Ask("lora_v1", "/d/two")), "already loaded");
  EXPECT_EQ(Serves("lora_v1"), "1");
  EXPECT_EQ(Answered(Ask("lora_v1", "/d/two", /*in_place=*/true)), "done");
  EXPECT_EQ(Serves("lora_v1"), "2");
  EXPECT_TRUE(bench_.engine_.contains(Of("1"))) << "a request ends on it";
  Use("1", 0);
  bench_.Pass(2'000);
  EXPECT_FALSE(bench_.engine_.contains(Of("1")));
}

TEST_F(BindingsTest, AFailedLoadLeavesTheNameAsItWas) {
  Ask("lora_v1", "/d/one");
  bench_.load_answer_ = LoadDone{0, Outcome::kRefused, "LOAD_REFUSED", "rank 64"};
  EXPECT_EQ(Answered(Ask("lora_v1", "/d/two")), "LOAD_REFUSED");
  EXPECT_EQ(Serves("lora_v1"), "1");
  bench_.load_answer_.reset();
  EXPECT_EQ(Answered(Ask("lora_v1", "/d/two")), "done")
      << "whoever asks again waits for no backoff";
  EXPECT_EQ(Serves("lora_v1"), "2");
}

TEST_F(BindingsTest, AnUnboundNameStandsForNothingAtOnce) {
  Ask("lora_v1", "/d/one");
  Use("1", 1);
  EXPECT_EQ(Answered(Unbind("lora_v1")), "done");
  EXPECT_EQ(Serves("lora_v1"), "");
  EXPECT_EQ(bench_.unloads_, 0) << "a request is still on it";
  EXPECT_EQ(Answered(Unbind("lora_v1")), "not bound");
  Use("1", 0);
  EXPECT_EQ(bench_.unloads_, 1);
}

TEST_F(BindingsTest, TwoNamesForTheSameBytesShareThem) {
  Ask("a", "/d/one");
  Ask("b", "/d/one");
  EXPECT_EQ(bench_.loads_.size(), 1u);
  Unbind("a");
  EXPECT_EQ(Serves("b"), "1");
  EXPECT_EQ(bench_.unloads_, 0);
}

TEST_F(BindingsTest, NamesOfLorrysOwnAreNobodys) {
  EXPECT_EQ(Answered(Ask(Bench::NameOf(1).value, "/d/one")), "NAME_RESERVED");
  EXPECT_EQ(Answered(Unbind(Bench::NameOf(1).value)), "NAME_RESERVED");
  EXPECT_EQ(Answered(Ask("", "/d/one")), "NAME_RESERVED");
  EXPECT_EQ(Answered(Ask("a\nb", "/d/one")), "NAME_RESERVED");
  EXPECT_EQ(Answered(Ask(std::string(300, 'a'), "/d/one")), "NAME_RESERVED");
  EXPECT_EQ(bench_.reads_, 0);
}

TEST_F(BindingsTest, ADirectoryThatIsNotThereIsSaidSo) {
  EXPECT_EQ(Answered(Ask("a", "/d/nothing")), "no directory");
  EXPECT_EQ(Serves("a"), "");
}

TEST_F(BindingsTest, TheOldestIdleOneMakesRoomAndComesBackForItsRequests) {
  Ask("a", "/d/one");
  Ask("b", "/d/two");
  Ask("c", "/d/three");
  EXPECT_EQ(Answered(Ask("d", "/d/four")), "done");
  EXPECT_EQ(Serves("a"), "away");
  EXPECT_EQ(Serves("d"), "4");
  bench_.Wait(2'000);
  bench_.waiting_ = {AdapterName(Of("1").value)};
  bench_.Report();
  EXPECT_EQ(Serves("a"), "1");
  EXPECT_EQ(Serves("b"), "away");
}

TEST_F(BindingsTest, ARegistryFullOfWhatIsInUseIsSaidWithItsHolders) {
  for (const std::string name : {"1", "2", "3"})
    Ask(name, name == "1" ? "/d/one" : name == "2" ? "/d/two" : "/d/three");
  bench_.counts_ = {{Of("1"), 1}, {Of("2"), 1}, {Of("3"), 1}};
  bench_.Report();
  const uint64_t ticket = Ask("d", "/d/four");
  EXPECT_EQ(Answered(ticket), "nothing yet");
  bench_.Pass(60'000);
  EXPECT_EQ(Answered(ticket), "BIND_TIMEOUT");
  EXPECT_NE(bench_.bind_answers_[ticket].detail.find(Of("1").value), std::string::npos);
  EXPECT_EQ(bench_.unloads_, 0);
}

TEST_F(BindingsTest, WhatMustStayLeavesNoSlotForABinding) {
  bench_.Desire(1, {1, 2, 3});
  bench_.WantBeside(fleet::RowMode::kOpen, 1, {1, 2, 3});
  const uint64_t ticket = Ask("a", "/d/one");
  EXPECT_EQ(Answered(ticket), "NO_SLOT");
  EXPECT_NE(bench_.bind_answers_[ticket].detail.find(Bench::NameOf(1).value), std::string::npos);
}

TEST_F(BindingsTest, AVersionThatMustBeLoadedTakesTheSlotOfAnIdleBinding) {
  Ask("a", "/d/one");
  Ask("b", "/d/two");
  Ask("c", "/d/three");
  bench_.Wait(2'000);
  bench_.Desire(1, {1});
  EXPECT_TRUE(bench_.Routed(1));
  EXPECT_EQ(Serves("a"), "away");
}

TEST_F(BindingsTest, BindingsOutliveProxyAndEngine) {
  Ask("a", "/d/one");
  bench_.Reboot();
  bench_.Look(3);
  EXPECT_EQ(Serves("a"), "1") << "the engine was restarted";
  bench_.Stop();
  bench_.Start();
  bench_.Look(3);
  EXPECT_EQ(Serves("a"), "1") << "the proxy was";
  bench_.Stop();
  bench_.engine_.clear();
  bench_.boot_ = BootId("boot3");
  bench_.Start();
  bench_.Look(3);
  EXPECT_EQ(Serves("a"), "1") << "both were";
}

TEST_F(BindingsTest, LostFilesAreReadAgainAndOtherBytesAreRefused) {
  Ask("a", "/d/one");
  bench_.Stop();
  bench_.engine_.clear();
  bench_.boot_ = BootId("boot2");
  bench_.hash_matches_ = false;  // the memory where its copy lay is gone
  bench_.Start();
  bench_.Look(3);
  EXPECT_EQ(Serves("a"), "1") << "from where it came";
  bench_.Stop();
  bench_.engine_.clear();
  bench_.boot_ = BootId("boot3");
  bench_.files_["/d/one"] = "2";
  bench_.Start();
  bench_.Look(3);
  EXPECT_EQ(Serves("a"), "away") << "never by other bytes";
}

// vLLM scales an rsLoRA adapter as it should by its own config; SGLang does not, and needs another.
TEST_F(BindingsTest, WhatWasWrittenForAnotherKindOfEngineIsNotLoaded) {
  bench_.traits_.rslora = true;
  ASSERT_EQ(Answered(Ask("a", "/d/one")), "done");
  bench_.Stop();
  bench_.engine_.clear();
  bench_.loads_.clear();
  bench_.boot_ = BootId("boot2");
  bench_.limits_.kind = fleet::EngineKind::kSglang;
  bench_.Start();
  bench_.Look(3);
  bench_.waiting_ = {AdapterName(Of("1").value)};
  bench_.Report();
  EXPECT_TRUE(bench_.loads_.empty());
  EXPECT_EQ(Serves("a"), "away");
  EXPECT_NE(bench_.machine_->door_table().FindBinding("a")->waits_for.find("load again"),
            std::string::npos);
  const fleet::Observed told = bench_.machine_->Observe();
  ASSERT_EQ(told.residencies.size(), 1u);
  EXPECT_EQ(told.residencies[0].reason, "ADAPTER_UNSERVABLE");
  EXPECT_NE(told.residencies[0].detail.find("load again"), std::string::npos);
  EXPECT_EQ(Answered(Ask("a", "/d/one")), "done") << "the remedy that it names";
  EXPECT_EQ(bench_.loads_, std::vector{BindingName(Digest{"1"}, fleet::Render::kRsloraFolded)});
  EXPECT_EQ(Serves("a"), "1");
}

TEST_F(BindingsTest, ACallIsRefusedWhereAnotherKindOfEngineComesMeanwhile) {
  bench_.traits_.rslora = true;
  bench_.silent_ = {kLoadEffect};
  const uint64_t ticket = Ask("a", "/d/one");
  bench_.Tell(EngineLost{true});
  bench_.boot_ = BootId("boot2");
  bench_.limits_.kind = fleet::EngineKind::kSglang;
  bench_.See();
  EXPECT_EQ(Answered(ticket), "ADAPTER_UNSERVABLE");
}

TEST_F(BindingsTest, WhatIsAboveTheLimitsOfTheNextEngineIsNotLoaded) {
  bench_.traits_.rank_max = 64;
  ASSERT_EQ(Answered(Ask("a", "/d/one")), "done");
  bench_.limits_.rank_limit = 32;
  bench_.loads_.clear();
  bench_.Reboot();
  bench_.Look(3);
  EXPECT_TRUE(bench_.loads_.empty());
}

TEST_F(BindingsTest, TensorsAreReadOutOfTheirCall) {
  bench_.files_[kTensorsPath] = "t";
  bench_.Tell(BindAsked{++ticket_, "a", kTensorsPath, false, true});
  EXPECT_EQ(Answered(ticket_), "done");
  EXPECT_EQ(bench_.read_ticket_, ticket_);
  EXPECT_EQ(Serves("a"), "t");
  EXPECT_EQ(bench_.bind_answers_[ticket_].bound.at("a"), "__tensor__");
  Ask("b", "/d/one");
  EXPECT_EQ(bench_.read_ticket_, 0u);
}

TEST_F(BindingsTest, TensorsWhoseCopyWasLostAreTakenFromTheNextCall) {
  bench_.files_[kTensorsPath] = "t";
  bench_.Tell(BindAsked{++ticket_, "a", kTensorsPath, false, true});
  ASSERT_EQ(Answered(ticket_), "done");
  bench_.Stop();
  bench_.engine_.clear();
  bench_.boot_ = BootId("boot2");
  bench_.hash_matches_ = false;  // the memory where its copy lay is gone
  bench_.files_.clear();
  bench_.Start();
  bench_.Look(3);
  ASSERT_EQ(Serves("a"), "away") << "no directory has them";
  bench_.files_[kTensorsPath] = "t";
  bench_.fetch_failure_ = FetchFailed{0, "BINDING_LOST", "", true, false};  // of any but a call
  bench_.Tell(BindAsked{++ticket_, "a", kTensorsPath, false, true});
  EXPECT_EQ(Answered(ticket_), "done");
  EXPECT_EQ(Serves("a"), "t");
}

TEST_F(BindingsTest, TheOldestOfTooManyIsForgotten) {
  for (int i = 0; i < 65; ++i) {
    const std::string number = std::to_string(i);
    bench_.files_["/d/" + number] = "x" + number;
    ASSERT_EQ(Answered(Ask("n" + number, "/d/" + number)), "done") << i;
  }
  EXPECT_EQ(Serves("n0"), "");
  EXPECT_NE(Serves("n1"), "");
  EXPECT_EQ(bench_.machine_->door_table().bindings.size(), 64u);
}

TEST_F(BindingsTest, WhoseEngineDiedOfItIsNotLoadedAgainByItself) {
  bench_.silent_ = {kLoadEffect};
  const uint64_t ticket = Ask("a", "/d/one");
  bench_.silent_.clear();
  bench_.Reboot();
  bench_.Look(3);
  EXPECT_EQ(Answered(ticket), "POISONED");
  EXPECT_TRUE(bench_.loads_.empty());
  EXPECT_EQ(Answered(Ask("a", "/d/one")), "done") << "who asks again takes it upon himself";
}

TEST_F(BindingsTest, UnderAFrameworksPauseBeingListedMustDo) {
  Ask("a", "/d/one");
  Ask("b", "/d/two");
  Ask("c", "/d/three");
  bench_.Tell(CallMade{100, PauseCall{}});
  EXPECT_EQ(Answered(Ask("d", "/d/four")), "done") << "an idle one made room, too";
  EXPECT_EQ(bench_.probes_.back(), fleet::ProbeKind::kPresence);
  EXPECT_EQ(Serves("d"), "4");
  EXPECT_EQ(Serves("a"), "away");
  bench_.Tell(CallMade{101, ContinueCall{}});
  EXPECT_EQ(Serves("d"), "4");
}

TEST_F(BindingsTest, BeingListedMustDoWhileTheEngineIsAskedForAnotherPauseOrToGoOn) {
  for (const bool goes_on : {false, true}) {
    Bench bench(fleet::EngineKind::kSglang);
    bench.files_["/d/one"] = "x1";
    bench.Tell(CallMade{100, PauseCall{}});
    bench.silent_ = {kLoadEffect, kPauseEffect, kResumeEffect};
    bench.Tell(BindAsked{1, "a", "/d/one"});
    if (goes_on) {
      bench.Tell(CallMade{101, ContinueCall{}});
    } else {
      bench.Tell(CallMade{101, PauseCall{}});
    }
    ASSERT_EQ(bench.answered_.count(101), 0u);
    bench.engine_[*bench.shelf_.begin()] = "/" + bench.shelf_.begin()->value;
    for (OpId op = 1; op < 50; ++op) bench.Tell(LoadDone{op, Outcome::kOk, "", ""});
    EXPECT_EQ(bench.probes_, std::vector{fleet::ProbeKind::kPresence});
    EXPECT_EQ(bench.bind_answers_.count(1), 1u);
  }
}

TEST_F(BindingsTest, WhatCanBeToldApartOnceTheEngineIsAwakeIsNotLoadedAgain) {
  ASSERT_EQ(Answered(Ask("a", "/d/one")), "done");
  bench_.Call(ReleaseCall{{"kv_cache", "weights"}});
  bench_.Call(WakeCall{{"weights"}});
  bench_.Pass(3'000);
  bench_.Call(WakeCall{{"kv_cache"}});
  bench_.Pass(3'000);
  EXPECT_EQ(Serves("a"), "1");
  EXPECT_EQ(bench_.loads_.size(), 1u);
  EXPECT_EQ(bench_.unloads_, 0);
}

TEST_F(BindingsTest, RoomIsMadeForOneOnceTheWeightsAreBack) {
  ASSERT_EQ(Answered(Ask("a", "/d/one")), "done");
  ASSERT_EQ(Answered(Ask("b", "/d/two")), "done");
  ASSERT_EQ(Answered(Ask("c", "/d/three")), "done");
  bench_.Call(ReleaseCall{{"kv_cache", "weights"}});
  const uint64_t asleep = Ask("d", "/d/four");
  EXPECT_EQ(bench_.unloads_, 0);
  bench_.Call(WakeCall{{"weights"}});
  bench_.Pass(3'000);
  EXPECT_EQ(bench_.unloads_, 1) << "its framework waits for it before it takes the rest";
  EXPECT_EQ(Answered(asleep), "done");
}

// SGLang's unload waits for requests that it counts, and frozen ones never end; vLLM's waits for none.
TEST_F(BindingsTest, UnderAPauseThatKeepsRequestsOnlyVllmIsAskedForAnUnload) {
  for (const auto kind : {fleet::EngineKind::kSglang, fleet::EngineKind::kVllm}) {
    Bench bench(kind, 3);
    bench.files_["/d/one"] = "1";
    bench.Tell(BindAsked{1, "a", "/d/one", false});
    const bool is_vllm = kind == fleet::EngineKind::kVllm;
    bench.Tell(CallMade{
        100, PauseCall{is_vllm ? fleet::PauseKind::kKeep : fleet::PauseKind::kRetract, false}});
    bench.Wait(2'000);
    bench.Tell(UnbindAsked{2, "a"});
    EXPECT_EQ(bench.unloads_, is_vllm ? 1 : 0);
    bench.Tell(CallMade{101, ContinueCall{}});
    bench.Pass(3'000);
    EXPECT_EQ(bench.unloads_, 1);
  }
}

// They wait in the engine for the end of the pause, whatever became of their connections.
TEST_F(BindingsTest, WhatAnEarlierProcessLetInWaitsOutTheFrameworksPause) {
  Ask("a", "/d/one");
  bench_.Tell(CallMade{100, PauseCall{}});
  bench_.Stop();
  bench_.Start();
  Unbind("a");
  bench_.Pass(20'000);
  EXPECT_EQ(bench_.unloads_, 0);
  bench_.Tell(CallMade{101, ContinueCall{}});
  bench_.Pass(10'000);
  EXPECT_EQ(bench_.unloads_, 1);
}

// Which holds whatever comes of the next.
TEST_F(BindingsTest, TheyWaitItOutThoughTheEngineIsAskedForAnotherMeanwhile) {
  Ask("a", "/d/one");
  bench_.Tell(CallMade{100, PauseCall{}});
  bench_.Stop();
  bench_.Start();
  Unbind("a");
  bench_.silent_ = {kPauseEffect};
  bench_.Tell(CallMade{101, PauseCall{}});
  bench_.Pass(20'000);
  for (OpId op = 1; op < 100; ++op) bench_.Tell(PauseDone{op, Outcome::kUnknown, "", ""});
  bench_.Pass(4'000);
  EXPECT_EQ(bench_.unloads_, 0);
  bench_.Tell(CallMade{102, ContinueCall{}});
  bench_.Pass(10'000);
  EXPECT_EQ(bench_.unloads_, 1);
}

TEST_F(BindingsTest, AHungRegistryKeepsNoCallForever) {
  Bench sglang(fleet::EngineKind::kSglang, 3);
  sglang.files_["/d/one"] = "1";
  sglang.silent_ = {kUnloadEffect};
  sglang.Tell(BindAsked{1, "a", "/d/one", false});
  ASSERT_EQ(sglang.bind_answers_[1].answer, BindAnswer::kDone);
  sglang.Tell(UnbindAsked{2, "a"});
  sglang.unload_outcome_ = Outcome::kUnknown;
  sglang.silent_.clear();
  sglang.Tell(BindAsked{3, "b", "/d/one", false});
  EXPECT_EQ(sglang.bind_answers_.count(3), 0u);
  sglang.Pass(60'000);
  ASSERT_EQ(sglang.bind_answers_.count(3), 1u) << "no call hangs";
  EXPECT_NE(sglang.bind_answers_[3].answer, BindAnswer::kDone);
}

}  // namespace
}  // namespace lorry::proxy
