// The whole door, from socket to reply: a real Door between clients and an engine that both do
// what the input says, in its order. See README.md for the commands.
//
// After each input nothing is counted any more, every whole request was answered or its connection
// said that it would end, and the door's threads hold no more memory than its limits add up to.
#include <poll.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/check.h"
#include "services/engine_proxy/door/door.h"
#include "tests/fuzz/door/client.h"
#include "tests/fuzz/door/hostile_engine.h"
#include "tests/fuzz/heap_watch.h"
#include "tests/fuzz/script.h"
#include "tests/unit/engine_proxy/door/tables.h"

namespace lorry::door::fuzz {
namespace {

using lorry::fuzz::Command;
using lorry::fuzz::HeapWatch;
using testing::NameOf;
using testing::TableMaker;

constexpr size_t kClients = 4;
// What a stuck door is given before it counts as stuck: no time on an idle machine comes near.
constexpr std::chrono::milliseconds kPatience(lorry::fuzz::kPatienceMs);
// A wait that the input asks for ends when nothing has moved for so many milliseconds.
constexpr int kStillMs = 2;
// A request that no table of the input lets go is answered after this.
constexpr int64_t kHoldMs = 20;
constexpr size_t kPayloadBytesMax = 2 << 20;

// All bodies three times (received, padded, rewritten), what one walk over the greatest needs, and
// for each of the clients' split children its connection and its reply.
constexpr int64_t kPeakBytesMax = 48 << 20;
// What stays from input to input: rings and pools, which are bounded; a leak is not.
constexpr int64_t kRetainedBytesMax = 4 << 20;
constexpr int kWarmUpInputs = 64;

DoorLimits Limits() {
  DoorLimits limits;
  limits.body_bytes = (1 << 20) + (64 << 10);
  limits.all_bodies_bytes = limits.tensors_bytes = 2 * limits.body_bytes;
  limits.split_reply_bytes = 16 << 10;
  limits.connections = 64;
  limits.live_requests = 64;
  limits.held_requests = 16;
  limits.pooled_connections = 16;
  // Nothing here may depend on a time limit; what lasts so long is stuck.
  const int64_t for_ever_ms = 600'000;
  for (int64_t* limit : {&limits.head_ms, &limits.body_ms, &limits.keep_alive_ms,
                         &limits.client_write_ms, &limits.engine_write_ms}) {
    *limit = for_ever_ms;
  }
  return limits;
}

proxy::DoorTable TableOf(uint8_t variant) {
  constexpr fleet::InFlightMode kRules[] = {fleet::InFlightMode::kFinishOnOld,
                                            fleet::InFlightMode::kAbort,
                                            fleet::InFlightMode::kResumeOnNew};
  const bool vllm = (variant & 1) != 0;
  TableMaker maker(vllm ? fleet::EngineKind::kVllm : fleet::EngineKind::kSglang);
  maker.Rules({.adapter = AdapterName("policy"),
               .current_run = RunId(1),
               .no_adapter = variant / 2 % 6 == 5 ? fleet::NoAdapterMode::kLatest
                                                  : fleet::NoAdapterMode::kRefuse,
               .hold_limit_ms = kHoldMs,
               .in_flight = kRules[variant / 12 % 3]});
  maker.Loaded("policy", 11, 1).Loaded("policy", 12).Loaded("math", 3).Alias("policy", "eval", 11);
  maker.Row("math", fleet::RowMode::kOpen, 3);
  switch (variant / 2 % 6) {
    case 1:
      maker.Row("policy", fleet::RowMode::kHeld);
      break;
    case 2:
      maker.Row("policy", fleet::RowMode::kLocked);
      break;
    case 3:
      maker.Row("policy", fleet::RowMode::kClosed, 0, /*catching_up=*/!vllm);
      break;
    case 4:
      return {};  // no engine answers
    default:
      maker.Row("policy", fleet::RowMode::kOpen, variant / 36 % 2 == 1 ? 11 : 12);
  }
  return maker.Make();
}

class Fuzzer {
 public:
  Fuzzer()
      : engine_({NameOf("policy", 11).value, NameOf("policy", 12).value, NameOf("math", 3).value}) {
    HeapWatch::Install();
    HeapWatch::Ignore();
    NewDoor();
  }

  void Run(std::string_view input) {
    HeapWatch::ResetPeak();
    SetTable(0);
    for (const Command& command : lorry::fuzz::ReadScript(input)) Do(command);
    Settle();
    CheckHeap();
  }

 private:
  void NewDoor();
  void SetTable(uint8_t variant) { door_->SetTable(TableOf(variant)); }
  Client& At(uint8_t arg);
  void Do(const Command& command);
  void PlanReply(const Command& command);
  bool Move();
  void Poll(int ms);
  void UntilStill();
  template <typename Condition>
  void Until(const char* what, Condition condition);
  void Settle();
  void CheckHeap();

