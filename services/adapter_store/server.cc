#include "services/adapter_store/server.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/blob/local_store.h"
#include "lib/kv/sqlite/sqlite_store.h"
#include "lib/metrics/admin_server.h"
#include "lib/rpc/call_metrics.h"
#include "lib/rpc/credential_metrics.h"
#include "lib/transfer/grpc/grpc_transport.h"
#include "lib/transfer/ucx/ucx_transport.h"
#include "services/adapter_store/figures.h"
#include "services/adapter_store/housekeeping.h"
#include "services/adapter_store/rpc/store_service.h"
#include "services/adapter_store/store_metrics.h"
#include "services/adapter_store/transfer_log.h"

namespace lorry::store {
namespace {

// A header of 16 MiB, a config of 128 KiB and what surrounds them.
constexpr int kReceiveBytesMax = 17 << 20;

// "grpc://10.0.0.1:4711" with the host that peers shall dial.
std::string Advertised(std::string_view scheme, const std::string& host_port,
                       const std::string& host) {
  const std::string port = host_port.substr(host_port.rfind(':') + 1);
  return absl::StrCat(ToAbsl(scheme), "://", host.empty() ? host_port : host + ":" + port);
}

class Server final : public StoreServer, private Observer {
 public:
  explicit Server(StoreOptions options)
      : options_(std::move(options)),
        registry_({.service = "adapter-store", .version = options_.version}),
        metrics_(registry_) {}
  ~Server() override {
    if (absl::Status stopped = Stop(); !stopped.ok()) spdlog::error("{}", stopped.ToString());
  }

  absl::Status Start() {
    LORRY_RETURN_IF_ERROR(OpenData());
    LORRY_RETURN_IF_ERROR(uploads_->Recover());
    LORRY_RETURN_IF_ERROR(Listen());
    housekeeping_.emplace(*catalog_, *uploads_, *collector_, options_.sweep_interval_ms,
                          options_.on_fatal);
    LORRY_RETURN_IF_ERROR(StartAdmin());
    grpc_->SetServing(true);
    return absl::OkStatus();
  }

  absl::Status Stop() override {
    absl::Status stopped;
    admin_ = nullptr;
    housekeeping_.reset();
    for (const auto& service : transfer_services_) service->Close();
    if (uploads_.has_value()) uploads_->LetGo();
    if (grpc_ != nullptr) stopped = grpc_->Shutdown();
    if (!stopped.ok()) return stopped;  // handlers still use the rest
    if (transfers_.has_value()) transfers_->Stop();
    if (uploads_.has_value()) uploads_->Stop();
    grpc_ = nullptr;
    return absl::OkStatus();
  }

  std::string grpc_address() const override { return grpc_->address(); }
  int grpc_port() const override { return grpc_->port(); }
  std::string admin_address() const override { return admin_->address(); }
  std::vector<std::string> transfer_addresses() const override { return addresses_; }

 private:
  absl::Status OpenData() {
    if (::mkdir(options_.data_dir.c_str(), 0700) != 0 && errno != EEXIST) {
      return Error(absl::StatusCode::kFailedPrecondition, "DATA_DIR_UNUSABLE",
                   absl::StrCat("cannot create ", options_.data_dir, ": ", std::strerror(errno)));
    }
    LORRY_ASSIGN_OR_RETURN(kv_, kv::OpenSqliteStore({.path = options_.data_dir + "/catalog.db"}));
    LORRY_ASSIGN_OR_RETURN(blobs_,
                           blob::OpenLocalStore({.root = options_.data_dir + "/blobs",
                                                 .free_bytes_min = options_.disk_free_min}));
    LORRY_ASSIGN_OR_RETURN(keys_,
                           RotatingKeys::Open({.path = options_.data_dir + "/ticket.key",
                                               .life_ms = options_.catalog.ticket_life_ms,
                                               .now_unix_ms = options_.catalog.now_unix_ms}));
    LORRY_ASSIGN_OR_RETURN(catalog_, Catalog::Open(*kv_, options_.catalog));
    UploadsOptions uploads{.idle_deadline_ms = options_.catalog.ticket_life_ms};
    uploads.on_stored = [this](int64_t took_ms) { metrics_.UploadStored(took_ms); };
    uploads.on_dead = [this](std::string_view reason) { metrics_.UploadEnded("dead", reason); };
    // The hub has what it needs before anybody can begin an upload.
    uploads.on_opened = [this](const Upload& upload) {
      if (upload_hub_.has_value()) upload_hub_->OnOpened(upload);
    };
    uploads_.emplace(*catalog_, *blobs_, clock_, std::move(uploads));
    Transfers::Options transfers{.ticket_life_ms = options_.catalog.ticket_life_ms,
                                 .now_unix_ms = options_.catalog.now_unix_ms,
                                 .fan_out = options_.fan_out};
    transfers.on_failed = [this](const transfer::FailedSession& failed) {
      metrics_.TransferFailed(failed);
      transfer_log_.OnFailed(failed);
    };
    transfers_.emplace(*catalog_, *blobs_, *uploads_, *keys_, clock_, std::move(transfers));
    collector_.emplace(*catalog_, *blobs_, options_.catalog.now_unix_ms);
    hub_.emplace(*catalog_);
    upload_hub_.emplace(*transfers_, UploadHub::Width{.readers = options_.ahead_readers,
                                                      .relays = std::min(options_.ahead_readers,
                                                                         options_.fan_out.width)});
    catalog_->SetObserver(this);
    return absl::OkStatus();
  }

