// The orchestrator's calls in any order, beside a store that says what the input says: each input
// is a script (see README.md) against an orchestrator of its own.
//
// However it is asked, it goes on: it answers GetStatus after each input, and what it wrote is what
// it can start from again.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "lib/base/check.h"
#include "lib/kv/memory_store.h"
#include "lib/metrics/registry.h"
#include "lib/rpc/channel.h"
#include "services/sync_orchestrator/rpc/gauges.h"
#include "services/sync_orchestrator/rpc/sync_service.h"
#include "tests/fuzz/heap_watch.h"
#include "tests/fuzz/orchestrator/scripted_store.h"
#include "tests/fuzz/rpc/rpc_script.h"

namespace lorry::sync::fuzz {
namespace {

using lorry::fuzz::Command;
using lorry::fuzz::HeapWatch;
using lorry::fuzz::kPatienceMs;
using lorry::fuzz::RpcScript;

constexpr int64_t kPeakBytesMax = 64 << 20;
constexpr char kCluster[] = "fuzz";

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", std::string(value.status().ToString()).c_str());
  std::abort();
}

// One life of the process: what its main wires, over records that outlive it.
class Life {
 public:
  Life(kv::Store& kv, const std::string& store)
      : orchestrator_(Must(Orchestrator::Create(kv, clock_, {.on_fatal = &Fatal}))),
        observer_(PhaseMetrics(registry_, serving_)),
        link_(Must(rpc::FreshChannel::Open({.target = store})), "orchestrator:fuzz",
              *orchestrator_),
        access_(Must(rpc::Access::Open("", /*certificates=*/false))),
        gate_(*access_) {
    orchestrator_->Connect(link_, observer_);
    service_.emplace(gate_, *orchestrator_, link_, clock_, kCluster, "0");
    server_ = Must(rpc::Server::Start({.shutdown_max_ms = kPatienceMs}, gate_, {&*service_}));
    orchestrator_->Start();
    link_.Start();
  }
  ~Life() {
    LORRY_CHECK(orchestrator_->GetStatus(clock_.Now() + kPatienceMs).ok());
    LORRY_CHECK(server_->Shutdown().ok());
    link_.Stop();
    orchestrator_->Stop();
  }
  std::string address() const { return server_->address(); }

 private:
  // Nothing that comes from outside may end the process.
  static void Fatal(const absl::Status& why) {
    std::fprintf(stderr, "the orchestrator gave up: %s\n", std::string(why.ToString()).c_str());
    std::abort();
  }

  const SteadyClock clock_;
  metrics::Registry registry_{{.service = "sync-orchestrator", .version = "0"}};
  ServingMetrics serving_{registry_};
  std::unique_ptr<Orchestrator> orchestrator_;
  SyncObserver observer_;
  StoreLink link_;
  std::unique_ptr<rpc::Access> access_;
  rpc::Gate gate_;
  std::optional<SyncService> service_;
  std::unique_ptr<rpc::Server> server_;
};

class Fuzzer {
 public:
  Fuzzer() {
    HeapWatch::Install();
    HeapWatch::Ignore();
  }

  void Run(std::string_view input) {
    kv_ = kv::MakeMemoryStore();
    store_ = std::make_unique<ScriptedStore>();
    HeapWatch::ResetPeak();
    Start();
    for (const Command& command : lorry::fuzz::ReadScript(input)) Do(command);
    Stop();
    Start();  // from what was written
    Stop();
    store_.reset();
    LORRY_CHECK(HeapWatch::peak_bytes() <= kPeakBytesMax);
  }

 private:
  void Start() {
    life_ = std::make_unique<Life>(*kv_, store_->address());
    rpcs_ = std::make_unique<RpcScript>(Must(rpc::MakeChannel({.target = life_->address()})),
                                        std::vector<std::string>{"lorry.sync.v1.SyncService"});
    rpcs_->Set("cluster", kCluster);
  }
  void Stop() {
    rpcs_->End();
    rpcs_.reset();
    life_.reset();
  }
  void Do(const Command& command) {
    if (rpcs_->Do(command)) return;
    if (command.op == 'S') {
      if (auto message = rpcs_->Read<store::v1::WatchResponse>(command.payload))
        store_->Say(*std::move(message));
    } else if (command.op == 'K') {
      Stop();
      Start();
    }
  }

  std::unique_ptr<kv::Store> kv_;
  std::unique_ptr<ScriptedStore> store_;
  std::unique_ptr<Life> life_;
  std::unique_ptr<RpcScript> rpcs_;
};

}  // namespace
}  // namespace lorry::sync::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* fuzzer = new lorry::sync::fuzz::Fuzzer;
  fuzzer->Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
