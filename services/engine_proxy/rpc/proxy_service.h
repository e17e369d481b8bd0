// lorry.engine.v1.ProxyService: what this proxy is doing, what happened to a request, drain. Owned
// by main.
#pragma once

#include <string>

#include "lib/rpc/gate.h"
#include "lorry/engine/v1/proxy.grpc.pb.h"
#include "services/engine_proxy/door/door.h"
#include "services/engine_proxy/driver/fetcher.h"
#include "services/engine_proxy/driver/proxy.h"
#include "services/engine_proxy/rpc/attach_client.h"

namespace lorry::proxy {

class ProxyService final : public engine::v1::ProxyService::Service {
 public:
  struct Self {
    std::string member;
    std::string pool;
    std::string engine_address;
    std::string door_address;
  };
  // All outlive the service.
  ProxyService(rpc::Gate& gate, Self self, Proxy& proxy, const Fetcher& fetcher,
               const AttachClient& attach, door::Door& door)
      : gate_(gate),
        self_(std::move(self)),
        proxy_(proxy),
        fetcher_(fetcher),
        attach_(attach),
        door_(door) {}

  grpc::Status GetStatus(grpc::ServerContext* context, const engine::v1::GetStatusRequest* request,
                         engine::v1::GetStatusResponse* response) override;
  grpc::Status Explain(grpc::ServerContext* context, const engine::v1::ExplainRequest* request,
                       engine::v1::ExplainResponse* response) override;
  grpc::Status Drain(grpc::ServerContext* context, const engine::v1::DrainRequest* request,
                     engine::v1::DrainResponse* response) override;

 private:
  rpc::Gate& gate_;
  const Self self_;
  Proxy& proxy_;
  const Fetcher& fetcher_;
  const AttachClient& attach_;
  door::Door& door_;
};

}  // namespace lorry::proxy
