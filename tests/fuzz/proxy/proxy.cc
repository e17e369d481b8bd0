// An engine-proxy's calls in any order, beside an orchestrator and an engine that say what the input
// says: each input is a script (see README.md) against a proxy of its own, wired as its main does.
//
// However it is asked and told, it goes on: it answers GetStatus after each input, its door answers,
// and what it wrote is what it can start from again.
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/kv/memory_store.h"
#include "lib/metrics/registry.h"
#include "lib/rpc/server.h"
#include "services/engine_proxy/calls/call_desk.h"
#include "services/engine_proxy/door/report.h"
#include "services/engine_proxy/rpc/proxy_metrics.h"
#include "services/engine_proxy/rpc/proxy_service.h"
#include "services/engine_proxy/rpc/store_client.h"
#include "tests/fuzz/heap_watch.h"
#include "tests/fuzz/proxy/scripted_fleet.h"
#include "tests/fuzz/proxy/scripted_vllm.h"
#include "tests/fuzz/proxy/wiring.h"
#include "tests/fuzz/rpc/rpc_script.h"
#include "tests/fuzz/store/store_world.h"
#include "tests/testing/temp_dir.h"

namespace lorry::proxy::fuzz {
namespace {

using lorry::fuzz::Command;
using lorry::fuzz::HeapWatch;
using lorry::fuzz::kPatienceMs;
using lorry::fuzz::RpcScript;
using store::fuzz::StoreWorld;

constexpr int64_t kPeakBytesMax = 64 << 20;
// An input that waits for what never comes goes on after this.
constexpr std::chrono::milliseconds kWait(60);
constexpr std::chrono::milliseconds kLook(3);
constexpr int64_t kLookAtEngineMs = 5;
constexpr char kMember[] = "engine-1";
constexpr char kPool[] = "policy";
constexpr char kJournal[] = "j1";

// One life of the process, over a journal and images that outlive it.
class Life {
 public:
  Life(kv::Store& kv, const std::string& images, const std::string& fleet, uint16_t engine_port)
      : proxy_(Must(Proxy::Create(kv, clock_,
                                  {.machine = {.member = MemberId(kMember),
                                               .pool = PoolName(kPool),
                                               .new_journal = JournalId(kJournal)},
                                   .on_fatal = &Fatal}))),
        shelf_(Must(ImageShelf::Open(images, proxy_->journal(), {}))),
        metrics_(registry_),
        store_(Dial(fleet)),
        transports_(Transports()),
        access_(Must(rpc::Access::Open("", /*certificates=*/false))),
        gate_(*access_) {
    shelf_->RemoveUnrecorded(proxy_->recorded_names());
    WireEngine(engine_port);
    fetcher_ = std::make_unique<Fetcher>(
        *shelf_, *transports_, [this](const VersionKey& key) { return store_.OpenFetch(key); },
        followers_, /*relay=*/nullptr, /*ahead=*/nullptr, Sink(),
        [](const std::string&, double) {});
    attach_.emplace(Dial(fleet),
                    AttachClient::Self{.member = kMember,
                                       .pool = kPool,
                                       .door_address = "http://127.0.0.1:1",
                                       .admin_tls_name = "",
                                       .lorry_version = "0"},
                    *proxy_);
    service_.emplace(gate_, ProxyService::Self{kMember, kPool, "http://x", "http://y"}, *proxy_,
                     *fetcher_, *attach_, *door_);
    server_ = Must(rpc::Server::Start({.shutdown_max_ms = kPatienceMs}, gate_, {&*service_}));
    proxy_->Start(
        {.fetcher = fetcher_.get(),
         .engine = engine_.get(),
         .set_door_table = [this](DoorTable table) { door_->SetTable(std::move(table)); },
         .send_observed = [this](const fleet::Observed& observed) { attach_->Send(observed); },
         .answer_call = [this](const AnswerCall& answer) { calls_.Answer(answer); },
         .pass_call =
             [this](const PassCall& pass) {
               engine_->Run(pass, calls_.TextOf(pass.ticket), calls_.ReplyTo(pass.ticket));
             }});
    metrics_.Watch(*proxy_, *fetcher_, *door_, clock_, followers_,
                   [this] { return attach_->attached(); });
    engine_->Start();
    attach_->Start();
  }

