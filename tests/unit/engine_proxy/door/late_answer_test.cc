// Answers that take hours, and refused bodies that take seconds, under the limits that the program
// has without flags. Hours pass at once: this file's clock_gettime stands before libc's, and a test
// moves it on.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "services/engine_proxy/door_flags.h"
#include "tests/unit/engine_proxy/door/door_fixture.h"

ABSL_DECLARE_FLAG(int64_t, door_engine_silence_ms);

namespace {
std::atomic<int64_t> ahead_ms{0};
// Where the clock stands still, but for what a test moves it on; 0: it goes.
std::atomic<int64_t> stopped_ns{0};
}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* at) noexcept {
  static const auto next =
      reinterpret_cast<decltype(&clock_gettime)>(::dlsym(RTLD_NEXT, "clock_gettime"));
  const int failed = next(clock, at);
  if (failed == 0 && clock == CLOCK_MONOTONIC) {
    if (const int64_t stopped = stopped_ns; stopped != 0) {
      at->tv_sec = stopped / 1'000'000'000;
      at->tv_nsec = stopped % 1'000'000'000;
    }
    const int64_t ms = ahead_ms;
    const int64_t ns = at->tv_nsec + ms % 1'000 * 1'000'000;
    at->tv_sec += ms / 1'000 + ns / 1'000'000'000;
    at->tv_nsec = ns % 1'000'000'000;
  }
  return failed;
}

namespace lorry::door {
namespace {

using fleet::EngineKind;
using testing::Chunk;
using testing::DoorTest;
using testing::Gate;
using testing::JsonReply;
using testing::Message;
using testing::Post;
using testing::ReadMessage;
using testing::StreamHead;
using testing::Wire;

constexpr int64_t kThreeHoursMs = 3 * 3'600'000;
constexpr const char* kWhole = R"({"model":"policy","prompt":"a"})";
constexpr const char* kStream = R"({"model":"policy","prompt":"a","stream":true})";
constexpr const char* kOfTwo = R"({"model":"policy","prompt":"a","n":2})";

class LateAnswer : public DoorTest {
 protected:
  // What a client reads where the engine is silent for three hours: of a stream behind its first
  // event, else before its head.
  std::string Read(EngineKind kind, const std::string& body) {
    const auto limits = proxy::DoorLimitFlags();
    EXPECT_TRUE(limits.ok()) << limits.status();
    options_.limits = *limits;
    Gate asked;
    Gate late;
    StartBefore(
        [&](const Message& request, Wire& wire) {
          if (request.path() != "/v1/completions") return wire.Send(JsonReply(""));
          const bool streams = request.body.find("\"stream\":true") != std::string::npos;
          if (streams) wire.Send(StreamHead() + Chunk("data: {\"id\":\"x\"}\n\n"));
          asked.Open();
          EXPECT_TRUE(late.Wait());
          if (streams) return wire.Send(Chunk("data: [DONE]\n\n") + Chunk(""));
          return wire.Send(JsonReply(R"({"id":"x","choices":[{"index":0,"text":"late"}]})"));
        },
        kind);
    Wire wire = Connect();
    wire.Send(Post("/v1/completions", body, "Connection: close\r\n"));
    EXPECT_TRUE(asked.Wait());
    std::string read = body == kStream ? wire.ReadUntil("\"x\"}\n\n") : "";
    PassTime();
    late.Open();
    read += wire.ReadAll();
    // Where the door gave up first, the script still runs, and it uses the gates above.
    door_.reset();
    engine_.reset();
    return read;
  }

