#include "services/engine_proxy/relay_port.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/program/program.h"
#include "lib/transfer/relay_address.h"

ABSL_FLAG(std::string, relay_listen, "",
          "host:port where proxies of other hosts read images while this one fetches them, and "
          "later, so that the store sends each to a few; empty: this proxy neither passes images "
          "on nor reads them from those that do");

namespace lorry::proxy {

bool Relays() { return !absl::GetFlag(FLAGS_relay_listen).empty(); }

absl::StatusOr<std::unique_ptr<RelayPort>> RelayPort::Open(
    Relay::Join join, const std::function<std::string(const HostPort&)>& advertised,
    const std::string& tls_name) {
  if (!Relays()) return nullptr;
  std::unique_ptr<RelayPort> port(new RelayPort(std::move(join)));
  LORRY_RETURN_IF_ERROR(port->Listen(advertised, tls_name));
  return port;
}

absl::Status RelayPort::Listen(const std::function<std::string(const HostPort&)>& advertised,
                               const std::string& tls_name) {
  LORRY_ASSIGN_OR_RETURN(HostPort at,
                         ParseHostPort(absl::GetFlag(FLAGS_relay_listen), "--relay-listen"));
  LORRY_ASSIGN_OR_RETURN(access_, rpc::Access::Open("", /*certificates=*/false));
  gate_ = std::make_unique<rpc::Gate>(*access_);
  service_ = transfer::CreateGrpcTransferService({}, *gate_, relay_.keys(), relay_);
  rpc::ServerOptions options = program::ServerFlags();
  options.address = at.ToString();
  options.by_ticket = true;
  LORRY_ASSIGN_OR_RETURN(server_, rpc::Server::Start(options, *gate_, {service_->service()}));
  server_->SetServing(true);
  at.port = static_cast<uint16_t>(server_->port());
  address_ = transfer::RelayAddress{tls_name, advertised(at)}.ToString();
  relay_.SetAddress(address_);
  return absl::OkStatus();
}

RelayPort::~RelayPort() {
  if (service_ != nullptr) service_->Close();
  if (server_ == nullptr) return;
  if (const absl::Status stopped = server_->Shutdown(); !stopped.ok())
    spdlog::error("{}", std::string(stopped.message()));
}

void RelayPort::Watch(metrics::Registry& registry) {
  metrics::Counter relayed =
      registry.AddCounter("lorry_transfer_bytes_total",
                          "Image bytes moved: transport is ucx-shm, ucx-net, relay or grpc, "
                          "direction is in or out",
                          {{"transport", "relay"}, {"direction", "out"}});
  registry.OnScrape([this, relayed]() mutable {
    uint64_t sent = 0;
    for (const auto& [transport, stats] : service_->stats()) sent += stats.bytes_sent;
    relayed.Add(static_cast<double>(sent - std::exchange(counted_, sent)));
  });
}

std::shared_ptr<grpc::Channel> DialRelay(const std::string& address) {
  const auto parsed =
      transfer::ParseRelayAddress(absl::StrCat(ToAbsl(transfer::kRelayScheme), "://", address));
  auto channel = parsed.ok() ? program::DialByTicket(parsed->host_port, parsed->tls_name)
                             : absl::StatusOr<std::shared_ptr<grpc::Channel>>(parsed.status());
  if (channel.ok()) return *std::move(channel);
  spdlog::warn("{}", std::string(channel.status().message()));
  return nullptr;
}

}  // namespace lorry::proxy
