// What a reply's body says of the version that made it, where a client asks for that.
#include "services/engine_proxy/door/body_note.h"

#include <gtest/gtest.h>

#include <string>

namespace lorry::door {
namespace {

Resolved Version(uint64_t number, std::optional<uint32_t> lag = 0) {
  return {.name = EngineName("policy-v" + std::to_string(number) + "-0123456789ab"),
          .key = {AdapterName("policy"), RunId(3), VersionNumber(number)},
          .digest = Digest{"d" + std::to_string(number)},
          .epoch = Epoch(7),
          .lag = lag};
}

// The same whichever way the reply is cut into pieces.
std::string Noted(std::vector<Resolved> resolved, const std::string& reply, size_t samples = 1,
                  bool lag_known = true) {
  std::string first;
  for (size_t size : {reply.size(), size_t{1}, size_t{7}}) {
    BodyNote note(resolved, lag_known, samples);
    std::string out;
    for (size_t at = 0; at < reply.size(); at += size)
      note.Feed(reply.substr(at, size), false, &out);
    note.Feed("", true, &out);
    if (first.empty()) first = out;
    EXPECT_EQ(out, first);
  }
  return first;
}

const char* const k12 =
    R"({"adapter":"policy","version":12,"run":3,"epoch":7,"digest":"d12","lag":0)";

TEST(BodyNote, AGenerationSaysWhichTokensTheVersionMade) {
  EXPECT_EQ(
      Noted({Version(12)}, R"({"text":"a","meta_info":{"completion_tokens":4}})"),
      R"({"lorry":)" + std::string(k12) +
          R"(,"spans":[{"start":0,"end":4,"version":12,"run":3}]},"text":"a","meta_info":{"completion_tokens":4}})");
}

TEST(BodyNote, ACompletionHasItsTokensInItsUsage) {
  EXPECT_EQ(
      Noted({Version(12)}, R"({"choices":[{"index":0}],"usage":{"completion_tokens":2}})"),
      R"({"lorry":)" + std::string(k12) +
          R"(,"spans":[{"start":0,"end":2,"version":12,"run":3}]},"choices":[{"index":0}],"usage":{"completion_tokens":2}})");
  EXPECT_EQ(
      Noted({Version(12)}, R"({"choices":[{},{}],"usage":{"completion_tokens":2}})", 2),
      R"({"lorry":)" + std::string(k12) + R"(},"choices":[{},{}],"usage":{"completion_tokens":2}})")
      << "usage counts both, so nobody knows where each ends; all are of this version";
}

TEST(BodyNote, OfABatchEachHasItsOwn) {
  const std::string noted =
      Noted({Version(11), Version(12)}, R"([{"a":1},{"a":2},{"a":3},{"a":4}])", 2);
  size_t at = 0;
  for (const char* wanted : {"\"version\":11", "\"a\":1", "\"version\":11", "\"a\":2",
                             "\"version\":12", "\"a\":3", "\"version\":12", "\"a\":4"}) {
    at = noted.find(wanted, at);
    ASSERT_NE(at, std::string::npos) << wanted << " in " << noted;
    ++at;
  }
}

TEST(BodyNote, InAStreamTheLastEventOfEachSequence) {
  const std::string first = "data: {\"text\":\"a\",\"meta_info\":{\"finish_reason\":null}}\n\n";
  EXPECT_EQ(
      Noted({Version(12)},
            first + "data: {\"meta_info\":{\"finish_reason\":{},\"completion_tokens\":9}}\n\ndata: "
                    "[DONE]\n\n"),
      first + "data: {\"lorry\":" + k12 +
          R"(,"spans":[{"start":0,"end":9,"version":12,"run":3}]})" +
          ",\"meta_info\":{\"finish_reason\":{},\"completion_tokens\":9}}\n\ndata: [DONE]\n\n");
  const std::string choices = "data: {\"choices\":[{\"index\":1,\"finish_reason\":\"stop\"}]}\n\n";
  EXPECT_NE(Noted({Version(11), Version(12)}, ": ping\n\n" + choices).find("\"version\":12"),
            std::string::npos)
      << "the second prompt's";
}

TEST(BodyNote, AnEventThatEndsNothingPassesAsItIs) {
  const std::string event = "data: {\"choices\":[{\"index\":0,\"finish_reason\":null}]}\n\n";
  EXPECT_EQ(Noted({Version(12)}, event), event);
}

TEST(BodyNote, ASequenceThatNobodyAskedForIsTheFirstPrompts) {
  const std::string event = "data: {\"index\":99,\"meta_info\":{\"finish_reason\":{}}}\n\n";
  EXPECT_NE(Noted({Version(11), Version(12)}, event).find("\"version\":11"), std::string::npos);
}

TEST(BodyNote, WhatAnEngineMixesInPassesAsItIs) {
  EXPECT_NE(Noted({Version(12)}, R"([1,{"a":1}])").find("[1,{\"lorry\""), std::string::npos);
  EXPECT_NE(Noted({Version(12)}, R"({"meta_info":1,"choices":[1]})").find("\"lag\":0}"),
            std::string::npos);
}

TEST(BodyNote, SaysOfTheLagWhatTheHeaderSays) {
  EXPECT_NE(Noted({Version(12)}, "{}", 1, false).find(R"("lag":"unknown")"), std::string::npos);
  EXPECT_NE(Noted({Version(12, std::nullopt)}, "{}").find(R"("lag":"none")"), std::string::npos);
  EXPECT_EQ(Noted({Resolved()}, "{}"), R"({"lorry":{"adapter":"@base"}})");
}

TEST(BodyNote, WhatIsNoJsonPassesAsItIs) {
  for (const char* reply : {"", "oops", "{\"a\":", "[1,", "data: x\n\n", "data: {\"a\n\n", "\n"}) {
    if (*reply == '\0') continue;
    EXPECT_EQ(Noted({Version(12)}, reply), reply);
  }
}

TEST(BodyNote, AReplyTooLargeToHoldSaysTheVersionAlone) {
  const std::string large(BodyNote::kHeldBytes, 'x');
  BodyNote note({Version(12)}, true, 1);
  std::string out;
  note.Feed("{\"text\":\"", false, &out);
  note.Feed(large, false, &out);
  EXPECT_GT(out.size(), large.size()) << "it is passed on before its end";
  note.Feed("\"}", true, &out);
  EXPECT_EQ(out, "{\"lorry\":" + std::string(k12) + "},\"text\":\"" + large + "\"}");
}

TEST(BodyNote, OtherRepliesTooLargeToHoldPassAsTheyAre) {
  const std::string large(BodyNote::kHeldBytes + 1, 'x');
  for (const char* begin : {"[\"", "data: \""}) {
    BodyNote note({Version(12)}, true, 1);
    std::string out;
    note.Feed(begin + large, false, &out);
    EXPECT_EQ(out, begin + large);
    note.Feed("\"\n\ndata: {\"meta_info\":{\"finish_reason\":{}}}\n\n", true, &out);
    EXPECT_EQ(out.find("lorry"), std::string::npos);
  }
}

}  // namespace
}  // namespace lorry::door
