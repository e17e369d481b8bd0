// The proxy's side of the store: manifests and tickets. Blocks within its deadline; any thread but
// a gRPC or transport one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lib/rpc/fresh_channel.h"
#include "lorry/store/v1/store.grpc.pb.h"
#include "services/engine_proxy/driver/fetcher.h"

namespace lorry::proxy {

class StoreClient {
 public:
  explicit StoreClient(std::shared_ptr<rpc::FreshChannel> channel);

  absl::StatusOr<Manifest> OpenFetch(const VersionKey& key);
  // As Relay::Join.
  absl::StatusOr<std::vector<transfer::Source>> JoinFanOut(
      const VersionKey& key, const std::string& relay,
      const transfer::TicketKeys::Secret& ticket_key);

 private:
  std::unique_ptr<store::v1::StoreService::Stub> Stub() const;

  const std::shared_ptr<rpc::FreshChannel> channel_;
};

}  // namespace lorry::proxy
