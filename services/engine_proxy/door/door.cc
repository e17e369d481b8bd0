#include "services/engine_proxy/door/door.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <random>
#include <thread>
#include <utility>

#include "lib/base/digest.h"
#include "lib/base/error.h"
#include "lib/base/host_port.h"
#include "lib/base/mutex.h"
#include "services/engine_proxy/door/in_flight.h"
#include "services/engine_proxy/door/session.h"

namespace lorry::door {
namespace {

using Acceptor = asio::basic_socket_acceptor<Tcp, Executor>;

// More threads than this only move the engine's own work off its cores.
constexpr uint32_t kMaxDefaultThreads = 4;
// After the grace of a drain: time for aborts to reach the engine.
constexpr int64_t kAbortGraceMs = 2'000;
// The journal, images, gRPC and the engine's driver.
constexpr rlim_t kOtherDescriptors = 256;
// Out of descriptors: accepting again at once would spin.
constexpr std::chrono::milliseconds kAcceptPause{50};

constexpr std::string_view kFullReply =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nX-Lorry-Reason: DOOR_FULL\r\n"
    "Content-Length: 0\r\nConnection: close\r\n\r\n";

Task<void> SweepLoop(Shard& shard) {
  Timer timer(shard.io.get_executor());
  for (;;) {
    timer.expires_after(std::chrono::milliseconds(shard.shared.options.limits.sweep_ms));
    auto [error] = co_await timer.async_wait(kAwait);
    if (error) co_return;
    shard.sweeper.Sweep();
    for (Client* client : shard.clients) client->Look();
    shard.pool.CloseIdle();
  }
}

void AskHeldAgain(Shard& shard) {
  for (Timer* timer : shard.held) timer->cancel();
}

// A client's connection may need one to the engine, and one that is split into n needs n: with more
// than that requests would fail one by one.
DoorOptions WithinDescriptors(DoorOptions options) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return options;
  const rlim_t left = limit.rlim_cur - std::min(limit.rlim_cur / 2, kOtherDescriptors);
  const auto cut = [&limit, most = left / 2](std::string_view flag, uint32_t& value) {
    if (value <= most) return;
    spdlog::warn("{} is {} and not {}: the process may have {} descriptors (ulimit -Hn)", flag,
                 most, value, limit.rlim_cur);
    value = static_cast<uint32_t>(most);
  };
  cut("--door-connections", options.limits.connections);
  cut("--door-live-requests", options.limits.live_requests);
  return options;
}

uint64_t RandomSeed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace

std::string Shard::NewId() {
  uint8_t bytes[16];
  for (int half = 0; half < 2; ++half) {
    uint64_t random = prng.Next();
    for (int i = 0; i < 8; ++i, random >>= 8) bytes[half * 8 + i] = static_cast<uint8_t>(random);
  }
  return ToHex(bytes);
}

struct Door::State {
  explicit State(DoorOptions options) : shared(std::move(options)) {}

  Task<void> AcceptLoop();
  void TakeIn(Shard& shard, Socket socket);
  void StopAccepting();
  void BeginToDrain();
  Shard& NextShard() { return *shards[next_shard++ % shards.size()]; }
  void EachShard(std::function<void(Shard&)> f) {
    for (auto& shard : shards) asio::post(shard->io, [s = shard.get(), f] { f(*s); });
  }
  bool WaitForNoConnection(int64_t ms);

