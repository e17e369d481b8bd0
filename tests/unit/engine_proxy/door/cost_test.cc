// What one small request costs the door, in system calls and allocations of its threads: the
// mechanisms behind the rates that tests/bench/door measures. Counted in this process, where this
// file's definitions stand before libc's.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <new>
#include <string>

#include "tests/unit/engine_proxy/door/door_fixture.h"

namespace {

enum Cost { kAllocation, kEpollWait, kEpollCtl, kReceive, kSend, kPoll, kLock, kCosts };

std::atomic<int> spent[kCosts];
// Set where a thread waits for its sockets: that is what the door's threads do, and neither the
// test nor the scripted engine.
thread_local bool is_the_doors = false;
std::atomic<bool> waits = false;  // the door's thread, for its sockets

void Spend(Cost cost) {
  if (is_the_doors) ++spent[cost];
}

template <typename F>
F* Next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// Not inlined: g++ 12 would take them for mismatched pairs.
[[gnu::noinline]] void* operator new(size_t size) {
  Spend(kAllocation);
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t align) {
  const auto unit = static_cast<size_t>(align);
  if (void* const memory = ::aligned_alloc(unit, (size + unit - 1) / unit * unit)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

extern "C" {

int epoll_wait(int fd, epoll_event* events, int room, int timeout_ms) {
  static const auto next = Next<decltype(epoll_wait)>("epoll_wait");
  is_the_doors = true;
  Spend(kEpollWait);
  waits = true;
  const int found = next(fd, events, room, timeout_ms);
  waits = false;
  return found;
}
int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept {
  static const auto next = Next<decltype(epoll_ctl)>("epoll_ctl");
  Spend(kEpollCtl);
  return next(epoll, operation, fd, event);
}
// Where Asio takes the memory of coroutines from.
void* aligned_alloc(size_t align, size_t size) noexcept {
  static const auto next = Next<decltype(aligned_alloc)>("aligned_alloc");
  Spend(kAllocation);
  return next(align, size);
}
ssize_t recv(int fd, void* bytes, size_t size, int flags) {
  static const auto next = Next<decltype(recv)>("recv");
  Spend(kReceive);
  return next(fd, bytes, size, flags);
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static const auto next = Next<decltype(recvmsg)>("recvmsg");
  Spend(kReceive);
  return next(fd, message, flags);
}
ssize_t send(int fd, const void* bytes, size_t size, int flags) {
  static const auto next = Next<decltype(send)>("send");
  Spend(kSend);
  return next(fd, bytes, size, flags);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static const auto next = Next<decltype(sendmsg)>("sendmsg");
  Spend(kSend);
  return next(fd, message, flags);
}
int poll(pollfd* fds, nfds_t size, int timeout_ms) {
  static const auto next = Next<decltype(poll)>("poll");
  Spend(kPoll);
  return next(fds, size, timeout_ms);
}

#ifndef __clang__  // which builds this for ThreadSanitizer: it must see locks itself
int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto next = Next<decltype(pthread_mutex_lock)>("pthread_mutex_lock");
  Spend(kLock);
  return next(mutex);
}
#endif

}  // extern "C"

namespace lorry::door {
namespace {

using namespace lorry::door::testing;

constexpr int kRequests = 200;
constexpr int kWarmUp = 50;  // what is made once, or kept for the next one
constexpr size_t kPromptBytes = 500;

// A client has its reply before the door is done with the request.
void AwaitTheDoor() {
  EXPECT_TRUE(Eventually([] { return waits.load(); }));
}

void CountAnew() {
  AwaitTheDoor();
  for (auto& one : spent) one = 0;
}

class Cost : public DoorTest {
 protected:
  // Of one request among many on one connection, on average.
  std::map<::Cost, double> OfARequest(fleet::EngineKind kind, const std::string& body) {
    options_.threads = 1;
    options_.limits.sweep_ms = 60'000;          // none within the test
    options_.explained_requests = kWarmUp / 2;  // full by then, as it is in a door that has served
    engine_ = std::make_unique<ScriptedEngine>(
        [](const Message&, Wire& wire) {
          return wire.Send(JsonReply(R"({"id":"x","choices":[{"index":0,"text":"hello world"}]})"));
        },
        /*keep_bodies=*/false);
    options_.engine_port = engine_->port();
    door_ = std::make_unique<Door>(options_);
    EXPECT_TRUE(door_->Start().ok());
    door_->SetEngineFacts({.base_models = {"base"}});
    door_->SetTable(PolicyTable(kind).Make());
    Wire wire = Connect();
    const std::string request = Post("/v1/completions", body);
    for (int i = 0; i < kWarmUp + kRequests; ++i) {
      if (i == kWarmUp) CountAnew();
      wire.Send(request);
      EXPECT_EQ(ReadMessage(wire).status(), 200);
    }
    AwaitTheDoor();
    std::map<::Cost, double> each;
    for (int cost = 0; cost < kCosts; ++cost) {
      each[static_cast<::Cost>(cost)] = static_cast<double>(spent[cost]) / kRequests;
    }
    return each;
  }
};

const std::string kBody =
    R"({"model":"policy","prompt":")" + std::string(kPromptBytes, 'a') + R"(","max_tokens":16})";

// To each side one write, one wait and one read, and one look at a connection that was idle. No read
// finds nothing.
TEST_F(Cost, OfSystemCallsIsWhatTwoSocketsNeed) {
  auto each = OfARequest(fleet::EngineKind::kVllm, kBody);
  EXPECT_EQ(each[kEpollCtl], 0) << "nothing is watched that ends at once";
  EXPECT_EQ(each[kPoll], 0);
  EXPECT_EQ(each[kSend], 2);
  EXPECT_EQ(each[kReceive], 3);
  EXPECT_LE(each[kEpollWait], 2.1);
}

// Each event of a stream comes alone: one read and one write of it, and no read that finds nothing.
TEST_F(Cost, OfAnEventIsOneReadAndOneWrite) {
  constexpr int kEvents = 100;
  options_.threads = 1;
  options_.limits.sweep_ms = 60'000;
  Gate read[kEvents];
  StartBefore(
      [&](const Message&, Wire& wire) {
        wire.Send(StreamHead());
        for (Gate& one : read) {
          wire.Send(Chunk("data: {\"model\":\"x\"}\n\n"));
          if (!one.Wait()) return false;
        }
        return wire.Send(Chunk(""));
      },
      fleet::EngineKind::kVllm);
  Wire wire = Connect();
  wire.Send(Post("/v1/completions", R"({"model":"policy","stream":true})"));
  wire.ReadUntil("\n\n");
  CountAnew();
  for (int i = 0; i + 1 < kEvents; ++i) {
    read[i].Open();
    wire.ReadUntil("\n\n");
  }
  // The kernel may report bytes once more that a read has just taken.
  constexpr int kMost = kEvents + kEvents / 10;
  EXPECT_LE(spent[kReceive], kMost);
  EXPECT_LE(spent[kSend], kEvents);
  EXPECT_LE(spent[kEpollWait], kMost);
  read[kEvents - 1].Open();
  wire.ReadUntil("0\r\n\r\n");
}

// Three of them all threads share: to resolve the request, to end its count, and to note it. The table
// is looked at without one. The others are Asio's own, a thread's.
TEST_F(Cost, OfLocksDoesNotGrow) {
  auto each = OfARequest(fleet::EngineKind::kVllm, kBody);
  EXPECT_LE(each[kLock], 11);
}

// Of which three are coroutines: each step that this request may wait in is one.
TEST_F(Cost, OfAllocationsDoesNotGrow) {
  auto vllm = OfARequest(fleet::EngineKind::kVllm, kBody);
  auto sglang = OfARequest(fleet::EngineKind::kSglang, kBody);
  EXPECT_LE(vllm[kAllocation], 20);
  EXPECT_LE(sglang[kAllocation], 37);
}

// None of them is for a number, nor for a piece of the body: it may be read and written in several.
TEST_F(Cost, OfAllocationsDoesNotGrowWithTheTokenIdsOfAPrompt) {
  std::string ids = "[1234";
  for (int i = 1; i < 32'768; ++i) ids += ",1234";
  auto few = OfARequest(fleet::EngineKind::kSglang, kBody);
  auto many = OfARequest(fleet::EngineKind::kSglang,
                         R"({"model":"policy","prompt":)" + ids + R"(],"max_tokens":16})");
  EXPECT_LE(many[kAllocation], few[kAllocation] + 16);
}

}  // namespace
}  // namespace lorry::door
