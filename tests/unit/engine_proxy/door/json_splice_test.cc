#include "services/engine_proxy/door/json_splice.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/error.h"
#include "lib/base/prng.h"

namespace lorry::door {
namespace {

// "key=<the bytes of its value>" per field.
std::string Describe(const std::string& text) {
  const PaddedBody body(text);
  const auto fields = ObjectFields(body);
  if (!fields.ok()) return ReasonOf(fields.status());
  std::string out;
  for (const JsonField& field : *fields) {
    out += field.key + "=<" + std::string(body.Text(field.value)) + ">";
  }
  return out;
}

TEST(JsonSplice, FindsTheExactBytesOfEveryValue) {
  EXPECT_EQ(Describe(R"({"a":"x","b": [1, {"c":2}] , "d":{} ,"e":1.50e3,"f":null})"),
            R"(a=<"x">b=<[1, {"c":2}]>d=<{}>e=<1.50e3>f=<null>)");
  EXPECT_EQ(Describe(" {\"a\" : \"x\"  } \n"), "a=<\"x\">");
  EXPECT_EQ(Describe("{}"), "");
}

TEST(JsonSplice, UnescapesKeysSoThatASecondSpellingIsSeen) {
  EXPECT_EQ(Describe(R"({"mod\u0065l":"x"})"), R"(model=<"x">)");
  EXPECT_EQ(Describe(R"({"model":"x","mod\u0065l":"y"})"), "REQUEST_INVALID");
  EXPECT_EQ(Describe(R"({"model":"x","model":"y"})"), "REQUEST_INVALID");
}

TEST(JsonSplice, RefusesWhatHasNoSingleMeaning) {
  for (const char* text :
       {"", " ", "[]", "\"x\"", "{", "{\"a\":1", "{\"a\":1}}", "{\"a\":1} {\"a\":2}", "{\"a\" 1}",
        "{\"a\":[1}", "{\"a\":[1,}", "{\"a\":nul}", "{\"a\":NaN}", "{\"a\":tru}", "{'a':1}",
        "{\"a\":1,}", "\xef\xbb\xbf{}", "{\"a\":\"\xff\"}"}) {
    EXPECT_EQ(Describe(text), "REQUEST_INVALID") << text;
  }
  EXPECT_EQ(Describe(std::string("{\0\"\0a\0", 6)), "REQUEST_INVALID") << "UTF-16";
}

TEST(JsonSplice, BoundsDepthAndKeys) {
  const std::string deep(kMaxJsonDepth - 1, '[');
  const std::string close(kMaxJsonDepth - 1, ']');
  EXPECT_NE(Describe("{\"a\":" + deep + close + "}"), "REQUEST_INVALID");
  EXPECT_EQ(Describe("{\"a\":[[" + deep + close + "]]}"), "REQUEST_INVALID");
  std::string many = "{\"k\":0";
  for (size_t i = 0; i < kMaxJsonKeys; ++i) many += ",\"" + std::to_string(i) + "\":0";
  EXPECT_EQ(Describe(many + "}"), "REQUEST_INVALID");
}

TEST(JsonSplice, ReadsNestedObjectsAndLists) {
  const PaddedBody body(R"({"p":{"n": 4,"x":[]},"l":[ "a" ,null,{"k":1}]})");
  const auto fields = ObjectFields(body);
  ASSERT_TRUE(fields.ok());
  const auto inner = ObjectFields(body, (*fields)[0].value);
  ASSERT_TRUE(inner.ok()) << inner.status();
  EXPECT_EQ(body.Text(FindField(*inner, "n")->value), "4");
  const auto list = ArrayElements(body, (*fields)[1].value, 3);
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->size(), 3u);
  EXPECT_EQ(body.Text((*list)[0]), "\"a\"");
  EXPECT_EQ((*list)[1].kind, JsonKind::kNull);
  EXPECT_EQ(body.Text((*list)[2]), "{\"k\":1}");
  EXPECT_FALSE(ArrayElements(body, (*fields)[1].value, 2).ok());
}

TEST(JsonSplice, ChangesOnlyWhatItIsToldTo) {
  const std::string text = R"({ "model" : "old", "temperature": 0.10 })";
  const PaddedBody body(text);
  const auto fields = ObjectFields(body);
  ASSERT_TRUE(fields.ok());
  const JsonRange model = FindField(*fields, "model")->value;
  EXPECT_EQ(ApplyEdits(text, {{model.offset, model.length, QuoteJson("n\"w")},
                              InsertField({0, text.size()}, false, "rid", "\"1\"")}),
            R"({"rid":"1", "model" : "n\"w", "temperature": 0.10 })");
  EXPECT_EQ(ApplyEdits("{}", {InsertField({0, 2}, true, "a", "1")}), R"({"a":1})");
}

