#include "services/engine_proxy/rpc/store_client.h"

#include <cstring>
#include <utility>

#include "lib/base/error.h"
#include "lib/rpc/fleet_messages.h"
#include "lib/rpc/status.h"

namespace lorry::proxy {
namespace {

// A manifest of a 64 GB image has 1 MB of leaves; a store that takes longer is asked again by the
// machine.
constexpr int64_t kOpenFetchDeadlineMs = 10'000;
// The store answers from memory; a fetch can do without.
constexpr int64_t kJoinFanOutDeadlineMs = 1'000;

// A store names two. Each that is gone costs a fetch a moment and one of its attempts.
constexpr size_t kRelaysMax = 3;

}  // namespace

StoreClient::StoreClient(std::shared_ptr<rpc::FreshChannel> channel)
    : channel_(std::move(channel)) {}

std::unique_ptr<store::v1::StoreService::Stub> StoreClient::Stub() const {
  return store::v1::StoreService::NewStub(channel_->Get());
}

absl::StatusOr<Manifest> StoreClient::OpenFetch(const VersionKey& key) {
  store::v1::OpenFetchRequest request;
  *request.mutable_version() = rpc::ToProto(key);
  store::v1::OpenFetchResponse response;
  grpc::ClientContext context;
  rpc::SetDeadlineIn(context, kOpenFetchDeadlineMs);
  LORRY_RETURN_IF_ERROR(rpc::FromGrpc(Stub()->OpenFetch(&context, request, &response)));
  Manifest out;
  out.digest = Digest{response.version().digest()};
  out.image_bytes = response.version().image_bytes();
  out.config_json = response.version().config_json();
  out.ticket = response.ticket();
  out.addresses.assign(response.addresses().begin(), response.addresses().end());
  const std::string& leaves = response.leaves();
  if (leaves.size() != transfer::LeafCount(out.image_bytes) * sizeof(transfer::Checksum::bytes)) {
    return Error(absl::StatusCode::kDataLoss, "DIGEST_MISMATCH",
                 "the store's manifest has another number of leaves than its image");
  }
  out.leaves.resize(transfer::LeafCount(out.image_bytes));
  for (size_t i = 0; i < out.leaves.size(); ++i) {
    std::memcpy(out.leaves[i].bytes.data(), leaves.data() + i * sizeof(transfer::Checksum::bytes),
                sizeof(transfer::Checksum::bytes));
  }
  return out;
}

absl::StatusOr<std::vector<transfer::Source>> StoreClient::JoinFanOut(
    const VersionKey& key, const std::string& relay,
    const transfer::TicketKeys::Secret& ticket_key) {
  store::v1::JoinFanOutRequest request;
  *request.mutable_version() = rpc::ToProto(key);
  request.set_relay(relay);
  request.set_ticket_key(ticket_key.data(), ticket_key.size());
  store::v1::JoinFanOutResponse response;
  grpc::ClientContext context;
  rpc::SetDeadlineIn(context, kJoinFanOutDeadlineMs);
  LORRY_RETURN_IF_ERROR(rpc::FromGrpc(Stub()->JoinFanOut(&context, request, &response)));
  std::vector<transfer::Source> sources;
  for (const auto& source : response.sources()) {
    if (sources.size() == kRelaysMax) break;
    sources.push_back({source.relay(), source.ticket()});
  }
  return sources;
}

}  // namespace lorry::proxy
