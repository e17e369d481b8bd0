// Publish and Export where the store or the directory is busy.
#include <gmock/gmock.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>

#include "clients/cpp/client.h"
#include "clients/cpp/peft_directory.h"
#include "lib/base/error.h"
#include "lib/base/file_lock.h"
#include "lib/peft/config.h"
#include "lib/peft/digest.h"
#include "lib/rpc/status.h"
#include "lorry/store/v1/store.grpc.pb.h"
#include "lorry/transfer/v1/transfer.grpc.pb.h"
#include "tests/testing/temp_dir.h"
#include "tests/unit/clients/adapter_dir.h"

namespace lorry::client {
namespace {

// Refuses uploads in these words, one after another, and then has the version already.
class BusyStore final : public store::v1::StoreService::Service {
 public:
  explicit BusyStore(std::deque<const char*> reasons) : reasons_(std::move(reasons)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~BusyStore() override { server_->Shutdown(); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  grpc::Status BeginUpload(grpc::ServerContext*, const store::v1::BeginUploadRequest*,
                           store::v1::BeginUploadResponse* response) override {
    if (reasons_.empty()) {
      response->mutable_stored()->set_digest("of what is stored");
      return grpc::Status::OK;
    }
    const char* reason = reasons_.front();
    reasons_.pop_front();
    return rpc::ToGrpc(Error(absl::StatusCode::kResourceExhausted, reason, "as many as it takes"));
  }

 private:
  std::deque<const char*> reasons_;  // one client asks, one question after another
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// A store with the service that bytes come and go by.
class TransferringStore : public store::v1::StoreService::Service,
                          public transfer::v1::TransferService::Service {
 public:
  TransferringStore() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<store::v1::StoreService::Service*>(this));
    builder.RegisterService(static_cast<transfer::v1::TransferService::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 protected:
  // Called by whoever answers the calls, before it ends: they come until then.
  void Shutdown() { server_->Shutdown(); }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Has every byte already, and says so of each: another rank's commit has begun.
class CompleteStore final : public TransferringStore {
 public:
  ~CompleteStore() override { Shutdown(); }

  grpc::Status BeginUpload(grpc::ServerContext*, const store::v1::BeginUploadRequest* request,
                           store::v1::BeginUploadResponse* response) override {
    response->set_upload_id("u");
    response->set_ticket("t");
    response->add_missing()->set_length(request->image_bytes());
    response->add_addresses("grpc://" + address());
    return grpc::Status::OK;
  }
  grpc::Status CommitUpload(grpc::ServerContext*, const store::v1::CommitUploadRequest*,
                            store::v1::CommitUploadResponse* response) override {
    response->mutable_version()->set_digest("of what was committed");
    return grpc::Status::OK;
  }
  using Stream = grpc::ServerReaderWriter<transfer::v1::PutResponse, transfer::v1::PutRequest>;
  grpc::Status Put(grpc::ServerContext*, Stream*) override {
    return rpc::ToGrpc(Error(absl::StatusCode::kFailedPrecondition, "UPLOAD_COMPLETE", "commit"));
  }
};

// Has one version of an image of a few bytes, and of whatever number is asked for but 99.
class OneVersionStore final : public TransferringStore {
 public:
  ~OneVersionStore() override { Shutdown(); }

  grpc::Status OpenFetch(grpc::ServerContext*, const store::v1::OpenFetchRequest* request,
                         store::v1::OpenFetchResponse* response) override {
    if (request->version().number() == 99)
      return rpc::ToGrpc(Error(absl::StatusCode::kNotFound, "UNKNOWN_VERSION", "none"));
    const peft::Leaf leaf = peft::LeafHash(std::as_bytes(std::span(kImage)));
    const auto config = peft::ParseConfig(kConfig);
    const auto canonical = peft::CanonicalConfig(*config);
    const auto digest = peft::DigestOf(kImage.size(), {&leaf, 1}, *canonical);
    response->mutable_version()->set_config_json(kConfig);
    response->mutable_version()->set_image_bytes(kImage.size());
    response->mutable_version()->set_digest(digest->value);
    response->set_leaves(leaf.bytes.data(), leaf.bytes.size());
    response->set_ticket("t");
    response->add_addresses("grpc://" + address());
    return grpc::Status::OK;
  }
  grpc::Status Get(grpc::ServerContext*, const transfer::v1::GetRequest*,
                   grpc::ServerWriter<transfer::v1::GetResponse>* stream) override {
    transfer::v1::GetResponse response;
    response.mutable_opened()->set_image_bytes(kImage.size());
    stream->Write(response);
    const peft::Leaf leaf = peft::LeafHash(std::as_bytes(std::span(kImage)));
    response.mutable_chunk()->set_data(kImage);
    response.mutable_chunk()->set_checksum(leaf.bytes.data(), leaf.bytes.size());
    stream->Write(response);
    return grpc::Status::OK;
  }

  static inline const std::string kImage = "the bytes of new weights";
  static constexpr char kConfig[] =
      R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]})";
};

std::string TextOf(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <typename Store>
absl::StatusOr<common::v1::Version> PublishTo(const Store& store) {
  AdapterDir directory;
  directory.With("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", 2, 8)
      .With("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", 8, 2);
  const auto image = ReadPeftDirectory(directory.Write());
  if (!image.ok()) return image.status();
  const auto client = Client::Connect({.store = store.address()});
  if (!client.ok()) return client.status();
  return (*client)->Publish(*image, MakeRef("policy", 1, 1), {});
}

TEST(Publish, WaitsForItsTurnAtAStoreThatIsFull) {
  const BusyStore store({"SERVER_BUSY", "TOO_MANY_SESSIONS"});
  const auto stored = PublishTo(store);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->digest(), "of what is stored");
}

TEST(Publish, WhatWaitingDoesNotHelpIsSaidAtOnce) {
  const BusyStore store({"TOO_MANY_UPLOADS"});
  EXPECT_EQ(ReasonOf(PublishTo(store).status()), "TOO_MANY_UPLOADS");
}

TEST(Publish, WhatTheStoreHasAlreadyIsCommitted) {
  const CompleteStore store;
  const auto stored = PublishTo(store);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->digest(), "of what was committed");
}

// Each would remove the other's half image, and one would give it the final name.
TEST(Export, OneAtATimeIntoADirectory) {
  const TempDir directory;
  const BusyStore store({});
  const auto client = Client::Connect({.store = store.address()});
  ASSERT_TRUE(client.ok());
  const auto export_now = [&] {
    return (*client)->Export(MakeRef("policy", 1, 1), directory.path(), true, {}).status();
  };
  {
    const FileLock other(directory / ".adapter_model.safetensors.lock", FileLock::File::kIsRemoved);
    ASSERT_TRUE(other.held());
    const absl::Status refused = export_now();
    EXPECT_EQ(ReasonOf(refused), "DIRECTORY_INVALID") << refused;
    EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("another export"));
  }
  EXPECT_EQ(export_now().code(), absl::StatusCode::kUnimplemented) << "the store is asked";
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Export, AnAdapterIsReplacedWhole) {
  AdapterDir old;
  old.With("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", 2, 8).Config("{}");
  const std::filesystem::path directory = old.Write();
  const OneVersionStore store;
  const auto client = Client::Connect({.store = store.address()});
  ASSERT_TRUE(client.ok());
  const auto exported =
      (*client)->Export(MakeRef("policy", 1, 1), directory.string(), /*replace=*/true, {});
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_EQ(TextOf(directory / kConfigFile), OneVersionStore::kConfig);
  EXPECT_EQ(TextOf(directory / kImageFile), OneVersionStore::kImage);
  const std::filesystem::directory_iterator files(directory);
  EXPECT_EQ(std::distance(begin(files), end(files)), 2) << "and nothing else is left there";
}

// Whoever loaded that would serve one version's weights as another's.
TEST(Export, NoConfigIsLeftBesideOlderWeights) {
  AdapterDir old;
  old.With("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", 2, 8).Config("{}");
  const std::filesystem::path directory = old.Write();
  const OneVersionStore store;
  const auto client = Client::Connect({.store = store.address()});
  ASSERT_TRUE(client.ok());
  // The last step fails: what it would move is gone.
  const auto sabotage = [&](uint64_t, uint64_t) {
    std::filesystem::remove(directory / ".adapter_model.safetensors.part");
  };
  const auto exported =
      (*client)->Export(MakeRef("policy", 1, 1), directory.string(), /*replace=*/true, sabotage);
  ASSERT_FALSE(exported.ok());
  EXPECT_FALSE(std::filesystem::exists(directory / kImageFile) &&
               TextOf(directory / kConfigFile) != "{}")
      << exported.status();
}

TEST(Export, AVersionThatThereIsNotLeavesNoDirectory) {
  const TempDir parent;
  const OneVersionStore store;
  const auto client = Client::Connect({.store = store.address()});
  ASSERT_TRUE(client.ok());
  const std::string directory = parent / "out";
  const auto exported = (*client)->Export(MakeRef("policy", 1, 99), directory, false, {});
  EXPECT_EQ(ReasonOf(exported.status()), "UNKNOWN_VERSION") << exported.status();
  EXPECT_FALSE(std::filesystem::exists(directory));
  EXPECT_FALSE((*client)->Export(MakeRef("policy", 1, 99), parent.path(), false, {}).ok());
  EXPECT_TRUE(std::filesystem::exists(parent.path())) << "that was there before";
}

}  // namespace
}  // namespace lorry::client