  // As main drains.
  ~Life() {
    LORRY_CHECK(proxy_->GetView(clock_.Now() + kPatienceMs).ok());
    (void)registry_.Scrape();
    door_->Drain(0);
    attach_->Stop();
    engine_->Stop();
    LORRY_CHECK(server_->Shutdown().ok());
    proxy_->Stop();
    fetcher_.reset();
    shelf_->Close(engine_->ended());
  }

  std::string address() const { return server_->address(); }
  uint16_t door_port() const { return door_->port(); }
  std::string Shown() { return Must(proxy_->GetView(clock_.Now() + kPatienceMs)).description; }

 private:
  // Nothing that comes from outside may end the process.
  static void Fatal(const absl::Status& why) {
    std::fprintf(stderr, "the proxy gave up: %s\n", std::string(why.ToString()).c_str());
    std::abort();
  }
  EventSink Sink() {
    return [this](Event event) { proxy_->Post(std::move(event)); };
  }

  void WireEngine(uint16_t port) {
    const auto report = [sink = Sink()](const door::Counts& counts) {
      sink(door::ReportOf(counts));
    };
    door_ = std::make_unique<door::Door>(
        door::DoorOptions{.engine_port = port,
                          .threads = 1,
                          .on_call =
                              [this](door::EngineCall call, door::CallTicket ticket) {
                                calls_.Take(std::move(call), std::move(ticket));
                              },
                          .observer = &metrics_,
                          .on_counts = report,
                          .on_closed = [sink = Sink()] { sink(DoorClosed{}); }});
    LORRY_CHECK(door_->Start().ok());
    EngineLink::Options options{.engine = {.url = absl::StrCat("http://127.0.0.1:", port)},
                                .find_base_model = [](const engines::EngineFacts&) {
                                  return FoundBaseModel{.unchecked = true};
                                }};
    options.look_every_ms = kLookAtEngineMs;
    engine_ = std::make_unique<EngineLink>(
        options, Sink(),
        EngineLink::Listeners{
            .on_facts =
                [this](const engines::EngineFacts& facts) {
                  door_->SetEngineFacts({.base_models = facts.base_models});
                },
            .on_loaded = [](double) {},
            .on_paused = [](double) {},
            .on_unloaded = [](Outcome) {},
            .on_listed =
                [this](const std::set<std::string>& paths) { shelf_->RemoveForeign(paths); },
            .report_counts = [this, report] { report(door_->Snapshot()); },
            .others = [] { return EngineLink::Others(); }});
  }

  const SteadyClock clock_;
  metrics::Registry registry_{{.service = "engine-proxy", .version = "0"}};
  calls::CallDesk calls_{
      {.try_post = [this](Event event) { return proxy_->TryPost(std::move(event)); },
       .post = [this](Event event) { proxy_->Post(std::move(event)); }}};
  std::unique_ptr<Proxy> proxy_;
  std::unique_ptr<ImageShelf> shelf_;
  ProxyMetrics metrics_;
  std::unique_ptr<door::Door> door_;
  std::unique_ptr<EngineLink> engine_;
  StoreClient store_;
  std::unique_ptr<transfer::TransportSet> transports_;
  Followers followers_{{}, JournalId(kJournal), "", [] { return std::set<std::string>(); }};
  std::unique_ptr<Fetcher> fetcher_;
  std::optional<AttachClient> attach_;
  std::unique_ptr<rpc::Access> access_;
  rpc::Gate gate_;
  std::optional<ProxyService> service_;
  std::unique_ptr<rpc::Server> server_;
};

class Fuzzer {
 public:
  Fuzzer() {
    HeapWatch::Install();
    HeapWatch::Ignore();
    spdlog::set_level(spdlog::level::off);
    const store::TestAdapter adapter = store::MakeAdapter(1);
    LORRY_CHECK(world_.Publish("policy", adapter).ok());
    const VersionKey key{AdapterName("policy"), RunId(1), VersionNumber(1)};
    const Digest digest = store::DigestOf(adapter.bytes(), adapter.config);
    digest_ = digest.value;
    name_ = fleet::MakeEngineName(key, digest, fleet::Render::kPlain).value;
  }

