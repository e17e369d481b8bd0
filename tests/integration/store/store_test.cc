// A whole store in process, spoken to as its clients do: gRPC for control, UCX and gRPC for bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <latch>
#include <map>

#include "lib/transfer/ucx/ucx_transport.h"
#include "services/adapter_store/server.h"
#include "tests/integration/store/store_client.h"
#include "tests/testing/temp_dir.h"

namespace lorry::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

MATCHER_P(FailsWith, reason, "") {
  *result_listener << arg.ToString();
  return !arg.ok() && ReasonOf(arg) == reason;
}

VersionKey Key(uint64_t number, uint64_t run = 1) {
  return {.adapter = AdapterName("policy"), .run = RunId(run), .number = VersionNumber(number)};
}

// One watcher that reads message by message.
class Watcher {
 public:
  Watcher(v1::StoreService::Stub& stub, uint64_t from_revision, const std::string& store = "",
          const std::string& holder = "") {
    v1::WatchRequest request;
    request.set_from_revision(from_revision);
    request.set_store(store);
    request.set_holder(holder);
    rpc::SetDeadlineIn(context_, 20'000);
    stream_ = stub.Watch(&context_, request);
  }
  ~Watcher() { context_.TryCancel(); }
  bool Next() { return stream_->Read(&message); }
  absl::Status End() { return rpc::FromGrpc(stream_->Finish()); }
  // "adapter policy", "stored 7", "deleted 7", "alias eval 7", of the last message.
  std::vector<std::string> Changes() const {
    std::vector<std::string> told;
    for (const v1::Change& change : message.changes()) {
      if (change.has_adapter_set()) told.push_back("adapter " + change.adapter_set().name());
      if (change.has_version_stored()) {
        told.push_back(absl::StrCat("stored ", change.version_stored().ref().number()));
      }
      if (change.has_version_deleted()) {
        told.push_back(absl::StrCat("deleted ", change.version_deleted().number()));
      }
      if (change.has_alias_set()) {
        told.push_back(absl::StrCat("alias ", change.alias_set().name(), " ",
                                    change.alias_set().version().number()));
      }
    }
    return told;
  }

  v1::WatchResponse message;

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchResponse>> stream_;
};

class StoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  StoreTest() {
    options_.data_dir = root_ / "data";
    if (Carrier() == "ucx") {
      transport_ = transfer::CreateUcxTransport(transfer::UcxLane::kSharedMemory,
                                                std::make_shared<transfer::Channels>())
                       .value();
    } else {
      transport_ = transfer::CreateGrpcTransport();
    }
    Start();
  }
  std::string Carrier() const { return GetParam(); }
  void Start() {
    client_.reset();
    server_.reset();
    auto started = StoreServer::Start(options_);
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
    client_.emplace(server_->grpc_address(), *transport_);
  }

  TempDir root_;
  StoreOptions options_;
  std::unique_ptr<transfer::Transport> transport_;
  std::unique_ptr<StoreServer> server_;
  std::optional<StoreClient> client_;
};

