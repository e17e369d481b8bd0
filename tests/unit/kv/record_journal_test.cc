#include "lib/kv/record_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "lib/kv/memory_store.h"
#include "tests/unit/kv/racing_store.h"

namespace lorry::kv {
namespace words {

struct Word {
  std::string text;
  bool operator==(const Word&) const = default;
};
std::string Encode(const Word& word) { return "w:" + word.text; }
absl::StatusOr<Word> Decode(std::string_view text) {
  if (!text.starts_with("w:")) return absl::InvalidArgumentError("no word");
  return Word{std::string(text.substr(2))};
}
struct Record {
  std::string key;
  std::optional<Word> value;
};

}  // namespace words
namespace {

using words::Record;
using words::Word;
using Journal = RecordJournal<Word>;

TEST(RecordJournal, WhatWasPersistedIsLoadedAgain) {
  const auto store = MakeMemoryStore();
  Journal journal(*store, "m/", &words::Decode);
  ASSERT_TRUE(journal.Persist(std::vector<Record>{{"a", Word{"1"}}, {"b", Word{"2"}}}).ok());
  ASSERT_TRUE(journal.Persist(std::vector<Record>{{"a", std::nullopt}, {"c", Word{"3"}}}).ok());
  const auto records = Journal(*store, "m/", &words::Decode).Load();
  ASSERT_TRUE(records.ok());
  EXPECT_THAT(*records,
              ::testing::ElementsAre(std::pair("b", Word{"2"}), std::pair("c", Word{"3"})));
}

TEST(RecordJournal, TheLastOfABatchCounts) {
  const auto store = MakeMemoryStore();
  Journal journal(*store, "m/", &words::Decode);
  ASSERT_TRUE(journal.Persist(std::vector<Record>{{"a", Word{"1"}}, {"a", Word{"2"}}}).ok());
  EXPECT_EQ(Journal(*store, "m/", &words::Decode).Load()->at("a"), Word{"2"});
}

TEST(RecordJournal, WhoeverLostTheFenceWritesNothing) {
  const auto store = MakeMemoryStore();
  Journal old(*store, "m/", &words::Decode, "meta");
  ASSERT_TRUE(old.Load().ok());
  ASSERT_TRUE(old.Persist(std::vector<Record>{{"meta", Word{"term 1"}}}).ok());
  Journal next(*store, "m/", &words::Decode, "meta");
  ASSERT_TRUE(next.Load().ok());
  ASSERT_TRUE(next.Persist(std::vector<Record>{{"meta", Word{"term 2"}}}).ok());
  EXPECT_EQ(old.Persist(std::vector<Record>{{"decision", Word{"commit"}}}).code(),
            absl::StatusCode::kAborted);
  EXPECT_TRUE(next.Persist(std::vector<Record>{{"decision", Word{"abort"}}}).ok());
  EXPECT_EQ(next.Load()->at("decision"), Word{"abort"});
}

TEST(RecordJournal, WhoeverTakesOverReadsAllThatIsEverWrittenBeforeIt) {
  const auto store = MakeMemoryStore();
  Journal old(*store, "m/", &words::Decode, "meta");
  ASSERT_TRUE(old.TakeOver()->empty());
  ASSERT_TRUE(old.Persist(std::vector<Record>{{"meta", Word{"term 1"}}}).ok());
  Journal next(*store, "m/", &words::Decode, "meta");
  EXPECT_THAT(*next.TakeOver(), ::testing::ElementsAre(std::pair("meta", Word{"term 1"})));
  EXPECT_EQ(old.Persist(std::vector<Record>{{"sync", Word{"epoch 4"}}}).code(),
            absl::StatusCode::kAborted);
  EXPECT_TRUE(next.Persist(std::vector<Record>{{"meta", Word{"term 2"}}}).ok());
}

TEST(RecordJournal, WhoeverTakesOverDoesNotWriteAnEarlierTermOverALaterOne) {
  const auto store = MakeMemoryStore();
  ASSERT_TRUE(store->Commit(Transaction().Put("m/meta", "w:term 1")).ok());
  RacingStore raced(*store);
  raced.race = [&] {
    Journal faster(*store, "m/", &words::Decode, "meta");
    ASSERT_TRUE(faster.TakeOver().ok());
    ASSERT_TRUE(faster.Persist(std::vector<Record>{{"meta", Word{"term 2"}}}).ok());
  };
  EXPECT_EQ(Journal(raced, "m/", &words::Decode, "meta").TakeOver().status().code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(Journal(*store, "m/", &words::Decode).Load()->at("meta"), Word{"term 2"});
}

TEST(RecordJournal, ARecordThatCannotBeReadIsNamed) {
  const auto store = MakeMemoryStore();
  ASSERT_TRUE(store->Commit(Transaction().Put("m/bad", "x")).ok());
  const auto records = Journal(*store, "m/", &words::Decode).Load();
  EXPECT_EQ(ReasonOf(records.status()), "RECORD_UNREADABLE");
  EXPECT_THAT(std::string(records.status().message()), ::testing::HasSubstr("m/bad"));
}

}  // namespace
}  // namespace lorry::kv
