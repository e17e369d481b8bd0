// A machine whose engine sleeps, or gets other weights.
#pragma once

#include <string>

#include "gtest/gtest.h"
#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {

inline const MemoryTags kAll = {"cuda_graph", "kv_cache", "weights"};
inline const MemoryTags kWeights = {"weights"};
inline const MemoryTags kCache = {"kv_cache"};

class MemoryTest : public ::testing::Test {
 protected:
  explicit MemoryTest(fleet::EngineKind kind = fleet::EngineKind::kVllm) : bench_(kind) {
    bench_.Desire(1, {1});
  }
  uint64_t Release(const MemoryTags& tags = {"kv_cache", "weights"}) {
    return bench_.Call(ReleaseCall{tags});
  }
  uint64_t Wake(const MemoryTags& tags = {"kv_cache", "weights"}) {
    return bench_.Call(WakeCall{tags});
  }
  uint64_t Update() { return bench_.Call(WeightsCall{}); }
  // "ok", "waits", or the reason.
  std::string Answered(uint64_t call) const {
    const auto it = bench_.answered_.find(call);
    if (it == bench_.answered_.end()) return "waits";
    return it->second.outcome == Outcome::kOk ? "ok" : it->second.reason;
  }
  MemoryTags Written() const {
    const auto it = bench_.records_.find("asleep");
    return it == bench_.records_.end() ? MemoryTags() : std::get<AsleepRecord>(it->second).tags;
  }
  // Of these, what a call is for that has no answer.
  MemoryTags Doubted() const {
    const auto it = bench_.records_.find("asleep");
    return it == bench_.records_.end() ? MemoryTags() : std::get<AsleepRecord>(it->second).doubted;
  }
  bool IsShut() const { return bench_.machine_->door_table().asleep; }
  bool IsUpdating() const { return bench_.machine_->door_table().updating; }
  fleet::MemberHealth Health() const { return bench_.machine_->Observe().health; }
  std::string Detail() const { return bench_.machine_->Observe().health_detail; }
  size_t passed() const { return bench_.passed_.size(); }
  size_t probes() const { return bench_.probes_.size(); }
  size_t loads() const { return bench_.loads_.size(); }
  // Every PassCall so far is answered so.
  void AnswerPassed(Outcome outcome) {
    for (OpId op = 1; op < 400; ++op) bench_.Tell(PassDone{op, outcome});
  }

  Bench bench_;
};

}  // namespace lorry::proxy
