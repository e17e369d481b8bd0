#include "services/engine_proxy/door/reply.h"

#include <gtest/gtest.h>

#include <string>

#include "lib/base/error.h"
#include "services/engine_proxy/door/explain.h"
#include "tests/unit/engine_proxy/door/tables.h"

namespace lorry::door {
namespace {

std::string LorryHeaders(const std::vector<Resolved>& resolved, bool lag_known,
                         std::string_view request_id) {
  std::string head;
  AppendLorryHeaders(resolved, lag_known, request_id, &head);
  return head;
}

using fleet::EngineKind;
using testing::NameOf;
using testing::TableMaker;

TEST(Reply, SpeaksTheEnginesOwnErrorShape) {
  const Refused refused{404, "UNKNOWN_ADAPTER", "no \"x\""};
  EXPECT_EQ(
      ErrorBody(EngineKind::kSglang, "/v1/completions", refused),
      R"({"object":"error","message":"no \"x\"","type":"UNKNOWN_ADAPTER","param":null,"code":404})");
  const std::string nested =
      R"({"error":{"message":"no \"x\"","type":"UNKNOWN_ADAPTER","param":null,"code":404}})";
  EXPECT_EQ(ErrorBody(EngineKind::kVllm, "/v1/completions", refused), nested);
  EXPECT_EQ(ErrorBody(EngineKind::kSglang, "/generate", refused), nested);
  EXPECT_EQ(ErrorBody(EngineKind::kSglang, "/classify", refused), nested);
  EXPECT_EQ(ErrorBody(EngineKind::kSglang, "/v1/messages", refused).find(R"({"type":"error",)"),
            0u);
  std::string line;
  AppendStatusLine(409, &line);
  EXPECT_EQ(line, "HTTP/1.1 409 Conflict\r\n");
}

TEST(Reply, SaysWhatProducedIt) {
  const Resolved policy{NameOf("policy", 12),
                        {AdapterName("policy"), RunId(2), VersionNumber(12)},
                        Digest{"sha256-xxh3:ab"},
                        Epoch(7),
                        1};
  EXPECT_EQ(LorryHeaders({policy, policy}, true, "id"),
            "X-Lorry-Request-Id: id\r\nX-Lorry-Adapter: policy\r\nX-Lorry-Version: 12\r\n"
            "X-Lorry-Run: 2\r\nX-Lorry-Epoch: 7\r\nX-Lorry-Digest: sha256-xxh3:ab\r\n"
            "X-Lorry-Lag: 1\r\n");
  const std::string mixed = LorryHeaders({policy, {}}, false, "id");
  EXPECT_NE(mixed.find("X-Lorry-Adapter: policy, @base\r\n"), std::string::npos);
  EXPECT_NE(mixed.find("X-Lorry-Lag: unknown, -\r\n"), std::string::npos);
  EXPECT_EQ(LorryHeaders({}, true, "id"), "X-Lorry-Request-Id: id\r\n");
}

TEST(Reply, SaysWhetherAskingAgainMayHelp) {
  EXPECT_EQ(RefusalFields({409, "NOT_LOADED", ""}),
            "X-Lorry-Reason: NOT_LOADED\r\nx-should-retry: false\r\n");
  EXPECT_EQ(RefusalFields({409, "STALE_VERSION", "", 2}),
            "X-Lorry-Reason: STALE_VERSION\r\nRetry-After: 2\r\n");
  EXPECT_EQ(RefusalFields({404, "UNKNOWN_ADAPTER", ""}), "X-Lorry-Reason: UNKNOWN_ADAPTER\r\n");
}

TEST(Reply, ListsEachVersionOfALongBatchOnce) {
  std::vector<Resolved> batch(4096);
  for (size_t i = 0; i < batch.size(); ++i) {
    batch[i].name = NameOf("policy", i % 3);
    batch[i].key = {AdapterName("policy"), RunId(1), VersionNumber(i % 3)};
  }
  EXPECT_NE(LorryHeaders(batch, true, "id").find("X-Lorry-Version: 0, 1, 2\r\n"),
            std::string::npos);
}