  HostileEngine engine_;
  std::unique_ptr<Door> door_;
  std::array<std::optional<Client>, kClients> clients_;
  std::optional<std::thread> draining_;
  std::atomic<bool> drained_{false};
  std::optional<int64_t> retained_before_;
  int inputs_ = 0;
};

void Fuzzer::NewDoor() {
  DoorOptions options;
  options.engine_port = engine_.port();
  options.threads = 1;
  options.limits = Limits();
  options.explained_requests = 16;
  door_ = std::make_unique<Door>(options);
  LORRY_CHECK(door_->Start().ok());
  door_->SetEngineFacts(
      {.base_models = {"base"}, .cumulative_streams = true, .aborts_waiting = true});
  inputs_ = 0;
  retained_before_.reset();
}

Client& Fuzzer::At(uint8_t arg) {
  std::optional<Client>& client = clients_[arg % kClients];
  if (!client || !client->open()) client.emplace(door_->port());
  LORRY_CHECK(client->open() || draining_);
  if (draining_) client->Forgive();
  return *client;
}

void Fuzzer::PlanReply(const Command& command) {
  PlannedReply reply{.bytes = lorry::fuzz::Expand(command.payload, kPayloadBytesMax),
                     .close = (command.arg & 1) != 0,
                     .reset = (command.arg & 2) != 0,
                     .trickle = (command.arg & 4) != 0,
                     .hang = (command.arg & 8) != 0,
                     .early = (command.arg & 16) != 0};
  if (command.op == 'J') reply.form = PlannedReply::Form::kJson;
  if (command.op == 'S') reply.form = PlannedReply::Form::kEvents;
  engine_.Plan(std::move(reply));
}

void Fuzzer::Do(const Command& command) {
  switch (command.op) {
    case 'R':
      At(command.arg).SendRequest(lorry::fuzz::Expand(command.payload, kPayloadBytesMax));
      break;
    case 'r':
      At(command.arg).SendRaw(lorry::fuzz::Expand(command.payload, kPayloadBytesMax));
      break;
    case 'h':
      At(command.arg).HalfClose();
      break;
    case 'c':
      At(command.arg).Close();
      break;
    case 'x':
      At(command.arg).Reset();
      break;
    case 'n':
      At(command.arg).StopReading((command.arg & 4) != 0);
      break;
    case 'E':
    case 'J':
    case 'S':
      PlanReply(command);
      return;  // nothing to move yet
    case 't':
      SetTable(command.arg);
      break;
    case 'q':
      for (const Explained& one : door_->Recent(command.arg)) (void)door_->Explain(one.request_id);
      return;
    case 'd':
      if (draining_) break;
      for (auto& client : clients_) {
        if (client) client->Forgive();
      }
      draining_.emplace([this, grace_ms = command.arg] {
        HeapWatch::Ignore();
        door_->Drain(grace_ms);
        drained_ = true;
      });
      break;
    case 'w':
      UntilStill();
      break;
  }
  Move();
}

bool Fuzzer::Move() {
  bool moved = engine_.Move();
  for (auto& client : clients_) moved = (client && client->Move()) || moved;
  return moved;
}

// Sleeps until a socket may move again.
void Fuzzer::Poll(int ms) {
  std::vector<pollfd> polled;
  engine_.AddTo(&polled);
  for (const auto& client : clients_) {
    if (!client || !client->open()) continue;
    const auto events = static_cast<short>(POLLIN | (client->wants_to_send() ? POLLOUT : 0));
    polled.push_back({.fd = client->fd(), .events = events, .revents = 0});
  }
  ::poll(polled.data(), polled.size(), ms);
}

void Fuzzer::UntilStill() {
  for (int still = 0; still < kStillMs;) {
    if (Move()) {
      still = 0;
    } else {
      ++still;
      Poll(1);
    }
  }
}

template <typename Condition>
void Fuzzer::Until(const char* what, Condition condition) {
  auto moved_at = std::chrono::steady_clock::now();
  while (!condition()) {
    const auto now = std::chrono::steady_clock::now();
    if (Move()) {
      moved_at = now;
    } else if (now - moved_at > kPatience) {
      const Counts counts = door_->Snapshot();
      std::fprintf(stderr, "stuck, and not yet: %s; live %u\n", what, counts.live);
      std::abort();
    } else {
      Poll(1);
    }
  }
}

void Fuzzer::Settle() {
  engine_.LetGo();
  if (!draining_) SetTable(0);
  for (auto& client : clients_) {
    if (client) client->StopReading(false);
  }
  const auto none = [this](bool (Client::*holds)() const) {
    for (const auto& client : clients_) {
      if (client && ((*client).*holds)()) return false;
    }
    return true;
  };
  Until("every whole request is answered", [&] { return draining_ || none(&Client::owed); });
  for (auto& client : clients_) {
    if (client) client->HalfClose();
  }
  Until("the door closes when its clients have left", [&] { return none(&Client::open); });
  Until("nothing is counted", [&] {
    if (drained_) return true;  // what it gave up when its grace had passed stays counted
    const Counts counts = door_->Snapshot();
    return counts.live == 0 && counts.base_in_flight == 0 && counts.in_flight.empty();
  });
  if (draining_) {
    Until("the door is drained", [&] { return drained_.load(); });
    draining_->join();
    draining_.reset();
    drained_ = false;
    engine_.Clear();
    NewDoor();
  }
  engine_.Clear();
  for (auto& client : clients_) client.reset();
}

void Fuzzer::CheckHeap() {
  const int64_t live = HeapWatch::live_bytes();
  if (++inputs_ == kWarmUpInputs) retained_before_ = live;
  const int64_t peak = HeapWatch::peak_bytes();
  const int64_t grown = retained_before_ ? live - *retained_before_ : 0;
  if (peak <= kPeakBytesMax && grown <= kRetainedBytesMax) return;
  std::fprintf(stderr, "the door held %ld bytes, and keeps %ld more than after %d inputs\n", peak,
               grown, kWarmUpInputs);
  std::abort();
}

}  // namespace
}  // namespace lorry::door::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* fuzzer = new lorry::door::fuzz::Fuzzer;
  fuzzer->Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
