// Frameworks that read in a reply's body which version made it, where SGLang has its label.
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "tests/unit/engine_proxy/door/flip_fixture.h"

namespace lorry::door {
namespace {

using namespace lorry::door::testing;

class WeightVersionsTest : public DoorTest {
 protected:
  // Answers each prompt of a request by its id; streams where it was asked to.
  void Start() {
    StartBefore([](const Message& request, Wire& wire) {
      const bool stream = request.body.find("\"stream\":true") != std::string::npos;
      static const std::regex kId("[0-9a-f]{32}");
      std::vector<std::string> said;
      for (auto id = std::sregex_iterator(request.body.begin(), request.body.end(), kId);
           id != std::sregex_iterator(); ++id)
        said.push_back(Said(id->str()));
      if (!stream) {
        return wire.Send(
            JsonReply(said.size() == 1 ? said[0] : "[" + said[0] + "," + said[1] + "]"));
      }
      std::string events = StreamHead();
      for (const std::string& one : said) events += Chunk("data: " + one + "\n\n");
      return wire.Send(events + Chunk("data: [DONE]\n\n") + Chunk(""));
    });
    door_->SetTable(PolicyTable().Binding("mine", "policy", 11).Make());
  }
  static std::string Said(const std::string& rid) {
    return R"({"text":"t","output_ids":[7],"meta_info":{"id":")" + rid +
           R"(","finish_reason":{"type":"length","length":1},"weight_version":"default"}})";
  }
  // What each part of the reply says of its version, in their order.
  static std::vector<std::string> Versions(const std::string& body) {
    constexpr std::string_view kKey = "\"weight_version\":\"";
    std::vector<std::string> out;
    for (size_t at = body.find(kKey); at != std::string::npos; at = body.find(kKey, at + 1))
      out.push_back(
          body.substr(at + kKey.size(), body.find('"', at + kKey.size()) - at - kKey.size()));
    return out;
  }
  std::vector<std::string> Told(const std::string& body, std::string_view fields = "") {
    const Message reply = Ask(Post("/generate", body, fields));
    EXPECT_EQ(reply.status(), 200) << reply.body;
    return Versions(reply.body);
  }
};
using Strings = std::vector<std::string>;

const char* const kLatest = R"({"lora_path":"policy","input_ids":[1]})";

TEST_F(WeightVersionsTest, EveryReplyToldItsVersion) {
  options_.weight_versions = true;
  Start();
  EXPECT_EQ(Told(kLatest), Strings({"12"}));
  EXPECT_EQ(Told(R"({"lora_path":"policy@11","input_ids":[1],"stream":true})"), Strings({"11"}));
  EXPECT_EQ(Told(R"({"lora_path":["policy@11","policy"],"input_ids":[[1],[2]]})"),
            Strings({"11", "12"}));
  EXPECT_EQ(Told(R"({"lora_path":["policy","policy@11"],"input_ids":[[1],[2]],"stream":true})"),
            Strings({"12", "11"}));
  EXPECT_EQ(Told(R"({"lora_path":"policy","input_ids":[1],"sampling_params":{"n":2}})"),
            Strings({"12", "12"}));
  EXPECT_EQ(Told(R"({"lora_path":"mine","input_ids":[1]})"), Strings({"default"}))
      << "a framework that binds labels its engine by itself";
}

TEST_F(WeightVersionsTest, OtherwiseWhoAsksForItAlone) {
  Start();
  EXPECT_EQ(Told(kLatest), Strings({"default"}));
  EXPECT_EQ(Told(kLatest, "X-Lorry-Body: 1\r\n"), Strings({"12"}));
}

}  // namespace
}  // namespace lorry::door
