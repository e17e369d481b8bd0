#include "lib/peft/reference.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/error.h"
#include "lib/peft/validate.h"
#include "tests/unit/peft/test_image.h"

namespace lorry::peft {
namespace {

// `count` prompts of `tokens` tokens, as the client writes them.
std::string Written(size_t count, size_t tokens) {
  const std::vector<std::string> ids(tokens, "7"), logprobs(tokens - 1, "-0.5");
  const std::string prompt = absl::StrCat(R"({"tokens":[)", absl::StrJoin(ids, ","),
                                          R"(],"logprobs":[)", absl::StrJoin(logprobs, ","), "]}");
  return absl::StrCat(R"({"prompts":[)",
                      absl::StrJoin(std::vector<std::string>(count, prompt), ","), "]}");
}

std::string ReasonFor(std::string_view text) { return ReasonOf(ParseReference(text).status()); }

TEST(Reference, IsReadAsItIsWritten) {
  const auto reference =
      ParseReference(R"({"prompts":[{"tokens":[1,5,9],"logprobs":[-2.5,-0.25],"base":[-3,0]},)"
                     R"({"tokens":[7,70000],"logprobs":[-1e1]}]})");
  ASSERT_TRUE(reference.ok()) << reference.status();
  EXPECT_EQ(*reference, (Reference{{{1, 5, 9}, {-2.5, -0.25}, {-3, 0}}, {{7, 70'000}, {-10}, {}}}));
  EXPECT_EQ(LargestToken(*reference), 70'000u);
  EXPECT_EQ(LargestToken({}), 0u);
}

TEST(Reference, ItsSizeIsBounded) {
  EXPECT_TRUE(ParseReference(Written(8, 64)).ok());
  EXPECT_EQ(ReasonFor(Written(9, 2)), "IMAGE_MALFORMED");
  EXPECT_EQ(ReasonFor(Written(1, 65)), "IMAGE_MALFORMED");
  EXPECT_EQ(ReasonFor(Written(1, 1)), "IMAGE_MALFORMED") << "its one token follows nothing";
  EXPECT_EQ(ReasonFor(R"({"prompts":[]})"), "IMAGE_MALFORMED");
  EXPECT_EQ(ReasonFor(std::string(kReferenceBytesMax + 1, ' ')), "IMAGE_MALFORMED");
}

TEST(Reference, WhatIsNoneIsRefusedInASentence) {
  for (const char* text : {
           "",
           "[]",
           "nan",
           R"({"prompts":7})",
           R"({"prompts":[7]})",
           R"({"prompts":[{}]})",
           R"({"prompts":[{"tokens":[1,2],"logprobs":[-1,-1]}]})",
           R"({"prompts":[{"tokens":[1,2],"logprobs":[]}]})",
           R"({"prompts":[{"tokens":[1,2],"logprobs":[0.1]}]})",
           R"({"prompts":[{"tokens":[1,2],"logprobs":[-1001]}]})",
           R"({"prompts":[{"tokens":[1,2],"logprobs":["-1"]}]})",
           R"({"prompts":[{"tokens":[1,2],"logprobs":[null]}]})",
           R"({"prompts":[{"tokens":[1,-2],"logprobs":[-1]}]})",
           R"({"prompts":[{"tokens":[1,2.5],"logprobs":[-1]}]})",
           R"({"prompts":[{"tokens":[1,2147483648],"logprobs":[-1]}]})",
           R"({"prompts":[{"tokens":"12","logprobs":[-1]}]})",
           R"({"prompts":[{"tokens":[1,2],"logprobs":[-1],"base":[]}]})",
           R"({"prompts":[{"tokens":[1,2],"logprobs":[-1]}],"prompts":[]})",
       }) {
    EXPECT_EQ(ReasonFor(text), "IMAGE_MALFORMED") << text;
    EXPECT_THAT(std::string(ParseReference(text).status().message()),
                testing::HasSubstr("lorry.Reference"));
  }
}

TEST(Reference, TravelsInTheImagesMetadata) {
  const Config config = *ParseConfig(R"({"peft_type":"LORA","r":8,"lora_alpha":16})");
  ImageHeader header = TestImage().Module("q_proj", 16, 16).Header();
  header.metadata = {{std::string(kReferenceKey), Written(2, 3)}};
  const auto adapter = ValidateAdapter(header, config);
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(adapter->reference.size(), 2u);
  header.metadata[0].second = "much";
  EXPECT_EQ(ReasonOf(ValidateAdapter(header, config).status()), "IMAGE_MALFORMED");
}

TEST(Reference, AModelThatHasNotAllOfItsTokensIsAnother) {
  Adapter adapter;
  adapter.reference = {{.tokens = {1, 511}, .logprobs = {-1}}};
  BaseModel base{.hidden_size = 16};
  EXPECT_TRUE(CheckFits(adapter, base).ok()) << "nobody knows how many it has";
  base.vocab_size = 512;
  EXPECT_TRUE(CheckFits(adapter, base).ok());
  base.vocab_size = 511;
  EXPECT_EQ(ReasonOf(CheckFits(adapter, base)), "BASE_MODEL_MISMATCH");
}

}  // namespace
}  // namespace lorry::peft
