// engine-proxy: wires machine, engine, door, transfers and sessions. Nothing is decided here.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/host_port.h"
#include "lib/kv/sqlite/sqlite_store.h"
#include "lib/metrics/admin_server.h"
#include "lib/program/program.h"
#include "lib/rpc/call_metrics.h"
#include "lib/rpc/credential_metrics.h"
#include "services/engine_proxy/advertise_flags.h"
#include "services/engine_proxy/binding_flags.h"
#include "services/engine_proxy/calls/call_desk.h"
#include "services/engine_proxy/door/report.h"
#include "services/engine_proxy/door_flags.h"
#include "services/engine_proxy/driver/base_model_finder.h"
#include "services/engine_proxy/driver/engine_claim.h"
#include "services/engine_proxy/driver/private_directory.h"
#include "services/engine_proxy/driver/readiness.h"
#include "services/engine_proxy/follow.h"
#include "services/engine_proxy/image_flags.h"
#include "services/engine_proxy/relay_port.h"
#include "services/engine_proxy/rpc/attach_client.h"
#include "services/engine_proxy/rpc/proxy_metrics.h"
#include "services/engine_proxy/rpc/proxy_service.h"
#include "services/engine_proxy/rpc/store_client.h"
#include "services/engine_proxy/rpc/upload_follower.h"
#include "services/engine_proxy/wedge_flags.h"

ABSL_FLAG(std::string, engine, "", "the engine's own URL: http://host:port");
ABSL_FLAG(std::string, engine_key_file, "", "file with the engine's API key");
ABSL_FLAG(std::string, engine_admin_key_file, "", "file with SGLang's admin API key");
ABSL_FLAG(std::string, door_listen, "127.0.0.1:0", "host:port where rollout clients come in");
ABSL_FLAG(std::string, tls_name, "",
          "a DNS name in the certificate of --tls-cert, by which clients check it where the "
          "advertised host is none of its names, as a pod's address; default: the host");
ABSL_FLAG(uint32_t, door_threads, 0, "threads of the door; 0: one a core, at most 4");
ABSL_FLAG(bool, door_allow_unknown_routes, false,
          "pass requests of routes that the door does not know to the engine as they are");
ABSL_FLAG(bool, door_weight_versions, false,
          "SGLang's /generate says in meta_info.weight_version which version made each reply");
ABSL_FLAG(std::string, store, "", "host:port of the adapter-store");
ABSL_FLAG(std::string, orchestrator, "", "host:port of the sync-orchestrator");
ABSL_FLAG(std::string, member, "",
          "this engine's name in the fleet, the same over restarts of engine and proxy");
ABSL_FLAG(std::string, pool, "rollout", "engines that share one `latest` per adapter");
ABSL_FLAG(std::string, base_model_config, "",
          "config.json of the engine's base model, or its directory; default: what the engine says "
          "of it, or the file where the engine read it");
ABSL_FLAG(bool, base_model_unchecked, false,
          "serve adapters without comparing their shapes with the base model's; engines do not");
ABSL_FLAG(std::string, framework_calls, "auto",
          "whether clients of the door may pause the engine, flush its caches and the like, as "
          "frameworks do that know nothing of Lorry: on, off, or auto, which is on where the door "
          "listens on a loopback address");
ABSL_FLAG(int64_t, framework_pause_deadline_ms, 900'000,
          "a pause that a framework asked for at the door ends after so long, though the framework "
          "does not end it");
