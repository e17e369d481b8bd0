// The proxy's side of the store: manifests and tickets. Blocks within its deadline; any thread but
// a gRPC or transport one.
#pragma once

#include <memory>
#include <string>

#include "lorry/store/v1/store.grpc.pb.h"
#include "services/engine_proxy/driver/fetcher.h"

namespace lorry::proxy {

class StoreClient {
 public:
  // `peer`: the member's name, bound into tickets.
  StoreClient(std::shared_ptr<grpc::Channel> channel, std::string peer);

  absl::StatusOr<Manifest> OpenFetch(const VersionKey& key);

 private:
  const std::unique_ptr<store::v1::StoreService::Stub> stub_;
  const std::string peer_;
};

}  // namespace lorry::proxy