  void Run(std::string_view input) {
    kv_ = kv::MakeMemoryStore();
    engine_ = std::make_unique<ScriptedVllm>();
    fleet_ = std::make_unique<ScriptedFleet>(world_.address());
    HeapWatch::ResetPeak();
    Start();
    for (const Command& command : lorry::fuzz::ReadScript(input)) Do(command);
    AskDoor("{}");
    Stop();
    Start();  // from what was written
    Stop();
    fleet_.reset();
    engine_.reset();
    std::filesystem::remove_all(images_.path());
    LORRY_CHECK(HeapWatch::peak_bytes() <= kPeakBytesMax);
  }

 private:
  void Start() {
    drained_ = false;
    life_ = std::make_unique<Life>(*kv_, images_.path(), fleet_->address(), engine_->port());
    rpcs_ = std::make_unique<RpcScript>(Dial(life_->address())->Get(),
                                        std::vector<std::string>{"lorry.engine.v1.ProxyService"});
    rpcs_->Set("name", name_);
    rpcs_->Set("digest", digest_);
    rpcs_->Set("request", request_);
  }
  void Stop() {
    rpcs_->End();
    rpcs_.reset();
    life_.reset();
  }
  void Do(const Command& command);
  void AskDoor(const std::string& body);
  void Settle();

  StoreWorld world_;
  const TempDir images_{TempDir::Memory()};
  std::string name_, digest_, request_ = "none";
  bool drained_ = false;
  std::unique_ptr<kv::Store> kv_;
  std::unique_ptr<ScriptedVllm> engine_;
  std::unique_ptr<ScriptedFleet> fleet_;
  std::unique_ptr<Life> life_;
  std::unique_ptr<RpcScript> rpcs_;
};

void Fuzzer::Do(const Command& command) {
  drained_ = drained_ || command.payload.starts_with("Drain");
  if (rpcs_->Do(command)) return;
  switch (command.op) {
    case 'D':
      if (auto desired = rpcs_->Read<sync::v1::Desired>(command.payload)) {
        sync::v1::AttachResponse message;
        *message.mutable_desired() = *std::move(desired);
        fleet_->Say(std::move(message));
      }
      break;
    case 'N':
      if (auto manifest = rpcs_->Read<store::v1::OpenFetchResponse>(command.payload)) {
        fleet_->Plan(*std::move(manifest));
      }
      break;
    case 'E':
      engine_->Plan(std::string(command.payload));
      break;
    case 'B':
      engine_->Restart();
      break;
    case 'Q':
      AskDoor(rpcs_->Substitute(command.payload));
      break;
    case 's':
      Settle();
      break;
    case 'K':
      Stop();
      Start();
      break;
  }
}

// A request of a rollout client, whose id Explain may then be asked for.
void Fuzzer::AskDoor(const std::string& body) {
  if (drained_) return;  // until the proxy starts again nobody listens there
  door::testing::Wire wire = door::testing::Wire::Connect(life_->door_port());
  wire.Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n",
                         "Content-Length: ", body.size(), "\r\n\r\n", body));
  const door::testing::Message reply = door::testing::ReadMessage(wire);
  request_ = reply.Get("X-Lorry-Request-Id");
  rpcs_->Set("request", request_);
}

// Until what was said is heard and the machine shows the same for a while.
void Fuzzer::Settle() {
  const auto until = std::chrono::steady_clock::now() + kWait;
  std::string before;
  int still = 0;
  while (std::chrono::steady_clock::now() < until && still < 5) {
    std::this_thread::sleep_for(kLook);  // tidy: allow sleep: a bounded poll of the machine
    std::string shown = life_->Shown();
    still = fleet_->is_heard() && shown == before ? still + 1 : 0;
    before = std::move(shown);
  }
}

}  // namespace
}  // namespace lorry::proxy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* fuzzer = new lorry::proxy::fuzz::Fuzzer;
  fuzzer->Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
