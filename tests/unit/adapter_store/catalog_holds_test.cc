// Holders' names, aliases that are asked for, and how many of both there may be.
#include "tests/unit/adapter_store/catalog_dsl.h"

namespace lorry::store {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class HoldsTest : public CatalogTest {
 protected:
  HoldsTest() {
    OpenRun();
    EXPECT_THAT(Publish(1), IsOk());
  }
  absl::Status Hold(const std::string& holder) {
    return catalog_->SetHolds(holder, {1, 1}, {Key(1)}).status();
  }
  const AdapterName policy_ = AdapterName("policy");
};

TEST_F(HoldsTest, AHoldersNameCanBePrinted) {
  EXPECT_THAT(Hold("!~"), IsOk());
  EXPECT_THAT(Hold(std::string(kHolderBytesMax, 'x')), IsOk());
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("a\x7f"), std::string("a\x1f"),
        std::string("\xc3\xa9"), std::string(kHolderBytesMax + 1, 'x')}) {
    EXPECT_THAT(Hold(name), IsError("NAME_INVALID")) << name;
  }
}

TEST_F(HoldsTest, HoldersAreOfTheirOwnAdapter) {
  OpenRun(std::nullopt, "other");
  const VersionKey other{AdapterName("other"), RunId(1), VersionNumber(1)};
  ASSERT_THAT(catalog_->SetHolds("a", {1, 1}, {Key(1, 1)}), IsOk());
  EXPECT_THAT(*catalog_->HoldersOf(other), IsEmpty());
}

TEST_F(HoldsTest, TheLastSetOfEachHolderIsRememberedByItsMark) {
  EXPECT_EQ(catalog_->TakePicture("a")->remembered, std::nullopt) << "never heard of";
  ASSERT_THAT(catalog_->SetHolds("a", {2, 9}, {Key(1)}), IsOk());
  ASSERT_THAT(catalog_->SetHolds("b", {1, 1}, {}), IsOk());
  EXPECT_EQ(catalog_->TakePicture("a")->remembered, (HolderMark{2, 9}));
  EXPECT_EQ(catalog_->TakePicture()->remembered, std::nullopt) << "of whoever asks";
  // It has lost its records and begun them anew: later than anything of the earlier ones.
  ASSERT_THAT(catalog_->SetHolds("a", {3, 1}, {}), IsOk());
  EXPECT_THAT(catalog_->SetHolds("a", {2, 10}, {}), IsError("HOLDS_STALE"));
  Restart();
  EXPECT_EQ(catalog_->TakePicture("a")->remembered, (HolderMark{3, 1}));
}

TEST_F(HoldsTest, AnAliasIsAskedForByName) {
  EXPECT_EQ(catalog_->GetAlias(policy_, AliasName("eval")).status().code(),
            absl::StatusCode::kNotFound);
  ASSERT_THAT(SetAlias("eval", Key(1)), IsOk());
  EXPECT_EQ(catalog_->GetAlias(policy_, AliasName("eval"))->version, Key(1));
  EXPECT_THAT(std::string(SetAlias("eval", Key(1), 7).status().message()),
              HasSubstr("policy@eval is at policy r1.1, generation 1, not at generation 7"));
  EXPECT_THAT(std::string(SetAlias("best", Key(1), 7).status().message()),
              HasSubstr("policy@best does not exist (generation 0), not at generation 7"));
  EXPECT_THAT(catalog_->SetAlias(AdapterName("nobody"), AliasName("x"), std::nullopt, std::nullopt),
              IsError("UNKNOWN_ADAPTER"));
}

TEST_F(HoldsTest, AsManyAliasesAndHoldersAsThereMayBe) {
  for (size_t i = 0; i < kAliasesMax; ++i) {
    ASSERT_THAT(SetAlias(absl::StrCat("a", i), Key(1)), IsOk());
  }
  EXPECT_THAT(SetAlias("more", Key(1)), IsError("TOO_MANY_ALIASES"));
  EXPECT_THAT(SetAlias("a7", std::nullopt), IsOk()) << "known ones go on moving";
  for (size_t i = 0; i < kHoldersMax; ++i) ASSERT_THAT(Hold(absl::StrCat("h", i)), IsOk());
  EXPECT_THAT(Hold("more"), IsError("TOO_MANY_HOLDERS"));
  EXPECT_THAT(catalog_->SetHolds("h7", {1, 2}, {}), IsOk()) << "known ones go on moving";
}

}  // namespace
}  // namespace lorry::store
