#include "services/adapter_store/catalog/keys.h"
#include "tests/unit/adapter_store/catalog_dsl.h"
#include "tests/unit/kv/racing_store.h"

namespace lorry::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunsTest : public CatalogTest {
 protected:
  absl::StatusOr<store::Run> Open(std::optional<uint64_t> expected, std::string request_id = "",
                                  std::optional<VersionKey> resume = std::nullopt) {
    return catalog_->OpenRun({.adapter = AdapterName("policy"),
                              .resume_from = resume,
                              .expected_run = expected,
                              .request_id = std::move(request_id)});
  }
};

TEST_F(RunsTest, TheFirstRunCreatesTheAdapter) {
  EXPECT_THAT(catalog_->GetAdapter(AdapterName("policy")), IsError("UNKNOWN_ADAPTER"));
  EXPECT_EQ(Open(0)->number.value, 1u);
  const auto adapter = catalog_->GetAdapter(AdapterName("policy"));
  ASSERT_THAT(adapter, IsOk());
  EXPECT_EQ(adapter->current_run.value, 1u);
  EXPECT_EQ(adapter->generation, 1u);
  EXPECT_THAT(LogAfter(0), ElementsAre("adapter policy"));
}

TEST_F(RunsTest, ARunIsOpenedOnlyOnTheExpectedOne) {
  ASSERT_THAT(Open(0), IsOk());
  EXPECT_THAT(Open(0), IsError("RUN_CONFLICT"));
  EXPECT_EQ(Open(1)->number.value, 2u);
  EXPECT_EQ(Open(std::nullopt)->number.value, 3u);
}

TEST_F(RunsTest, ARetryWithItsRequestIdGetsTheSameRun) {
  EXPECT_EQ(Open(0, "try-1")->number.value, 1u);
  EXPECT_EQ(Open(0, "try-1")->number.value, 1u);
  Restart();
  EXPECT_EQ(Open(0, "try-1")->number.value, 1u);
  EXPECT_EQ(Open(1, "try-2")->number.value, 2u);
  EXPECT_EQ(Open(0, "try-1")->number.value, 1u);
}

// What it went on from was a version of the run that was current then, and may be deleted since.
TEST_F(RunsTest, ARetryThatGoesOnFromTheCurrentRunGetsTheSameRun) {
  OpenRun();
  ASSERT_THAT(Publish(80), IsOk());
  const VersionKey newest{AdapterName("policy"), RunId(), VersionNumber(80)};
  EXPECT_EQ(Open(1, "try", newest)->number.value, 2u);
  EXPECT_EQ(Open(1, "try", newest)->number.value, 2u);
  ASSERT_THAT(catalog_->DeleteVersion(Key(80, 1)), IsOk());
  EXPECT_EQ(Open(1, "try", newest)->resumed_from, Key(80, 1));
  EXPECT_THAT(Open(2, "another", newest), IsError("UNKNOWN_VERSION"));
}

TEST_F(RunsTest, ARequestIdThatSaysSomethingElseIsRefused) {
  OpenRun();
  ASSERT_THAT(Publish(80), IsOk());
  ASSERT_THAT(Open(1, "try"), IsOk());
  EXPECT_THAT(Open(1, "try", Key(80, 1)), IsError("REQUEST_ID_REUSED"));
  EXPECT_THAT(Open(1, std::string(65, 'x')), IsError("ARGUMENT_INVALID"));
}

TEST_F(RunsTest, ResumingNeedsAStoredVersion) {
  OpenRun();
  ASSERT_THAT(Publish(80), IsOk());
  EXPECT_THAT(Open(std::nullopt, "", Key(81)), IsError("UNKNOWN_VERSION"));
  EXPECT_EQ(Open(std::nullopt, "", Key(80))->resumed_from, Key(80));
}

TEST_F(RunsTest, ARunResumedAt80Publishes81AgainAndTheOldProcessIsRefused) {
  OpenRun();
  for (const uint64_t number : {80, 81, 100}) ASSERT_THAT(Publish(number), IsOk());
  const auto old_upload = Begin(101);
  ASSERT_THAT(old_upload, IsOk());

  OpenRun(Key(80));
  EXPECT_THAT(ended_, ElementsAre(old_upload->upload.id));
  EXPECT_THAT(catalog_->StoreVersion(old_upload->upload.id, Image("late")), IsError("RUN_FENCED"));
  EXPECT_THAT(Publish(79), IsError("VERSION_TOO_OLD"));
  EXPECT_THAT(Publish(81, "other bytes"), IsOk());
  EXPECT_THAT(Stored(), ElementsAre(81, 100, 81, 80));
  EXPECT_NE(catalog_->GetVersion(Key(81, 1))->digest, catalog_->GetVersion(Key(81, 2))->digest);
  EXPECT_EQ(catalog_->GetVersion({AdapterName("policy"), RunId(0), VersionNumber(81)})->key.run,
            RunId(2));
  run_ = 1;
  EXPECT_THAT(Begin(102), IsError("RUN_FENCED"));
}

