// What the door holds of a large request, counted by each allocation of this process.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "tests/unit/engine_proxy/door/door_fixture.h"

namespace {

std::atomic<size_t> held{0};
std::atomic<size_t> most{0};

void* Counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const size_t now = held += malloc_usable_size(memory);
  size_t before = most.load();
  while (now > before && !most.compare_exchange_weak(before, now)) {
  }
  return memory;
}

void Uncounted(void* memory) {
  held -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(size_t size) { return Counted(std::malloc(size)); }
void* operator new(size_t size, std::align_val_t align) {
  return Counted(std::aligned_alloc(static_cast<size_t>(align), size));
}
void operator delete(void* memory) noexcept { Uncounted(memory); }
void operator delete(void* memory, size_t) noexcept { Uncounted(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Uncounted(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { Uncounted(memory); }

namespace lorry::door {
namespace {

using testing::Chunk;
using testing::DoorTest;
using testing::JsonReply;
using testing::Message;
using testing::Post;
using testing::ReadMessage;
using testing::ScriptedEngine;
using testing::StreamHead;
using testing::Wire;

constexpr size_t kBodyBytes = 8u << 20;

class DoorMemory : public DoorTest {
 protected:
  // The most that was held while `request` was answered, beyond what was held before.
  size_t MostFor(const std::string& request) {
    Wire wire = Connect();
    const size_t before = held;
    most = before;
    wire.Send(request);
    EXPECT_EQ(ReadMessage(wire).status(), 200);
    return most - before;
  }
};

TEST_F(DoorMemory, SendsOneBodyToAllSamples) {
  engine_ = std::make_unique<ScriptedEngine>(
      [](const Message&, Wire& wire) { return wire.Send(JsonReply(R"({"text":""})")); },
      /*keep_bodies=*/false);
  StartBefore(engine_->port());
  const std::string text(kBodyBytes, 'x');
  const auto request = [&](int n) {
    return Post("/generate", R"({"lora_path":"policy","sampling_params":{"n":)" +
                                 std::to_string(n) + R"(},"text":")" + text + R"("})");
  };
  const std::string one = request(1);
  const std::string many = request(16);
  const size_t for_one = MostFor(one);
  EXPECT_GT(for_one, kBodyBytes);
  EXPECT_LT(MostFor(many), for_one + 2 * kBodyBytes) << "and not sixteen bodies";
  EXPECT_TRUE(BecomesQuiet());
}

// They may have most of the memory that the proxy has.
TEST_F(DoorMemory, HandsTensorsOverWithoutACopy) {
  options_.on_call = [](EngineCall call, CallTicket ticket) {
    EXPECT_EQ(call.body.size(), kBodyBytes);
    ticket.Answer(CallReply{200, "text/plain", ""});
  };
  engine_ = std::make_unique<ScriptedEngine>([](const Message&, Wire&) { return false; });
  StartBefore(engine_->port());
  const std::string request = Post("/load_lora_adapter_from_tensors", std::string(kBodyBytes, 'A'));
  EXPECT_LT(MostFor(request), kBodyBytes + kBodyBytes / 8);
}

TEST_F(DoorMemory, KeepsNoRoomForBodiesOnConnectionsThatWait) {
  constexpr size_t kConnections = 64;
  constexpr size_t kEach = 32 * 1024;
  engine_ = std::make_unique<ScriptedEngine>(
      [](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); },
      /*keep_bodies=*/false);
  StartBefore(engine_->port());
  const std::string request = Post(
      "/generate", R"({"lora_path":"policy","text":")" + std::string(256 * 1024, 'x') + R"("})");
  const size_t before = held;
  std::vector<Wire> kept;
  for (size_t i = 0; i < kConnections; ++i) {
    kept.push_back(Connect());
    kept.back().Send(request);
    EXPECT_EQ(ReadMessage(kept.back()).status(), 200);
  }
  EXPECT_TRUE(testing::Eventually([&] { return held < before + kConnections * kEach; }));
}

// A stream may last for hours; its request's body need not.
TEST_F(DoorMemory, ForgetsTheBodyOnceTheEngineAnswers) {
  testing::Gate gate;
  engine_ = std::make_unique<ScriptedEngine>(
      [&](const Message&, Wire& wire) {
        wire.Send(StreamHead() + Chunk("data: {}\n\n"));
        EXPECT_TRUE(gate.Wait());
        return wire.Send(Chunk(""));
      },
      /*keep_bodies=*/false);
  StartBefore(engine_->port());
  const std::string request = Post("/generate", R"({"lora_path":"policy","stream":true,"text":")" +
                                                    std::string(kBodyBytes, 'x') + R"("})");
  const size_t before = held;
  Wire wire = Connect();
  wire.Send(request);
  wire.ReadUntil("data: {}");
  EXPECT_LT(held, before + kBodyBytes / 2);
  gate.Open();
  wire.ReadUntil("0\r\n\r\n");
}

}  // namespace
}  // namespace lorry::door
