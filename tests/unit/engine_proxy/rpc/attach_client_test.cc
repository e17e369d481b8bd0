#include "services/engine_proxy/rpc/attach_client.h"

#include <gmock/gmock.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "lib/kv/memory_store.h"
#include "lib/rpc/fleet_messages.h"

namespace lorry::proxy {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kMany = 10'000;  // as many of a kind as are read of a document

// Answers each Hello with one document.
class Orchestrator final : public sync::v1::SyncService::Service {
 public:
  Orchestrator() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Orchestrator() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  std::atomic<int> hellos = 0;
  std::atomic<bool> is_newer = false;  // than the proxy, which does not know what it asks for
  fleet::Desired desired;

 private:
  grpc::Status Attach(grpc::ServerContext*,
                      grpc::ServerReaderWriter<sync::v1::AttachResponse, sync::v1::AttachRequest>*
                          stream) override {
    sync::v1::AttachRequest request;
    while (stream->Read(&request)) {
      if (!request.has_hello()) continue;
      sync::v1::AttachResponse response;
      *response.mutable_desired() = rpc::ToProto(desired);
      if (is_newer) {
        auto* row = response.mutable_desired()->add_rows();
        row->set_adapter("policy");
        row->set_mode(static_cast<sync::v1::RowMode>(99));
      }
      ++hellos;
      stream->Write(response);
    }
    return grpc::Status::OK;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class AttachClientTest : public ::testing::Test {
 protected:
  AttachClientTest()
      : proxy_(Proxy::Create(*store_, clock_,
                             {.machine = {.member = MemberId("engine-1"),
                                          .pool = PoolName("rollout"),
                                          .new_journal = JournalId("j1")},
                              .on_fatal = [](const absl::Status&) {}})
                   .value()),
        client_(rpc::FreshChannel::Open({.target = orchestrator_.address(),
                                         .receive_max_bytes = AttachClient::kReceiveBytesMax})
                    .value(),
                {.member = "engine-1", .pool = "rollout"}, *proxy_) {}
  ~AttachClientTest() override { client_.Stop(); }

  void WaitUntil(const std::function<bool()>& is_so) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!is_so()) {
      ASSERT_LT(std::chrono::steady_clock::now(), give_up);
      std::this_thread::yield();
    }
  }

  const std::unique_ptr<kv::Store> store_ = kv::MakeMemoryStore();
  const SteadyClock clock_;
  const std::unique_ptr<Proxy> proxy_;
  Orchestrator orchestrator_;
  AttachClient client_;
};

// Each Hello costs the orchestrator a durable write, and brings the same document again.
TEST_F(AttachClientTest, ADocumentThatCannotBeReadIsAskedForLessAndLess) {
  orchestrator_.is_newer = true;
  const auto began = std::chrono::steady_clock::now();
  client_.Start();
  WaitUntil([&] { return orchestrator_.hellos >= 4; });
  // After the first three: half of 200, 400 and 800 ms at least.
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(700));
  EXPECT_THAT(client_.why_detached(), HasSubstr("DesiredRow.mode"))
      << "an outage, though it is attached";

  orchestrator_.is_newer = false;
  WaitUntil([&] { return client_.why_detached().empty(); });
  EXPECT_TRUE(client_.attached());
}

TEST_F(AttachClientTest, TheLargestDocumentComesThrough) {
  for (size_t i = 0; i < kMany; ++i) {
    fleet::WantedVersion wanted{
        .name = EngineName("policy-v" + std::to_string(i) + "-0123456789ab"),
        .key = {AdapterName("policy"), RunId(1), VersionNumber(i)},
        .digest = Digest{"sha256-xxh3:" + std::string(64, 'd')},
        .traits = {.rank_max = 16}};
    for (int layer = 0; layer < 48; ++layer)
      wanted.traits.modules.push_back("module_" + std::to_string(layer));
    orchestrator_.desired.wanted.push_back(std::move(wanted));
  }
  ASSERT_GT(rpc::ToProto(orchestrator_.desired).ByteSizeLong(), size_t{4} << 20);
  client_.Start();
  WaitUntil([&] { return client_.desired().wanted.size() == kMany; });
}

}  // namespace
}  // namespace lorry::proxy