  absl::Status Listen() {
    const rpc::ServerTls& tls = options_.listen.tls;
    LORRY_ASSIGN_OR_RETURN(access_,
                           rpc::Access::Open(options_.tokens_file, !tls.client_ca.empty()));
    gate_.emplace(*access_, rpc::Gate::Options{.on_call = rpc::CallMetrics(registry_)});
    rpc::WatchCredentials(registry_, tls, /*dialled_ca=*/"", options_.tokens_file);
    service_.emplace(StoreService::Parts{.gate = *gate_,
                                         .catalog = *catalog_,
                                         .uploads = *uploads_,
                                         .transfers = *transfers_,
                                         .hub = *hub_,
                                         .upload_hub = *upload_hub_,
                                         .upload_idle_deadline_ms = options_.catalog.ticket_life_ms,
                                         .lorry_version = options_.version});
    transfer_services_.push_back(
        transfer::CreateGrpcTransferService({}, *gate_, keys_->keys(), *transfers_));
    LORRY_RETURN_IF_ERROR(StartUcx());
    std::vector<grpc::Service*> services = {&*service_};
    for (const auto& service : transfer_services_) services.push_back(service->service());
    options_.listen.receive_max_bytes = kReceiveBytesMax;
    LORRY_ASSIGN_OR_RETURN(grpc_, rpc::Server::Start(options_.listen, *gate_, services));
    // Transfers come in where all other calls do. Each caller knows an address for that, its own
    // name included, which a certificate may depend on; the service repeats it.
    service_->SetAddresses({options_.advertise_host.empty()
                                ? std::string(StoreService::kWhereTheCallerDialled)
                                : Advertised("grpc", grpc_->address(), options_.advertise_host)});
    addresses_.push_back(Advertised("grpc", grpc_->address(), options_.advertise_host));
    return absl::OkStatus();
  }

  absl::Status StartUcx() {
    if (!options_.ucx && options_.ucx_devices.empty()) return absl::OkStatus();
    auto ucx =
        transfer::CreateUcxService({.shared_memory = options_.ucx, .devices = options_.ucx_devices},
                                   *gate_, keys_->keys(), *transfers_);
    if (ucx.ok()) {
      transfer_services_.push_back(*std::move(ucx));
    } else if (options_.ucx_devices.empty()) {
      spdlog::warn("no UCX, gRPC carries all transfers: {}", std::string(ucx.status().message()));
    } else {
      return ucx.status();  // what was asked for by name is not left out silently
    }
    return absl::OkStatus();
  }

  absl::Status StartAdmin() {
    figures_.emplace(registry_, [this] {
      metrics_.Refresh(*catalog_);
      metrics_.Refresh(options_.data_dir);
    });
    registry_.OnScrape([this] {
      for (const auto& service : transfer_services_) {
        for (const auto& [transport, stats] : service->stats()) metrics_.Refresh(transport, stats);
      }
    });
    LORRY_ASSIGN_OR_RETURN(
        admin_, metrics::AdminServer::Start({.address = options_.admin_listen,
                                             .ready = [this] { return housekeeping_->Writable(); },
                                             .config_json = options_.config_json},
                                            registry_));
    return absl::OkStatus();
  }

  void OnChanged(uint64_t) override { hub_->OnChanged(); }
  void OnUploadEnded(const Upload& upload) override { uploads_->OnUploadEnded(upload); }
  void OnEvicted(int versions) override { metrics_.Evicted(versions); }

  // In the order of use: what stands below uses what stands above.
  StoreOptions options_;
  SteadyClock clock_;
  metrics::Registry registry_;
  StoreMetrics metrics_;
  TransferLog transfer_log_{clock_};
  std::unique_ptr<RotatingKeys> keys_;
  std::unique_ptr<kv::Store> kv_;
  std::unique_ptr<blob::Store> blobs_;
  std::unique_ptr<Catalog> catalog_;
  std::optional<Uploads> uploads_;
  std::optional<Transfers> transfers_;
  std::optional<Collector> collector_;
  std::optional<WatchHub> hub_;
  std::optional<UploadHub> upload_hub_;
  std::unique_ptr<rpc::Access> access_;
  std::optional<rpc::Gate> gate_;
  std::optional<StoreService> service_;
  std::vector<std::unique_ptr<transfer::GrpcTransferService>> transfer_services_;
  std::unique_ptr<rpc::Server> grpc_;
  std::vector<std::string> addresses_;
  std::optional<Housekeeping> housekeeping_;
  std::optional<Figures> figures_;
  std::unique_ptr<metrics::AdminServer> admin_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Start(StoreOptions options) {
  auto server = std::make_unique<Server>(std::move(options));
  LORRY_RETURN_IF_ERROR(server->Start());
  return std::unique_ptr<StoreServer>(std::move(server));
}

}  // namespace lorry::store
