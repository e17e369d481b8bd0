#include "services/adapter_store/rpc/watch_hub.h"

#include "lib/rpc/channel.h"
#include "lib/rpc/gate.h"
#include "lib/rpc/server.h"
#include "lorry/store/v1/store.grpc.pb.h"
#include "services/adapter_store/catalog/keys.h"
#include "tests/testing/refusing_kv.h"
#include "tests/unit/adapter_store/catalog_dsl.h"

namespace lorry::store {
namespace {

using ::testing::ElementsAre;

// The watch alone, on a port of its own.
class WatchService final
    : public v1::StoreService::WithCallbackMethod_Watch<v1::StoreService::Service> {
 public:
  WatchService(rpc::Gate& gate, Catalog& catalog) : gate_(gate), hub_(catalog) {}
  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest* request) override {
    return rpc::StartStream(gate_, *context, rpc::Role::kReader,
                            std::make_shared<WatchSession>(hub_, *request));
  }

 private:
  rpc::Gate& gate_;
  WatchHub hub_;
};

class WatchHubTest : public CatalogTest {
 protected:
  WatchHubTest() {
    auto refusing = std::make_unique<RefusingStore>();
    refusing_ = refusing.get();
    kv_ = std::move(refusing);
    Restart();
    OpenRun();
  }

  // The revisions after `from` up to `last` as "2: stored 1"; then why the watch ended, if it did.
  std::vector<std::string> Watch(uint64_t from, uint64_t last) {
    const auto access = rpc::Access::Open("", /*with_certificates=*/false).value();
    rpc::Gate gate(*access, {});
    WatchService service(gate, *catalog_);
    const auto server = rpc::Server::Start({}, gate, {&service}).value();
    server->SetServing(true);
    const auto stub = v1::StoreService::NewStub(*rpc::MakeChannel({.target = server->address()}));
    grpc::ClientContext context;
    v1::WatchRequest request;
    request.set_from_revision(from);
    const auto reader = stub->Watch(&context, request);
    std::vector<std::string> heard;
    v1::WatchResponse response;
    while (from < last && reader->Read(&response)) {
      from = response.revision();
      heard.push_back(absl::StrCat(from, ":"));
      for (const v1::Change& change : response.changes()) {
        absl::StrAppend(&heard.back(), change.has_version_stored()    ? " stored"
                                       : change.has_version_deleted() ? " deleted"
                                                                      : " other");
      }
    }
    if (from == last) context.TryCancel();
    const grpc::Status ended = reader->Finish();
    if (from != last) heard.push_back(ended.error_message());
    return heard;
  }

  RefusingStore* refusing_ = nullptr;
};

TEST_F(WatchHubTest, AChangeThatCannotBeReadEndsTheWatchInFrontOfIt) {
  for (const uint64_t number : {1, 2}) ASSERT_THAT(Publish(number), IsOk());
  refusing_->unread = keys::OfVersion(Key(2));
  EXPECT_THAT(Watch(1, 3), ElementsAre("2: stored", "the disk is away"));
  refusing_->unread = std::nullopt;
  EXPECT_THAT(Watch(2, 3), ElementsAre("3: stored"));
}

TEST_F(WatchHubTest, WhatIsGoneSinceIsToldByALaterChange) {
  for (const uint64_t number : {1, 2}) ASSERT_THAT(Publish(number), IsOk());
  ASSERT_THAT(catalog_->DeleteVersion(Key(1)), IsOk());
  EXPECT_THAT(Watch(1, 4), ElementsAre("2:", "3: stored", "4: deleted"));
}

}  // namespace
}  // namespace lorry::store
