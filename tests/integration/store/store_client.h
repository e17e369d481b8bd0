// A trainer and a reader in a few verbs, over real gRPC and real transports.
#pragma once

#include <grpcpp/create_channel.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/error.h"
#include "lib/rpc/channel.h"
#include "lib/rpc/fleet_messages.h"
#include "lib/rpc/status.h"
#include "lib/transfer/grpc/grpc_transport.h"
#include "lib/transfer/transport.h"
#include "lorry/store/v1/store.grpc.pb.h"
#include "tests/unit/adapter_store/test_adapter.h"

namespace lorry::store {

class StoreClient {
 public:
  StoreClient(const std::string& address, transfer::Transport& transport)
      : stub_(v1::StoreService::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        transport_(transport) {}

  v1::StoreService::Stub& stub() { return *stub_; }

  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(grpc::Status (v1::StoreService::Stub::*method)(grpc::ClientContext*,
                                                                               const Request&,
                                                                               Response*),
                                const Request& request) {
    grpc::ClientContext context;
    rpc::SetDeadlineIn(context, 20'000);
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (!status.ok()) return rpc::FromGrpc(status);
    return response;
  }

  absl::StatusOr<uint64_t> OpenRun(const std::string& adapter, const std::string& request_id = "",
                                   std::optional<VersionKey> resume_from = std::nullopt) {
    v1::OpenRunRequest request;
    request.set_adapter(adapter);
    request.set_request_id(request_id);
    if (resume_from.has_value()) *request.mutable_resume_from() = rpc::ToProto(*resume_from);
    LORRY_ASSIGN_OR_RETURN(const auto response, Call(&v1::StoreService::Stub::OpenRun, request));
    return response.run();
  }

  absl::StatusOr<v1::BeginUploadResponse> Begin(const VersionKey& key, const TestAdapter& adapter,
                                                uint64_t attempt = 1) {
    v1::BeginUploadRequest request;
    *request.mutable_version() = rpc::ToProto(key);
    request.set_attempt(attempt);
    request.set_header(adapter.header());
    request.set_config_json(adapter.config);
    request.set_image_bytes(adapter.image.size());
    return Call(&v1::StoreService::Stub::BeginUpload, request);
  }

  // Sends `ranges`, all that is missing by default.
  absl::Status Push(const v1::BeginUploadResponse& upload, const TestAdapter& adapter,
                    std::vector<transfer::Range> ranges = {}) {
    if (ranges.empty()) {
      for (const v1::Range& range : upload.missing()) {
        ranges.push_back({.offset = range.offset(), .length = range.length()});
      }
    }
    if (ranges.empty()) return absl::OkStatus();
    return PushAndWait(transport_, {.address = AddressIn(upload.addresses()),
                                    .ticket = upload.ticket(),
                                    .ranges = std::move(ranges),
                                    .source = adapter.bytes(),
                                    .leaves = {},
                                    .options = {.deadline_ms = 20'000}})
        .status;
  }

  absl::StatusOr<common::v1::Version> Commit(const std::string& upload_id) {
    v1::CommitUploadRequest request;
    request.set_upload_id(upload_id);
    LORRY_ASSIGN_OR_RETURN(const auto response,
                           Call(&v1::StoreService::Stub::CommitUpload, request));
    return response.version();
  }

  absl::StatusOr<common::v1::Version> Publish(const VersionKey& key, const TestAdapter& adapter,
                                              uint64_t attempt = 1) {
    LORRY_ASSIGN_OR_RETURN(const auto upload, Begin(key, adapter, attempt));
    if (upload.has_stored()) return upload.stored();
    LORRY_RETURN_IF_ERROR(Push(upload, adapter));
    return Commit(upload.upload_id());
  }

  absl::StatusOr<v1::OpenFetchResponse> OpenFetch(const VersionKey& key) {
    v1::OpenFetchRequest request;
    *request.mutable_version() = rpc::ToProto(key);
    return Call(&v1::StoreService::Stub::OpenFetch, request);
  }

  // The bytes, each range checked against the manifest's leaves on the way.
  absl::StatusOr<std::string> Fetch(const VersionKey& key) {
    LORRY_ASSIGN_OR_RETURN(const auto manifest, OpenFetch(key));
    std::string image(manifest.version().image_bytes(), '\0');
    std::vector<transfer::Checksum> leaves(manifest.leaves().size() / sizeof(transfer::Checksum));
    std::memcpy(leaves.data(), manifest.leaves().data(), manifest.leaves().size());
    const transfer::Outcome outcome =
        FetchAndWait(transport_, {.address = AddressIn(manifest.addresses()),
                                  .ticket = manifest.ticket(),
                                  .ranges = {},
                                  .destination = std::as_writable_bytes(std::span(image)),
                                  .leaves = leaves,
                                  .options = {.deadline_ms = 20'000}});
    LORRY_RETURN_IF_ERROR(outcome.status);
    return image;
  }

  // All of them, page by page.
  absl::StatusOr<std::vector<common::v1::Version>> List(const std::string& adapter) {
    std::vector<common::v1::Version> versions;
    v1::ListVersionsRequest request;
    request.set_adapter(adapter);
    do {
      LORRY_ASSIGN_OR_RETURN(const auto page, Call(&v1::StoreService::Stub::ListVersions, request));
      versions.insert(versions.end(), page.versions().begin(), page.versions().end());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return versions;
  }

  absl::Status SetAlias(const VersionKey& key, const std::string& alias) {
    v1::SetAliasRequest request;
    request.set_adapter(key.adapter.value);
    request.set_alias(alias);
    *request.mutable_version() = rpc::ToProto(key);
    return Call(&v1::StoreService::Stub::SetAlias, request).status();
  }

  absl::Status Delete(const VersionKey& key) {
    v1::DeleteVersionRequest request;
    *request.mutable_version() = rpc::ToProto(key);
    return Call(&v1::StoreService::Stub::DeleteVersion, request).status();
  }

 private:
  template <typename Addresses>
  std::string AddressIn(const Addresses& addresses) const {
    for (const std::string& address : addresses) {
      if (transfer::SchemeOf(address) == transport_.scheme()) return address;
    }
    return "";
  }

  const std::unique_ptr<v1::StoreService::Stub> stub_;
  transfer::Transport& transport_;  // outlives the client
};

}  // namespace lorry::store