  Shared shared;
  std::vector<std::unique_ptr<Shard>> shards;
  // Of the first shard; the others get their sockets from there.
  std::unique_ptr<Acceptor> acceptor;
  Mutex drain_mutex;
  std::vector<std::thread> threads;
  std::atomic<bool> over = false;  // the threads have ended, so nothing moves any more
  size_t next_shard = 0;           // the first shard's thread's
  uint16_t port = 0;
};

// One acceptor deals the connections out in turn. SO_REUSEPORT would let the kernel deal by hash,
// which puts the few long connections of a rollout client on one thread, and drops queued ones when
// an acceptor closes.
Task<void> Door::State::AcceptLoop() {
  for (;;) {
    Shard& shard = NextShard();
    auto [error, socket] = co_await acceptor->async_accept(shard.io, kAwait);
    if (!error) {
      TakeIn(shard, std::move(socket));
      continue;
    }
    if (!acceptor->is_open()) co_return;
    Timer pause(shards[0]->io.get_executor());
    pause.expires_after(kAcceptPause);
    auto [ignored] = co_await pause.async_wait(kAwait);
    (void)ignored;
  }
}

void Door::State::TakeIn(Shard& shard, Socket socket) {
  if (shared.connections.fetch_add(1) >= shared.options.limits.connections) {
    shared.connections.fetch_sub(1);
    ErrorCode ignored;
    socket.non_blocking(true, ignored);
    socket.send(asio::buffer(kFullReply.data(), kFullReply.size()), 0, ignored);
    if (shared.options.observer) shared.options.observer->OnRefused("DOOR_FULL");
    return;
  }
  asio::post(shard.io, [&shard, accepted = std::move(socket)]() mutable {
    auto client = std::make_shared<Client>(shard, std::move(accepted));
    asio::co_spawn(shard.io, ServeConnection(shard, std::move(client)), asio::detached);
  });
}

// Closing a listening socket resets the connections that wait in it: they are taken in first, and
// each gets an answer to what it asked.
void Door::State::StopAccepting() {
  ErrorCode error;
  acceptor->non_blocking(true, error);
  while (!error) {
    Shard& shard = NextShard();
    Socket socket = acceptor->accept(shard.io, error);
    if (!error) TakeIn(shard, std::move(socket));
  }
  acceptor->close(error);
}

bool Door::State::WaitForNoConnection(int64_t ms) {
  const int64_t until = NowMs() + ms;
  while (shared.connections.load() > 0 && NowMs() < until && !over.load()) {
    // tidy: allow sleep: a bounded poll while the process ends; the threads must not wait for it
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return shared.connections.load() == 0;
}

Door::Door(DoorOptions options)
    : state_(std::make_unique<State>(WithinDescriptors(std::move(options)))) {}

Door::~Door() { Drain(0); }

namespace {

UpstreamPool::Endpoints Resolve(const DoorOptions& options, ErrorCode& error) {
  asio::io_context io;
  asio::ip::basic_resolver<Tcp, Executor> resolver(io.get_executor());
  const auto found =
      resolver.resolve(options.engine_host, std::to_string(options.engine_port), error);
  return {found.begin(), found.end()};
}

}  // namespace

absl::Status Door::Start() {
  State& state = *state_;
  const DoorOptions& options = state.shared.options;
  const auto unavailable = [](std::string_view reason, const std::string& message) {
    return Error(absl::StatusCode::kUnavailable, reason, message);
  };
  ErrorCode error;
  const UpstreamPool::Endpoints engine = Resolve(options, error);
  if (engine.empty()) {
    return unavailable("ENGINE_UNREACHABLE", "cannot resolve the engine's host " +
                                                 options.engine_host + ": " + error.message());
  }
  state.shared.engine_authority = HostPort{options.engine_host, options.engine_port}.ToString();
  const uint32_t threads =
      options.threads > 0 ? options.threads
                          : std::clamp(std::thread::hardware_concurrency(), 1u, kMaxDefaultThreads);
  for (uint32_t i = 0; i < threads; ++i) {
    state.shards.push_back(std::make_unique<Shard>(state.shared, engine, RandomSeed()));
  }
  const auto address = asio::ip::make_address(options.listen_host, error);
  if (error) return unavailable("LISTEN_FAILED", options.listen_host + " is not an IP address");
  const Tcp::endpoint at(address, options.port);
  state.acceptor = std::make_unique<Acceptor>(state.shards[0]->io.get_executor());
  state.acceptor->open(at.protocol(), error);
  if (!error) state.acceptor->set_option(asio::socket_base::reuse_address(true), error);
  if (!error) state.acceptor->bind(at, error);
  if (!error) state.acceptor->listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return unavailable("LISTEN_FAILED", "cannot listen on " + options.listen_host + ":" +
                                            std::to_string(options.port) + ": " + error.message());
  }
  state.port = state.acceptor->local_endpoint().port();
  state.shared.listening = true;
  state.shared.ask_held_again = [&state] { state.EachShard(AskHeldAgain); };
  for (auto& shard : state.shards) {
    asio::co_spawn(shard->io, SweepLoop(*shard), asio::detached);
  }
  asio::co_spawn(state.shards[0]->io, state.AcceptLoop(), asio::detached);
  for (auto& shard : state.shards) {
    state.threads.emplace_back([s = shard.get()] { s->io.run(); });
  }
  return absl::OkStatus();
}

uint16_t Door::port() const { return state_->port; }

void Door::SetEngineFacts(EngineFacts facts) {
  state_->shared.facts.store(std::make_shared<const EngineFacts>(std::move(facts)));
  state_->EachShard([](Shard& shard) { shard.pool.LookUpNow(); });
}

void Door::SetTable(proxy::DoorTable table) {
  state_->shared.router.SetTable(std::move(table));
  state_->EachShard([](Shard& shard) {
    AskHeldAgain(shard);
    TellFlips(shard);
  });
  if (state_->shared.options.on_counts) state_->shared.options.on_counts(Snapshot());
}

uint64_t Door::pieces_heard() const { return state_->shared.pieces_heard; }

uint32_t Door::held() const { return state_->shared.held; }

Counts Door::Snapshot() const { return state_->shared.router.Snapshot(); }

std::optional<Explained> Door::Explain(std::string_view request_id) const {
  return state_->shared.explained.Find(request_id);
}

std::vector<Explained> Door::Recent(size_t limit) const {
  return state_->shared.explained.Recent(limit);
}

// Once; nothing where the door was never open.
void Door::State::BeginToDrain() {
  if (threads.empty() || shared.draining.exchange(true)) return;
  if (shared.options.on_draining) shared.options.on_draining();
  std::promise<void> stopped;
  asio::post(shards[0]->io, [this, &stopped] {
    StopAccepting();
    // Behind what the accept loop has still been given.
    asio::post(shards[0]->io, [this, &stopped] {
      shared.listening = false;
      shared.TellIfClosed();
      stopped.set_value();
    });
  });
  stopped.get_future().wait();
  EachShard([](Shard& shard) {
    AskHeldAgain(shard);
    for (Client* client : shard.clients) client->CloseIfIdle();
  });
}

bool Door::Quiesce(int64_t wait_ms) {
  {
    MutexLock one_at_a_time(state_->drain_mutex);
    state_->BeginToDrain();
  }
  return state_->WaitForNoConnection(wait_ms);
}

bool Door::draining() const { return state_->shared.draining; }

void Door::Drain(int64_t grace_ms) {
  State& state = *state_;
  MutexLock one_at_a_time(state.drain_mutex);
  if (state.threads.empty()) return;
  state.BeginToDrain();
  if (!state.WaitForNoConnection(grace_ms)) {
    state.EachShard([](Shard& shard) {
      for (Client* client : shard.clients) client->Leave();
    });
    state.WaitForNoConnection(kAbortGraceMs);
  }
  for (auto& shard : state.shards) shard->io.stop();
  for (std::thread& thread : state.threads) thread.join();
  state.threads.clear();
  state.over = true;
  state.shared.TellClosed();
  // Without a connection to wait for the threads may have ended before they closed it, and whoever
  // dials then would wait for a door that is gone.
  ErrorCode ignored;
  state.acceptor->close(ignored);
}

}  // namespace lorry::door