// A run leaves a mark of each version that it published: more than one transaction takes.
class LongRunTest : public CatalogTest {
 protected:
  static constexpr size_t kMarks = 5'000;
  static constexpr size_t kKeysMax = 1'500;  // of one transaction

  LongRunTest() {
    OpenRun();
    kv::Transaction marks;
    for (size_t i = 1; i <= kMarks; ++i) marks.Put(keys::OfAttempt(Key(i)), "{}");
    EXPECT_THAT(kv_->Commit(marks), IsOk());
    catalog_ = Catalog::Open(counting_, options_).value();
  }
  size_t Marks() { return kv::ListAll(*kv_, keys::AttemptsOf(AdapterName("policy")))->size(); }

  kv::RacingStore counting_{*kv_};
};

TEST_F(LongRunTest, TheNextRunBeginsAndTheMarksGoByAndBy) {
  OpenRun();
  ASSERT_THAT(Begin(1), IsOk());
  ASSERT_THAT(catalog_->Tidy(), IsOk());
  EXPECT_EQ(Marks(), 1u);
  EXPECT_LE(counting_.keys_max, kKeysMax);
}

TEST_F(LongRunTest, TheAdapterCanBeDeleted) {
  ASSERT_THAT(catalog_->DeleteAdapter(AdapterName("policy"), false), IsOk());
  EXPECT_EQ(Marks(), 0u);
  EXPECT_LE(counting_.keys_max, kKeysMax);
  EXPECT_EQ(OpenRun(), RunId(2));
}

TEST_F(RunsTest, TheVersionThatWasResumedFromMayBePublishedAgain) {
  OpenRun();
  ASSERT_THAT(Publish(80), IsOk());
  OpenRun(Key(80));
  EXPECT_THAT(Publish(80), IsOk());
}

TEST_F(RunsTest, RunsAreListedNewestFirst) {
  OpenRun();
  ASSERT_THAT(Publish(3), IsOk());
  OpenRun(Key(3));
  const auto runs = catalog_->ListRuns(AdapterName("policy"));
  ASSERT_THAT(runs, IsOk());
  ASSERT_EQ(runs->size(), 2u);
  EXPECT_EQ((*runs)[0].number.value, 2u);
  EXPECT_EQ((*runs)[0].newest, std::nullopt);
  EXPECT_EQ((*runs)[1].newest, 3u);
}

TEST_F(RunsTest, APolicyMovesByCompareAndSwap) {
  const AdapterName name("policy");
  EXPECT_EQ(catalog_->SetAdapter(name, {.encoded = "a"}, 0)->generation, 1u);
  EXPECT_THAT(catalog_->SetAdapter(name, {.encoded = "b"}, 0), IsError("ADAPTER_MOVED"));
  EXPECT_EQ(catalog_->SetAdapter(name, {.encoded = "a"}, 0)->generation, 1u)
      << "a call that is repeated, as its answer was lost";
  EXPECT_EQ(catalog_->SetAdapter(name, {.encoded = std::string("\0\xff", 2)}, 1)->generation, 2u);
  Restart();
  EXPECT_EQ(catalog_->GetAdapter(name)->policy.encoded, std::string("\0\xff", 2));
}

TEST_F(RunsTest, OnlyOneAdapterIsAPoolsDefault) {
  Policy policy;
  policy.default_of = {"rollout"};
  ASSERT_THAT(catalog_->SetAdapter(AdapterName("a"), policy, std::nullopt), IsOk());
  EXPECT_THAT(catalog_->SetAdapter(AdapterName("b"), policy, std::nullopt),
              IsError("POLICY_INVALID"));
  EXPECT_THAT(catalog_->SetAdapter(AdapterName("a"), policy, std::nullopt), IsOk());
}

TEST_F(RunsTest, AMistypedAdapterIsAnsweredWithTheNearest) {
  OpenRun(std::nullopt, "math-policy");
  OpenRun(std::nullopt, "code-policy");
  const auto missing = catalog_->GetAdapter(AdapterName("math-polcy"));
  EXPECT_THAT(missing, IsError("UNKNOWN_ADAPTER"));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("did you mean math-policy?"));
}

TEST_F(RunsTest, AdaptersAreListedInPages) {
  for (const char* name : {"a", "b", "b-1", "c"}) OpenRun(std::nullopt, name);
  const auto first = catalog_->ListAdapters("", 2);
  ASSERT_EQ(first->size(), 2u);
  const auto second = catalog_->ListAdapters(first->back().name.value, 5);
  ASSERT_EQ(second->size(), 2u);
  EXPECT_EQ((*second)[0].name.value, "b-1");
}

}  // namespace
}  // namespace lorry::store