TEST(Reply, ListsModelsUnderTheClientsNames) {
  TableMaker maker;
  maker.Loaded("policy", 11).Loaded("policy", 12).Loaded("policy", 3, 0, 2);
  maker.Row("policy", fleet::RowMode::kOpen, 12).Alias("policy", "eval", 11);
  const auto body = ModelsBody(
      R"({"object":"list","data":[{"id":"base","parent":null,"max_model_len":1024},{"id":"policy-v12-0123456789ab","parent":"base"}]})",
      maker.Make());
  ASSERT_TRUE(body.ok());
  EXPECT_NE(body->find(R"({"id":"base","parent":null,"max_model_len":1024})"), std::string::npos);
  EXPECT_NE(body->find(R"("id":"policy","object")"), std::string::npos);
  EXPECT_NE(body->find(R"("id":"policy@12","object")"), std::string::npos);
  EXPECT_NE(body->find(R"("id":"policy@eval","object")"), std::string::npos);
  EXPECT_EQ(body->find(R"("id":"policy-v12)"), std::string::npos);
  EXPECT_EQ(body->find(R"("id":"policy@3")"), std::string::npos) << "of another run";
  EXPECT_LT(body->find(R"("id":"policy")"), body->find(R"("id":"base")"))
      << "clients that take the first one mean what is trained";
  EXPECT_FALSE(ModelsBody("nonsense", maker.Make()).ok());
  EXPECT_FALSE(ModelsBody(R"({"data":[1]})", maker.Make()).ok());
}

TEST(Reply, ShowsOneModel) {
  TableMaker maker;
  maker.Loaded("policy", 12).Row("policy", fleet::RowMode::kOpen, 12).Alias("policy", "eval", 12);
  const auto card = [&](const char* path) {
    const auto body =
        ModelBody(R"({"data":[{"id":"org/base","parent":null}]})", maker.Make(), path);
    return body.ok() ? body->substr(0, body->find(',')) : ReasonOf(body.status());
  };
  EXPECT_EQ(card("/v1/models/policy"), R"({"id":"policy")");
  EXPECT_EQ(card("/v1/models/policy%40eval"), R"({"id":"policy@eval")");
  EXPECT_EQ(card("/v1/models/org/base"), R"({"id":"org/base")");
  EXPECT_EQ(card("/v1/models/org%2fbase"), R"({"id":"org/base")");
  EXPECT_EQ(card("/v1/models/policy-v12-0123456789ab"), "UNKNOWN_ADAPTER");
  EXPECT_EQ(card("/v1/models/%"), "UNKNOWN_ADAPTER");
  EXPECT_EQ(card("/v1/models/policy%4"), "UNKNOWN_ADAPTER");
}

// What an engine sends is read as carefully as what a client sends.
TEST(Reply, BoundsWhatAnEngineMayAnswer) {
  const std::string deep(2u << 20, '[');
  EXPECT_FALSE(RedactedInfo(R"({"a":)" + deep + "}").ok());
  EXPECT_FALSE(RedactedInfo(R"({"a":)" + deep + std::string(deep.size(), ']') + "}").ok());
  EXPECT_FALSE(RedactedInfo("[]").ok());
  TableMaker maker;
  EXPECT_FALSE(ModelsBody(R"({"data":[{"id":{"a":1}}]})", maker.Make()).ok());
  EXPECT_FALSE(
      ModelsBody(R"({"data":[{"id":")" + std::string(1 << 20, 'x') + R"("}]})", maker.Make()).ok());
}

TEST(Reply, RedactsSecretsAtAnyDepth) {
  const auto info = RedactedInfo(
      R"({"api_key":"k","admin_api_key":null,"a":[{"ssl_keyfile_password":"p","rank":16}],"version":"1"})");
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(
      *info,
      R"({"api_key":"***","admin_api_key":null,"a":[{"ssl_keyfile_password":"***","rank":16}],"version":"1"})");
}

TEST(ExplainRing, KeepsTheLastOnes) {
  ExplainRing ring(2);
  EXPECT_FALSE(ring.Find("a").has_value());
  for (const char* id : {"a", "b", "c"}) {
    Explained one;
    one.request_id = id;
    one.client_id = "mine";
    one.status = id[0];
    ring.Put(one);
  }
  EXPECT_FALSE(ring.Find("a").has_value());
  EXPECT_EQ(ring.Find("b")->status, 'b');
  EXPECT_EQ(ring.Find("mine")->request_id, "c");
  EXPECT_EQ(ring.Recent(5).size(), 2u);
  Explained batch;
  batch.request_id = "batch";
  batch.asked.resize(4096);
  batch.resolved.resize(4096);
  ring.Put(batch);
  EXPECT_LE(ring.Find("batch")->asked.size(), 8u) << "nothing of the size of a body is kept";
  EXPECT_LE(ring.Find("batch")->resolved.size(), 8u);
  ring.Put(*ring.Find("c"));
  EXPECT_EQ(ring.Recent(1)[0].request_id, "c");
}

}  // namespace
}  // namespace lorry::door