ABSL_FLAG(int64_t, drain_grace_ms, 25'000, "how long running requests may go on after SIGTERM");

ABSL_FLAG(int64_t, goodbye_wait_ms, 0,
          "how long a drained program stays for an orchestrator that is away, as one that is moved "
          "to another node at the same time, to say goodbye to it");

namespace lorry::proxy {
namespace {

constexpr int64_t kViewDeadlineMs = 1'000;  // a step of the machine takes milliseconds
// For a goodbye to be heard, written down and answered: time for one more session, where the
// orchestrator is restarted just then.
constexpr int64_t kGoodbyeMs = 2'000;

absl::StatusOr<std::string> FirstLine(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line))
    return Error(absl::StatusCode::kInvalidArgument, "", absl::StrCat(path, " cannot be read"));
  return line;
}

// The engine's address, of which people write the URL or host:port.
absl::StatusOr<HostPort> EngineAt(std::string url) {
  if (url.starts_with("http://")) url = url.substr(7);
  while (url.ends_with("/")) url.pop_back();
  return ParseHostPort(url, "--engine");
}

absl::Status CheckCallFlags() {
  const std::string calls = absl::GetFlag(FLAGS_framework_calls);
  if (calls != "on" && calls != "off" && calls != "auto")
    return Error(absl::StatusCode::kInvalidArgument, "",
                 "--framework-calls must be on, off or auto");
  const int64_t deadline_ms = absl::GetFlag(FLAGS_framework_pause_deadline_ms);
  constexpr int64_t kDayMs = 24 * 3'600'000;
  if (deadline_ms >= 1'000 && deadline_ms <= kDayMs) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "",
               absl::StrCat("--framework-pause-deadline-ms is ", deadline_ms,
                            "; it must be from 1000 to ", kDayMs));
}

// A door that others than this host's users reach does not let them pause the engine unasked.
bool TakesCalls(const HostPort& door) {
  const std::string calls = absl::GetFlag(FLAGS_framework_calls);
  return calls == "on" || (calls == "auto" && rpc::IsLoopback(door.ToString()));
}

absl::Status CheckFlags() {
  const std::pair<const char*, std::string> needed[] = {
      {"--engine", absl::GetFlag(FLAGS_engine)},
      {"--store", absl::GetFlag(FLAGS_store)},
      {"--orchestrator", absl::GetFlag(FLAGS_orchestrator)},
      {"--member", absl::GetFlag(FLAGS_member)}};
  for (const auto& [flag, value] : needed) {
    if (value.empty())
      return Error(absl::StatusCode::kInvalidArgument, "",
                   absl::StrCat(flag, " is missing; see --help"));
  }
  LORRY_RETURN_IF_ERROR(CheckName("--member", absl::GetFlag(FLAGS_member)));
  LORRY_RETURN_IF_ERROR(CheckWedgeFlags());
  LORRY_RETURN_IF_ERROR(CheckCallFlags());
  LORRY_RETURN_IF_ERROR(CheckAdvertiseFlags());
  return CheckName("--pool", absl::GetFlag(FLAGS_pool));
}

JournalId NewJournal() {
  std::random_device random;
  const uint64_t bits = (static_cast<uint64_t>(random()) << 32) | random();
  return JournalId(absl::StrCat("j", absl::Hex(bits, absl::kZeroPad16)));
}

// A proxy of this user anywhere on the host finds it, and no other user can hold it. Where shared
// memory cannot be used, proxies of one data directory still exclude each other.
std::string ClaimDirectory(const std::string& data_dir) {
  const std::string shared = SharedMemoryDirectory();
  return MakePrivateDirectory(shared + "/claims").ok() ? shared + "/claims" : data_dir + "/claims";
}

// The parts of the program in the order in which they are made; they go in the reverse order.
class App {
 public:
  explicit App(runtime::Signals& signals)
      : signals_(signals),
        registry_({.service = "engine-proxy", .version = program::kVersion}),
        metrics_(registry_) {}

  absl::Status Open();   // the journal, the shelf, the claim on the engine
  absl::Status Wire();   // engine, door, transfers, sessions
  absl::Status Serve();  // starts them and says so
  absl::Status Drain();

 private:
  void WaitForEngine(Tick until);
  absl::Status WireEngine();
  absl::Status WireWedgeWatch();
  absl::Status WireTransfers();
  absl::Status WireSessions();
  absl::Status IsReady();
  EventSink Sink() {
    return [this](Event event) { proxy_->Post(std::move(event)); };
  }
  door::CallOwner CallOwner() {
    return [this](door::EngineCall call, door::CallTicket ticket) {
      calls_.Take(std::move(call), std::move(ticket));
    };
  }

  runtime::Signals& signals_;
  const SteadyClock clock_;
  const std::string member_ = absl::GetFlag(FLAGS_member);
  const std::string pool_ = absl::GetFlag(FLAGS_pool);
  HostPort engine_at_, door_at_;
  std::string door_address_;
  absl::Status fatal_;
  metrics::Registry registry_;
  ProxyMetrics metrics_;
  FileLock claim_;
  std::unique_ptr<kv::Store> kv_;
  calls::CallDesk calls_{
      {.try_post = [this](Event event) { return proxy_->TryPost(std::move(event)); },
       .post = [this](Event event) { proxy_->Post(std::move(event)); }}};
  std::unique_ptr<Proxy> proxy_;
  std::unique_ptr<ImageShelf> shelf_;
  std::unique_ptr<door::Door> door_;
  std::unique_ptr<EngineLink> engine_;
  std::unique_ptr<WedgeWatch> wedge_watch_;
  Readiness readiness_;
  std::unique_ptr<StoreClient> store_;
  std::unique_ptr<transfer::TransportSet> transports_;
  std::unique_ptr<RelayPort> relay_;  // null: images are passed on to nobody
  std::unique_ptr<Followers> followers_;
  std::unique_ptr<LastImages> last_images_;  // null: images come as they are
  std::unique_ptr<ReadAhead> ahead_;         // null: images are read once they are versions
  std::unique_ptr<UploadFollower> uploads_;
  std::unique_ptr<Fetcher> fetcher_;
  std::unique_ptr<BindingReader> binding_reader_;
  std::unique_ptr<AttachClient> attach_;
  std::unique_ptr<rpc::Access> access_;
  std::unique_ptr<rpc::Gate> gate_;
  std::unique_ptr<ProxyService> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<metrics::AdminServer> admin_;
};

absl::Status App::Open() {
  LORRY_ASSIGN_OR_RETURN(engine_at_, EngineAt(absl::GetFlag(FLAGS_engine)));
  LORRY_ASSIGN_OR_RETURN(door_at_,
                         ParseHostPort(absl::GetFlag(FLAGS_door_listen), "--door-listen"));
  LORRY_ASSIGN_OR_RETURN(const std::string data_dir, program::DataDir());
  LORRY_ASSIGN_OR_RETURN(claim_,
                         ClaimEngine(ClaimDirectory(data_dir), engine_at_.host, engine_at_.port));
  LORRY_ASSIGN_OR_RETURN(kv_, kv::OpenSqliteStore({.path = data_dir + "/proxy.db"}));
  const auto on_fatal = [this](const absl::Status& why) {
    fatal_ = why;
    signals_.RequestStop();
  };
  LORRY_ASSIGN_OR_RETURN(proxy_, Proxy::Create(*kv_, clock_,
                                               {.machine = {.member = MemberId(member_),
                                                            .pool = PoolName(pool_),
                                                            .new_journal = NewJournal(),
                                                            .framework_pause_ms = absl::GetFlag(
                                                                FLAGS_framework_pause_deadline_ms)},
                                                .on_fatal = on_fatal}));
  LORRY_ASSIGN_OR_RETURN(shelf_, OpenShelf(member_, proxy_->journal()));
  shelf_->RemoveUnrecorded(proxy_->recorded_names());
  return absl::OkStatus();
}

absl::Status App::Wire() {
  LORRY_RETURN_IF_ERROR(WireEngine());
  LORRY_RETURN_IF_ERROR(WireWedgeWatch());
  LORRY_RETURN_IF_ERROR(WireTransfers());
  return WireSessions();
}

absl::Status App::WireEngine() {
  engines::EngineOptions options{.url = "http://" + engine_at_.ToString()};
  LORRY_ASSIGN_OR_RETURN(options.api_key, FirstLine(absl::GetFlag(FLAGS_engine_key_file)));
  LORRY_ASSIGN_OR_RETURN(options.admin_key, FirstLine(absl::GetFlag(FLAGS_engine_admin_key_file)));
  const std::string key = options.admin_key.empty() ? options.api_key : options.admin_key;
  LORRY_ASSIGN_OR_RETURN(
      BaseModelFinder finder,
      BaseModelFinder::Make({.config = absl::GetFlag(FLAGS_base_model_config),
                             .unchecked = absl::GetFlag(FLAGS_base_model_unchecked)}));
  const auto find = [finder = std::move(finder)](const engines::EngineFacts& facts) {
    return finder.Find(facts);
  };

  const auto report = [sink = Sink()](const door::Counts& counts) { sink(door::ReportOf(counts)); };
  LORRY_ASSIGN_OR_RETURN(const door::DoorLimits limits, DoorLimitFlags());
  door_ = std::make_unique<door::Door>(
      door::DoorOptions{.listen_host = door_at_.host,
                        .port = door_at_.port,
                        .engine_host = engine_at_.host,
                        .engine_port = engine_at_.port,
                        .threads = absl::GetFlag(FLAGS_door_threads),
                        .allow_unknown_routes = absl::GetFlag(FLAGS_door_allow_unknown_routes),
                        .weight_versions = absl::GetFlag(FLAGS_door_weight_versions),
                        .on_call = TakesCalls(door_at_) ? CallOwner() : nullptr,
                        .limits = limits,
                        .observer = &metrics_,
                        .on_counts = report,
                        .on_draining = [sink = Sink()] { sink(DoorDrains{}); },
                        .on_closed = [sink = Sink()] { sink(DoorClosed{}); }});
  const auto on_facts = [this, key](const engines::EngineFacts& facts) {
    metrics_.OnBoot();
    door_->SetEngineFacts({.base_models = facts.base_models,
                           .control_authorization = key.empty() ? "" : "Bearer " + key,
                           .dies_of_prompt_logprobs = facts.dies_of_prompt_logprobs,
                           .mixes_base = facts.mixes_base,
                           .cumulative_streams = facts.cumulative_streams,
                           .aborts_waiting = facts.aborts_waiting});
  };
  const auto on_listed = [this](const std::set<std::string>& paths) {
    shelf_->RemoveForeign(paths);
  };
  engine_ = std::make_unique<EngineLink>(
      EngineLink::Options{.engine = options, .find_base_model = find, .nodes = NodesServed()},
      Sink(),
      EngineLink::Listeners{
          .on_facts = on_facts,
          .on_loaded = [this](double seconds) { metrics_.OnLoaded(seconds); },
          .on_paused = [this](double seconds) { metrics_.OnPaused(seconds); },
          .on_unloaded = [this](Outcome outcome) { metrics_.OnUnloaded(outcome); },
          .on_listed = on_listed,
          .report_counts = [this, report] { report(door_->Snapshot()); },
          .others = [this]() -> EngineLink::Others {
            return {.in_flight = door_->Snapshot().live > 0, .heard = door_->pieces_heard()};
          }});
  LORRY_RETURN_IF_ERROR(door_->Start());
  door_at_.port = door_->port();
  door_address_ = "http://" + AdvertisedDoor(door_at_);
  return absl::OkStatus();
}

absl::Status App::WireWedgeWatch() {
  const auto look = [this]() -> std::optional<BootId> {
    const absl::StatusOr<Proxy::View> view = proxy_->GetView(clock_.Now() + kViewDeadlineMs);
    if (!view.ok() || view->observed.health != fleet::MemberHealth::kWedged) return std::nullopt;
    return view->observed.boot;
  };
  LORRY_ASSIGN_OR_RETURN(wedge_watch_,
                         OpenWedgeWatch(member_, "http://" + engine_at_.ToString(), look));
  return absl::OkStatus();
}

absl::Status App::WireTransfers() {
  LORRY_ASSIGN_OR_RETURN(
      const std::shared_ptr<rpc::FreshChannel> channel,
      program::Dial(absl::GetFlag(FLAGS_store), {"lorry.store.v1.StoreService/OpenFetch"}));
  store_ = std::make_unique<StoreClient>(channel);
  transports_ = MakeTransports();
  LORRY_ASSIGN_OR_RETURN(std::vector<Follower> nodes, FollowerFlags(member_));
  followers_ = std::make_unique<Followers>(std::move(nodes), proxy_->journal(), NewJournal().value,
                                           [this] { return shelf_->Paths(); });
  const auto join = [this](const auto&... offer) { return store_->JoinFanOut(offer...); };
  LORRY_ASSIGN_OR_RETURN(relay_, RelayPort::Open(join, &Advertised, absl::GetFlag(FLAGS_tls_name)));
  const auto manifest_of = [this](const VersionKey& key) { return store_->OpenFetch(key); };
  last_images_ = OpenLastImages(*shelf_, manifest_of);
  ahead_ = OpenReadAhead(*shelf_, *transports_, last_images_.get());
  if (ahead_ != nullptr) uploads_ = std::make_unique<UploadFollower>(channel, *ahead_, Relays());
  fetcher_ = std::make_unique<Fetcher>(
      *shelf_, *transports_, manifest_of, *followers_,
      relay_ == nullptr ? nullptr : &relay_->relay(), ahead_.get(), Sink(),
      [this](const std::string& transport, double seconds) {
        metrics_.OnFetched(transport, seconds);
      },
      last_images_.get());
  LORRY_ASSIGN_OR_RETURN(binding_reader_,
                         MakeBindingReader(
                             followers_->empty(), *shelf_,
                             [this](uint64_t ticket) { return calls_.BodyOf(ticket); }, Sink()));
  return absl::OkStatus();
}

absl::Status App::WireSessions() {
  LORRY_ASSIGN_OR_RETURN(access_, program::AccessFlags());
  gate_ = std::make_unique<rpc::Gate>(*access_,
                                      rpc::Gate::Options{.on_call = rpc::CallMetrics(registry_)});
  LORRY_ASSIGN_OR_RETURN(
      const std::shared_ptr<rpc::FreshChannel> channel,
      program::Dial(absl::GetFlag(FLAGS_orchestrator), {}, AttachClient::kReceiveBytesMax));
  attach_ = std::make_unique<AttachClient>(
      channel,
      AttachClient::Self{.member = member_,
                         .pool = pool_,
                         .door_address = door_address_,
                         .admin_tls_name = absl::GetFlag(FLAGS_tls_name),
                         .lorry_version = program::kVersion},
      *proxy_);
  service_ = std::make_unique<ProxyService>(
      *gate_, ProxyService::Self{member_, pool_, absl::GetFlag(FLAGS_engine), door_address_},
      *proxy_, *fetcher_, *attach_, *door_);
  LORRY_ASSIGN_OR_RETURN(server_,
                         rpc::Server::Start(program::ServerFlags(), *gate_, {service_.get()}));
  LORRY_ASSIGN_OR_RETURN(HostPort grpc_at, ParseHostPort(absl::GetFlag(FLAGS_listen), "--listen"));
  grpc_at.port = static_cast<uint16_t>(server_->port());
  attach_->SetAdminAddress(Advertised(grpc_at));
  LORRY_ASSIGN_OR_RETURN(admin_,
                         metrics::AdminServer::Start({.address = absl::GetFlag(FLAGS_admin_listen),
                                                      .ready = [this] { return IsReady(); },
                                                      .config_json = program::FlagsJson},
                                                     registry_));
  return absl::OkStatus();
}

// A door that is closed for good is not ready either: whoever balances requests passes it by.
absl::Status App::IsReady() {
  if (door_->draining())
    return absl::UnavailableError("drained: the door opens again when the proxy is started again");
  LORRY_ASSIGN_OR_RETURN(const Proxy::View view, proxy_->GetView(clock_.Now() + kViewDeadlineMs));
  const absl::Status judged = readiness_.Judge(view.observed, view.table);
  const std::string detached = attach_->why_detached();
  if (judged.ok() || detached.empty()) return judged;
  return absl::UnavailableError(
      absl::StrCat(judged.message(), "; no session with the orchestrator: ", detached));
}

absl::Status App::Serve() {
  proxy_->Start(
      {.fetcher = fetcher_.get(),
       .engine = engine_.get(),
       .set_door_table = [this](DoorTable table) { door_->SetTable(std::move(table)); },
       .send_observed = [this](const fleet::Observed& observed) { attach_->Send(observed); },
       .answer_call = [this](const AnswerCall& answer) { calls_.Answer(answer); },
       .pass_call =
           [this](const PassCall& pass) {
             engine_->Run(pass, calls_.TextOf(pass.ticket), calls_.ReplyTo(pass.ticket));
           },
       .read_binding = [this](const ReadBinding& read) { binding_reader_->Read(read); },
       .fetch_binding = [this](const Fetch& fetch) { binding_reader_->Fetch(fetch); },
       .answer_binding = [this](const AnswerBinding& answer) { calls_.Answer(answer); }});
  metrics_.Watch(*proxy_, *fetcher_, *door_, clock_, *followers_,
                 [this] { return attach_->attached(); });
  if (relay_ != nullptr) relay_->Watch(registry_);
  rpc::WatchCredentials(registry_, program::ServerFlags().tls, program::DialledCa(),
                        program::TokensFile());
  engine_->Start();
  if (wedge_watch_ != nullptr) wedge_watch_->Start();
  attach_->Start();
  server_->SetServing(true);
  std::map<std::string, std::string> listens = {
      {"door", door_address_}, {"grpc", server_->address()}, {"admin", admin_->address()}};
  if (relay_ != nullptr) listens["relay"] = relay_->address();
  return program::Ready(listens);
}

void SayHowItIsLeft(const Proxy::View& view) {
  if (view.passes_call)
    spdlog::error(
        "a framework's call has no answer of the engine: what it asked for is in doubt, which "
        "another "
        "life of the engine ends");
  if (view.framework_pauses.holds) {
    spdlog::warn(
        "the engine stays paused for the framework that asked for it: started again, the proxy "
        "ends "
        "that in time; where it is not, let the engine go on by hand");
  } else if (view.table.paused) {
    spdlog::error("the engine did not say that it goes on: resume it, or start the proxy again");
  }
}

// What the engine was asked for is answered before the process ends: to go on from a pause of
// Lorry's, which ends with the session, and what a framework had passed on, of which no later process
// would hear.
void App::WaitForEngine(Tick answered_by) {
  // Two answers of an engine that lives, a second apart, and one that was lost.
  constexpr int64_t kResumeMs = 5'000;
  proxy_->Post(SessionDown{});
  const Tick resumed_by = clock_.Now() + kResumeMs;
  answered_by = std::max(answered_by, resumed_by);
  while (true) {
    const absl::StatusOr<Proxy::View> view = proxy_->GetView(clock_.Now() + kViewDeadlineMs);
    if (!view.ok()) return;
    const bool resumes = view->table.paused && !view->framework_pauses.holds;
    const bool waits =
        (view->passes_call && clock_.Now() < answered_by) || (resumes && clock_.Now() < resumed_by);
    if (!waits) return SayHowItIsLeft(*view);
    // tidy: allow sleep: a bounded poll while the process ends
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

absl::Status App::Drain() {
  spdlog::info("draining");
  const Tick until = clock_.Now() + absl::GetFlag(FLAGS_drain_grace_ms);
  door_->Drain(absl::GetFlag(FLAGS_drain_grace_ms));
  const int64_t away_ms = absl::GetFlag(FLAGS_goodbye_wait_ms);
  if (fatal_.ok() && !attach_->WaitUntilLeft(kGoodbyeMs, away_ms))
    spdlog::warn("gone without a goodbye: barriers wait for this member; see `lorry mark`");
  wedge_watch_.reset();
  attach_->Stop();
  WaitForEngine(until);
  engine_->Stop();
  const absl::Status stopped = server_->Shutdown();
  admin_.reset();
  proxy_->Stop();  // whose effects reach the fetcher
  program::LeaveUnless(stopped, fatal_);
  binding_reader_.reset();
  fetcher_.reset();
  uploads_.reset();
  ahead_.reset();
  relay_.reset();
  shelf_->Close(engine_->ended());
  return fatal_;
}

absl::Status Run(runtime::Signals& signals) {
  if (IsFollower()) return RunFollower(signals);
  LORRY_RETURN_IF_ERROR(CheckFlags());
  App app(signals);
  LORRY_RETURN_IF_ERROR(app.Open());
  LORRY_RETURN_IF_ERROR(app.Wire());
  const absl::Status served = app.Serve();
  if (served.ok()) signals.Wait();
  const absl::Status drained = app.Drain();
  return served.ok() ? drained : served;
}

}  // namespace
}  // namespace lorry::proxy

int main(int argc, char** argv) {
  return lorry::program::Main(argc, argv, "engine-proxy",
                              "Serves adapter versions through one inference engine.",
                              lorry::proxy::Run);
}