 private:
  // Each of the door's threads has looked at its limits once the hours are over: it closes whoever
  // has asked for nothing. Connections go to the threads in turn, and a thread that answers the
  // second of its two waits on the first again.
  void PassTime() {
    std::vector<Wire> wires;
    for (uint32_t i = 0; i < 2 * options_.threads; ++i) {
      wires.push_back(Connect());
      wires.back().Send(testing::Get("/health"));
      EXPECT_EQ(ReadMessage(wires.back()).status(), 200);
    }
    ahead_ms += kThreeHoursMs;
    for (uint32_t i = 0; i < options_.threads; ++i) EXPECT_TRUE(wires[i].AtEnd()) << "was idle";
  }
  absl::FlagSaver flags_;
};

TEST_F(LateAnswer, IsPassedOnHoweverLongItTook) {
  for (const EngineKind kind : {EngineKind::kSglang, EngineKind::kVllm}) {
    for (const char* body : {kWhole, kOfTwo, kStream}) {
      const std::string read = Read(kind, body);
      EXPECT_TRUE(read.starts_with("HTTP/1.1 200")) << body << read;
      EXPECT_NE(read.find(body == kStream ? "[DONE]" : "late"), std::string::npos) << body << read;
    }
  }
}

// What shows that the hours above have passed for the door.
TEST_F(LateAnswer, IsGivenUpWhereAFlagSaysSo) {
  absl::SetFlag(&FLAGS_door_engine_silence_ms, 300'000);
  for (const EngineKind kind : {EngineKind::kSglang, EngineKind::kVllm}) {
    for (const char* body : {kWhole, kOfTwo}) {
      const std::string read = Read(kind, body);
      EXPECT_TRUE(read.starts_with("HTTP/1.1 504")) << body << read;
      EXPECT_NE(read.find("ENGINE_TIMEOUT"), std::string::npos) << body << read;
    }
    const std::string read = Read(kind, kStream);
    EXPECT_TRUE(read.starts_with("HTTP/1.1 200")) << read;
    EXPECT_EQ(read.find("[DONE]"), std::string::npos) << read;
  }
}

// Its client reads nothing before it has sent all, over a line on which that takes a while: a reset
// would reach it instead of the answer. The clock stands still, so that a machine on which the test
// waits for its turn is not a client that sends nothing for a second.
class RefusedBody : public DoorTest {
 protected:
  RefusedBody() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    stopped_ns = now.tv_sec * 1'000'000'000 + now.tv_nsec - ahead_ms * 1'000'000;
  }
  ~RefusedBody() override { stopped_ns = 0; }
  // How many of `pieces` it could send, of which the door reads one each `ms`.
  int Send(Wire& wire, int pieces, int64_t ms) {
    for (int sent = 0; sent < pieces; ++sent) {
      if (!wire.Send("piece")) return sent;
      // What came later on either thread was served: the door has read this piece.
      for (uint32_t i = 0; i < options_.threads; ++i) {
        EXPECT_EQ(Ask(testing::Get("/health")).status(), 200);
      }
      ahead_ms += ms;
    }
    return pieces;
  }
  Wire Begin() {
    StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
    Wire wire = Connect();
    wire.Send("POST /generate HTTP/1.1\r\nHost: door\r\nContent-Length: 99999999\r\n\r\n");
    return wire;
  }
};

TEST_F(RefusedBody, IsReadForAsLongAsItComes) {
  Wire wire = Begin();
  EXPECT_EQ(Send(wire, 30, 100), 30);
  EXPECT_EQ(ReadMessage(wire).status(), 413);
}

TEST_F(RefusedBody, IsNotReadForEver) {
  Wire wire = Begin();
  EXPECT_LT(Send(wire, 200, 500), 100);
}

// Waits of several kinds, one after the other, each as long as its own limit lets it.
class Waits : public DoorTest {
 protected:
  Waits() {
    StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  }
  // After `ms`, and once the request has seen what stands there then.
  void Set(const proxy::DoorTable& table, int64_t ms) {
    ahead_ms += ms;
    door_->SetTable(table);
    for (uint32_t i = 0; i < options_.threads; ++i) {
      EXPECT_EQ(Ask(testing::Get("/health")).status(), 200);
    }
  }
  Wire Begin(const proxy::DoorTable& table) {
    door_->SetTable(table);
    Wire wire = Connect();
    wire.Send(Post("/generate", R"({"lora_path":"policy"})"));
    EXPECT_TRUE(testing::Eventually([&] { return door_->held() == 1; }));
    return wire;
  }
  static proxy::DoorTable Paused(proxy::DoorTable table) {
    table.framework_pause_ms = 900'000;
    return table;
  }
  static proxy::DoorTable Away() {
    testing::TableMaker maker;
    maker.Row("policy", fleet::RowMode::kOpen, 12);
    maker.raw().rows[0].on_demand = true;
    return maker.Make();
  }
};

TEST_F(Waits, UnderAPauseAreNoneForAnAdapter) {
  Wire wire = Begin(Paused(Away()));
  Set(Away(), 60'000);
  EXPECT_EQ(door_->Snapshot().waiting, std::vector{AdapterName("policy")});
  door_->SetTable(testing::PolicyTable().Make());
  EXPECT_EQ(ReadMessage(wire).status(), 200);
}

TEST_F(Waits, UnderAPauseAreNoneAtARow) {
  proxy::DoorTable held = testing::PolicyTable().Make();
  held.rows[0].mode = fleet::RowMode::kHeld;
  Wire wire = Begin(Paused(held));
  Set(held, 60'000);
  EXPECT_EQ(door_->held(), 1u);
  door_->SetTable(testing::PolicyTable().Make());
  EXPECT_EQ(ReadMessage(wire).status(), 200);
}

TEST_F(Waits, ForAnAdapterCountTogether) {
  Wire wire = Begin(Away());
  Set(Paused(Away()), 20'000);
  Set(Away(), 60'000);
  EXPECT_EQ(door_->held(), 1u);
  Set(Away(), 20'000);
  EXPECT_EQ(door_->held(), 0u);
  EXPECT_EQ(ReadMessage(wire).Get("X-Lorry-Reason"), "NOT_RESIDENT");
}

}  // namespace
}  // namespace lorry::door