TEST(JsonSplice, ReadsStringsWithTheirEscapes) {
  const PaddedBody body(R"({"a":"\u0062\n\"c"})");
  const auto fields = ObjectFields(body);
  ASSERT_TRUE(fields.ok());
  EXPECT_EQ(*StringValue(body, (*fields)[0].value), "b\n\"c");
  EXPECT_EQ(QuoteJson(std::string("a\x01", 2)), "\"a\\u0001\"");
}

// The reference is a strict parser of another make. Documents are mostly lists of token ids in every
// spacing, and each is damaged in many places: the fast way through them must accept exactly what
// the slow one does.
TEST(JsonScan, AcceptsExactlyWhatAStrictParserAccepts) {
  constexpr std::string_view kDamage = "0123456789-+.,: \t\n[]{}\"\\trufalsn";
  constexpr uint64_t kSeed = 20261122;
  Prng random(kSeed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random.Below(n)); };
  size_t accepted = 0;
  for (int round = 0; round < 400; ++round) {
    const std::string separator = std::vector<std::string>{",", ", ", " ,", ",  ", "\n,"}[below(5)];
    std::string list = "[";
    for (size_t i = 0, n = below(200); i < n; ++i) {
      list += (i == 0 ? "" : separator) + std::to_string(below(130'000));
    }
    const std::string text = R"({"p":)" + list + R"(],"s":")" + std::string(below(150), 'a') +
                             R"(\n\u00e9","o":{"x":[true,null,-1.5e3,[[]]]}})";
    for (int damage = 0; damage < 40; ++damage) {
      std::string damaged = text;
      if (damage > 0) {
        const size_t at = below(damaged.size());
        switch (below(3)) {
          case 0:
            damaged[at] = kDamage[below(kDamage.size())];
            break;
          case 1:
            damaged.insert(at, 1, kDamage[below(kDamage.size())]);
            break;
          default:
            damaged.erase(at, 1 + below(3));
        }
      }
      JsonScanner scan(damaged);
      JsonKind kind;
      scan.SkipSpace();
      bool ours = scan.SkipValue(1, &kind);
      scan.SkipSpace();
      ours = ours && scan.AtEnd();
      ASSERT_EQ(ours, nlohmann::json::accept(damaged)) << damaged;
      accepted += ours ? 1 : 0;
    }
  }
  EXPECT_GT(accepted, 1'000u) << "damage that changes a digit changes no form";
}

TEST(JsonScan, ALongListOfTokenIdsMayBeginWithZeroAndNotWithALeadingZero) {
  std::string ids;
  for (int i = 0; i < 200; ++i) ids += ",17";
  for (const auto& [first, is_json] : {std::pair("0", true), {"01", false}, {"00", false}}) {
    const std::string list = "[" + std::string(first) + ids + "]";
    JsonScanner scan(list);
    JsonKind kind;
    EXPECT_EQ(scan.SkipValue(1, &kind) && scan.AtEnd(), is_json) << first;
  }
}

TEST(WholeNumber, IsNoOtherNumberAndNothingElse) {
  const PaddedBody body(std::string(
      R"({"a":12,"most":18446744073709551615,"more":18446744073709551616,"b":-1,"c":1.0,"d":1e3,"e":"1","f":null})"));
  const auto fields = ObjectFields(body);
  EXPECT_EQ(WholeNumber(body, *fields, "a"), 12u);
  EXPECT_EQ(WholeNumber(body, *fields, "most"), UINT64_MAX);
  for (const char* key : {"more", "b", "c", "d", "e", "f", "none"}) {
    EXPECT_EQ(WholeNumber(body, *fields, key), std::nullopt) << key;
  }
}

}  // namespace
}  // namespace lorry::door