TEST_P(StoreTest, WhatIsPublishedIsFetchedByteForByte) {
  const TestAdapter adapter = MakeAdapter(1, /*width=*/100'000);  // 19 MB
  ASSERT_EQ(*client_->OpenRun("policy"), 1u);
  const auto version = client_->Publish(Key(7), adapter);
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(version->digest(), DigestOf(adapter.bytes(), adapter.config).value);
  const auto image = client_->Fetch(Key(7));
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_TRUE(*image == adapter.image);
  EXPECT_EQ(client_->Publish(Key(7), adapter)->revision(), version->revision());

  Start();
  EXPECT_TRUE(*client_->Fetch(Key(7)) == adapter.image);
}

TEST_P(StoreTest, TwoRanksSendTheirHalvesOverTheirOwnConnections) {
  const TestAdapter adapter = MakeAdapter(1, /*width=*/100'000);
  ASSERT_TRUE(client_->OpenRun("policy").ok());
  const uint64_t half = adapter.image.size() / 2;
  const auto first = client_->Begin(Key(7), adapter);
  StoreClient other_rank(server_->grpc_address(), *transport_);
  const auto second = other_rank.Begin(Key(7), adapter);
  ASSERT_EQ(first->upload_id(), second->upload_id());
  ASSERT_TRUE(client_->Push(*first, adapter, {{0, half}}).ok());
  EXPECT_THAT(client_->Commit(first->upload_id()).status(), FailsWith("RANGES_MISSING"));
  ASSERT_TRUE(other_rank.Push(*second, adapter, {{half, adapter.image.size() - half}}).ok());
  EXPECT_TRUE(other_rank.Commit(first->upload_id()).ok());
}

TEST_P(StoreTest, ConflictingRangesEndTheUpload) {
  const TestAdapter adapter = MakeAdapter(1), other = MakeAdapter(2);
  ASSERT_TRUE(client_->OpenRun("policy").ok());
  const auto upload = client_->Begin(Key(7), adapter);
  const transfer::Range data{adapter.header_bytes, adapter.image.size() - adapter.header_bytes};
  ASSERT_TRUE(client_->Push(*upload, adapter, {data}).ok());
  EXPECT_THAT(client_->Push(*upload, other, {data}), FailsWith("RANGE_CONFLICT"));
  EXPECT_THAT(client_->Commit(upload->upload_id()).status(), FailsWith("RANGE_CONFLICT"));
  EXPECT_TRUE(client_->Publish(Key(7), adapter, /*attempt=*/2).ok());
}

TEST_P(StoreTest, TicketsAreForOneThingAlone) {
  const TestAdapter adapter = MakeAdapter(1);
  ASSERT_TRUE(client_->OpenRun("policy").ok());
  ASSERT_TRUE(client_->Publish(Key(1), adapter).ok());
  auto upload = client_->Begin(Key(2), MakeAdapter(2));
  upload->set_ticket(client_->OpenFetch(Key(1))->ticket());
  EXPECT_THAT(client_->Push(*upload, MakeAdapter(2)), FailsWith("BAD_TICKET"));
  upload->set_ticket("made up");
  EXPECT_THAT(client_->Push(*upload, MakeAdapter(2)), FailsWith("BAD_TICKET"));
}

TEST_P(StoreTest, AWatcherSeesThePresentThenEveryChange) {
  ASSERT_TRUE(client_->OpenRun("policy").ok());
  ASSERT_TRUE(client_->Publish(Key(1), MakeAdapter(1)).ok());
  Watcher watcher(client_->stub(), 0);
  ASSERT_TRUE(watcher.Next());
  EXPECT_TRUE(watcher.message.synced());
  EXPECT_THAT(watcher.Changes(), ElementsAre("adapter policy", "stored 1"));
  const uint64_t present = watcher.message.revision();

  ASSERT_TRUE(client_->Publish(Key(2), MakeAdapter(2)).ok());
  ASSERT_TRUE(client_->SetAlias(Key(1), "eval").ok());
  ASSERT_TRUE(client_->Delete(Key(2)).ok());
  std::vector<std::string> told;
  while (told.empty() || told.back() != "deleted 2") {
    ASSERT_TRUE(watcher.Next());
    for (const std::string& change : watcher.Changes()) told.push_back(change);
  }
  EXPECT_EQ(watcher.message.revision(), present + 3);

  Watcher late(client_->stub(), present + 1);  // goes on where another connection ended
  ASSERT_TRUE(late.Next());
  EXPECT_THAT(late.Changes(), ElementsAre("alias eval 1"));
}

TEST_P(StoreTest, AWatcherOfRevisionsThatAreGoneIsToldSo) {
  ASSERT_TRUE(client_->OpenRun("policy").ok());
  Watcher watcher(client_->stub(), 77);
  EXPECT_FALSE(watcher.Next());
  EXPECT_THAT(watcher.End(), FailsWith("REVISION_COMPACTED"));
}

TEST_P(StoreTest, StoppingEndsWatchersAndReleasesTheDataDirectory) {
  ASSERT_TRUE(client_->OpenRun("policy").ok());
  EXPECT_FALSE(StoreServer::Start(options_).ok());  // one process at a time
  Watcher watcher(client_->stub(), 0);
  ASSERT_TRUE(watcher.Next());
  ASSERT_TRUE(server_->Stop().ok());
  EXPECT_FALSE(watcher.Next());
  EXPECT_TRUE(absl::IsUnavailable(watcher.End()));
  Start();
  EXPECT_EQ(*client_->OpenRun("policy"), 2u);
}

TEST_P(StoreTest, PoliciesAreCheckedAndKept) {
  v1::SetAdapterRequest request;
  request.set_name("policy");
  request.mutable_policy()->mutable_min_engines()->set_percent(101);
  EXPECT_THAT(client_->Call(&v1::StoreService::Stub::SetAdapter, request).status(),
              FailsWith("POLICY_INVALID"));
  request.mutable_policy()->mutable_min_engines()->set_percent(100);
  request.mutable_policy()->set_quota_bytes(1000);
  const auto set = client_->Call(&v1::StoreService::Stub::SetAdapter, request);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->adapter().policy().SerializeAsString(), request.policy().SerializeAsString());
  ASSERT_TRUE(client_->OpenRun("policy").ok());
  EXPECT_THAT(client_->Publish(Key(1), MakeAdapter(1)).status(), FailsWith("QUOTA_EXCEEDED"));
}

TEST_P(StoreTest, NamesAndNumbersOutOfRangeAreRefused) {
  EXPECT_THAT(client_->OpenRun("Policy").status(), FailsWith("NAME_INVALID"));
  EXPECT_THAT(client_->OpenRun("policy-v7").status(), FailsWith("NAME_INVALID"));
  ASSERT_TRUE(client_->OpenRun("policy").ok());
  EXPECT_THAT(client_->Publish(Key(1, /*run=*/0), MakeAdapter(1)).status(),
              FailsWith("ARGUMENT_INVALID"));
  ASSERT_TRUE(client_->Publish(Key(1), MakeAdapter(1)).ok());
  EXPECT_THAT(client_->SetAlias(Key(1), "latest"), FailsWith("NAME_INVALID"));
  EXPECT_THAT(client_->Delete(Key(1, /*run=*/0)), FailsWith("ARGUMENT_INVALID"));
  EXPECT_THAT(client_->Fetch(Key(2)).status(), FailsWith("UNKNOWN_VERSION"));
  EXPECT_EQ(client_->OpenFetch(Key(1, /*run=*/0))->version().ref().run(), 1u);
}

TEST_P(StoreTest, HoldersAreNamedAndKeepWhatTheyHold) {
  ASSERT_TRUE(client_->OpenRun("policy").ok());
  ASSERT_TRUE(client_->Publish(Key(1), MakeAdapter(1)).ok());
  v1::SetHoldsRequest request;
  request.set_holder("orchestrator:test");
  request.set_revision(1);
  for (const uint64_t number : {1, 2}) *request.add_versions() = rpc::ToProto(Key(number));
  const auto held = client_->Call(&v1::StoreService::Stub::SetHolds, request);
  ASSERT_TRUE(held.ok()) << held.status();
  ASSERT_EQ(held->missing_size(), 1);
  EXPECT_EQ(held->missing(0).number(), 2u);
  EXPECT_THAT(client_->Delete(Key(1)), FailsWith("IN_USE"));
  v1::GetVersionRequest get;
  *get.mutable_version() = rpc::ToProto(Key(1));
  EXPECT_THAT(client_->Call(&v1::StoreService::Stub::GetVersion, get)->holders(),
              ElementsAre("orchestrator:test"));
}

TEST_P(StoreTest, AHolderThatWatchesIsToldWhatIsRememberedOfItAndByWhichStore) {
  ASSERT_TRUE(client_->OpenRun("policy").ok());
  Watcher stranger(client_->stub(), 0, "", "orchestrator:test");
  ASSERT_TRUE(stranger.Next());
  EXPECT_FALSE(stranger.message.has_remembered());
  v1::SetHoldsRequest request;
  request.set_holder("orchestrator:test");
  request.set_incarnation(7);
  request.set_revision(3);
  ASSERT_TRUE(client_->Call(&v1::StoreService::Stub::SetHolds, request).ok());
  Watcher known(client_->stub(), 0, "", "orchestrator:test");
  ASSERT_TRUE(known.Next());
  EXPECT_EQ(known.message.remembered().incarnation(), 7u);
  EXPECT_EQ(known.message.remembered().revision(), 3u);

  const std::string store = known.message.store();
  ASSERT_FALSE(store.empty());
  ASSERT_TRUE(client_->OpenRun("second").ok());
  Watcher goes_on(client_->stub(), 1, store, "orchestrator:test");
  ASSERT_TRUE(goes_on.Next());
  EXPECT_TRUE(goes_on.message.synced()) << "the store may be a copy from before, or after";
  EXPECT_EQ(goes_on.message.remembered().revision(), 3u);
  EXPECT_EQ(goes_on.message.changes_size(), 0);
  ASSERT_TRUE(goes_on.Next());
  EXPECT_THAT(goes_on.Changes(), ElementsAre("adapter second"));
  Watcher strays(client_->stub(), 1, "another");
  EXPECT_FALSE(strays.Next());
  EXPECT_THAT(strays.End(), FailsWith("REVISION_COMPACTED"));
}

TEST_P(StoreTest, AFullDiskIsAnError) {
  options_.disk_free_min = uint64_t{1} << 60;
  Start();
  ASSERT_TRUE(client_->OpenRun("policy").ok());
  EXPECT_THAT(client_->Begin(Key(1), MakeAdapter(1)).status(), FailsWith("DISK_FULL"));
}

TEST_P(StoreTest, AnImageWhoseFileWasCutIsAnErrorAndHarmsNoOther) {
  const TestAdapter adapter = MakeAdapter(1, /*width=*/100'000);  // of several leaves
  ASSERT_TRUE(client_->OpenRun("policy").ok());
  ASSERT_TRUE(client_->Publish(Key(7), adapter).ok());
  for (const auto& file : std::filesystem::directory_iterator(root_ / "data/blobs/sealed")) {
    std::filesystem::resize_file(file.path(), 4096);
  }
  ASSERT_TRUE(client_->Publish(Key(8), adapter).ok());
  const absl::Status fetched = client_->Fetch(Key(7)).status();
  EXPECT_THAT(fetched, FailsWith("DISK_FAILED"));
  EXPECT_TRUE(absl::IsDataLoss(fetched));
  EXPECT_THAT(std::string(fetched.message()), HasSubstr("4096 bytes and not"));
  EXPECT_TRUE(*client_->Fetch(Key(8)) == adapter.image);
}

TEST_P(StoreTest, RolesAreAsked) {
  options_.tokens_file = root_ / "tokens";
  std::ofstream(options_.tokens_file) << "reader reader-secret-0123456789 somebody\n";
  Start();
  EXPECT_TRUE(absl::IsUnauthenticated(client_->OpenRun("policy").status()));
}

// As many ranks as the largest training jobs have, each over a connection like any rank's: sixteen
// of them share one here.
class Ranks {
 public:
  static constexpr int kCount = 1'024;
  static constexpr int kPerChannel = 16;

  explicit Ranks(const std::string& address) {
    grpc::ChannelArguments own_connection;
    own_connection.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    for (int i = 0; i < kCount / kPerChannel; ++i) {
      stubs_.push_back(v1::StoreService::NewStub(
          grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), own_connection)));
    }
  }

  // All at the same time; how many ended how ("OK", or the reason).
  template <typename Response, typename Request, typename Method>
  std::map<std::string, int> CallAll(const Request& request, Method method,
                                     std::vector<Response>& responses) {
    std::vector<grpc::ClientContext> contexts(kCount);
    std::vector<grpc::Status> statuses(kCount);
    responses.resize(kCount);
    std::latch ended(kCount);
    for (int i = 0; i < kCount; ++i) {
      rpc::SetDeadlineIn(contexts[i], 60'000);
      (stubs_[i / kPerChannel]->async()->*method)(&contexts[i], &request, &responses[i],
                                                  [&, i](grpc::Status status) {
                                                    statuses[i] = std::move(status);
                                                    ended.count_down();
                                                  });
    }
    ended.wait();
    std::map<std::string, int> told;
    for (const grpc::Status& status : statuses) {
      ++told[status.ok() ? "OK" : ReasonOf(rpc::FromGrpc(status))];
    }
    return told;
  }

 private:
  std::vector<std::unique_ptr<v1::StoreService::Stub>> stubs_;
};

TEST_P(StoreTest, AThousandRanksBeginAndCommitTogether) {
  using Async = v1::StoreService::StubInterface::async_interface;
  using Done = std::function<void(grpc::Status)>;
  const TestAdapter adapter = MakeAdapter(1, /*width=*/100'000);
  ASSERT_TRUE(client_->OpenRun("policy").ok());
  Ranks ranks(server_->grpc_address());
  const std::map<std::string, int> all_well = {{"OK", Ranks::kCount}};

  v1::BeginUploadRequest begin;
  *begin.mutable_version() = rpc::ToProto(Key(7));
  begin.set_header(adapter.header());
  begin.set_config_json(adapter.config);
  begin.set_image_bytes(adapter.image.size());
  std::vector<v1::BeginUploadResponse> begun;
  using Begin = void (Async::*)(grpc::ClientContext*, const v1::BeginUploadRequest*,
                                v1::BeginUploadResponse*, Done);
  ASSERT_EQ(ranks.CallAll(begin, Begin(&Async::BeginUpload), begun), all_well);
  for (const auto& each : begun) ASSERT_EQ(each.upload_id(), begun.front().upload_id());

  v1::CommitUploadRequest commit;
  commit.set_upload_id(begun.front().upload_id());
  std::vector<v1::CommitUploadResponse> committed;
  using Commit = void (Async::*)(grpc::ClientContext*, const v1::CommitUploadRequest*,
                                 v1::CommitUploadResponse*, Done);
  EXPECT_EQ(ranks.CallAll(commit, Commit(&Async::CommitUpload), committed),
            (std::map<std::string, int>{{"RANGES_MISSING", Ranks::kCount}}));
  ASSERT_TRUE(client_->Push(begun.front(), adapter).ok());
  EXPECT_EQ(ranks.CallAll(commit, Commit(&Async::CommitUpload), committed), all_well);
  for (const auto& each : committed) {
    EXPECT_EQ(each.version().digest(), DigestOf(adapter.bytes(), adapter.config).value);
  }
}

TEST_P(StoreTest, ACallerIsSentToTheAddressThatItDialled) {
  transport_ = transfer::CreateGrpcTransport();
  options_.listen.address = "[::]:0";
  options_.listen.allow_insecure = true;
  Start();
  const std::string by_name = absl::StrCat("localhost:", server_->grpc_port());
  client_.emplace(by_name, *transport_);
  const TestAdapter adapter = MakeAdapter(1, /*width=*/128);
  ASSERT_TRUE(client_->OpenRun("policy").ok());
  const auto begun = client_->Begin(Key(1), adapter);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_THAT(begun->addresses(), ElementsAre("grpc://" + by_name));
  EXPECT_TRUE(client_->Publish(Key(1), adapter).ok());
  EXPECT_TRUE(*client_->Fetch(Key(1)) == adapter.image);
}

INSTANTIATE_TEST_SUITE_P(Over, StoreTest, ::testing::Values("grpc", "ucx"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lorry::store
