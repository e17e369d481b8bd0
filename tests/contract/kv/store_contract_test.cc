// What every kv::Store does, whatever stands behind it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "lib/base/error.h"
#include "lib/kv/memory_store.h"
#include "lib/kv/sqlite/sqlite_store.h"
#include "lib/kv/store.h"
#include "tests/testing/temp_dir.h"

namespace lorry::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Implementation {
  const char* name;
  std::function<std::unique_ptr<Store>(const TempDir&)> open;
  bool durable;
};

std::unique_ptr<Store> OpenSqlite(const TempDir& dir) {
  auto store = OpenSqliteStore({.path = dir / "kv.db"});
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

class KvContract : public testing::TestWithParam<Implementation> {
 protected:
  KvContract() : store_(GetParam().open(dir_)) {}

  uint64_t Commit(const Transaction& transaction) {
    const auto revision = store_->Commit(transaction);
    EXPECT_TRUE(revision.ok()) << revision.status();
    return revision.value_or(0);
  }
  std::string ValueOf(const std::string& key) {
    const auto entry = *store_->Get(key);
    return entry.has_value() ? entry->value : "(absent)";
  }
  std::vector<std::string> Keys(const Range& range) { return KeysOf(*store_->List(range)); }
  static std::vector<std::string> KeysOf(const std::vector<Entry>& entries) {
    std::vector<std::string> keys;
    for (const Entry& entry : entries) keys.push_back(entry.key);
    return keys;
  }
  void Reopen() {
    store_.reset();
    store_ = GetParam().open(dir_);
  }

  TempDir dir_;
  std::unique_ptr<Store> store_;
};

TEST_P(KvContract, BeginsEmptyAtRevisionZero) {
  EXPECT_EQ(ValueOf("a"), "(absent)");
  EXPECT_THAT(Keys({}), IsEmpty());
  EXPECT_EQ((*store_->TakeSnapshot())->revision(), 0u);
}

TEST_P(KvContract, EachCommitHasTheNextRevision) {
  EXPECT_EQ(Commit(Transaction().Put("a", "1")), 1u);
  EXPECT_EQ(Commit(Transaction().Put("b", "2")), 2u);
  EXPECT_EQ(Commit(Transaction()), 3u) << "also one that changes nothing";
  EXPECT_EQ(**store_->Get("a"), (Entry{.key = "a", .value = "1", .revision = 1}));
  EXPECT_EQ((*store_->TakeSnapshot())->revision(), 3u);
}

TEST_P(KvContract, PutsReplaceAndDeletesRemove) {
  Commit(Transaction().Put("a", "1").Put("b", "1"));
  Commit(Transaction().Put("a", "2").Delete("b").Delete("never there"));
  EXPECT_EQ(**store_->Get("a"), (Entry{.key = "a", .value = "2", .revision = 2}));
  EXPECT_EQ(ValueOf("b"), "(absent)");
}

TEST_P(KvContract, ValuesAndKeysAreBytes) {
  const std::string odd("\0\xff\n'\"", 5);
  Commit(Transaction().Put(odd, odd).Put("empty", ""));
  EXPECT_EQ(ValueOf(odd), odd);
  EXPECT_EQ(ValueOf("empty"), "");
}

TEST_P(KvContract, ConditionsCompareRevisions) {
  const uint64_t first = Commit(Transaction().IfRevision("term", 0).Put("term", "1"));
  EXPECT_TRUE(store_->Commit(Transaction().IfRevision("term", first).Put("term", "2")).ok());
  const auto lost =
      store_->Commit(Transaction().IfRevision("term", first).Put("term", "3").Put("x", "3"));
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(lost.status()), "CONDITION_FAILED");
  EXPECT_EQ(ReasonOf(store_->Commit(Transaction().IfRevision("term", 0)).status()),
            "CONDITION_FAILED");
  EXPECT_EQ(ReasonOf(store_->Commit(Transaction().IfRevision("x", 1)).status()),
            "CONDITION_FAILED");
  EXPECT_EQ(ValueOf("term"), "2");
  EXPECT_EQ(ValueOf("x"), "(absent)") << "a failed commit changes nothing";
  EXPECT_EQ((*store_->TakeSnapshot())->revision(), 2u);
}

TEST_P(KvContract, ADeletedKeyIsAbsentAgain) {
  Commit(Transaction().Put("a", "1"));
  Commit(Transaction().Delete("a"));
  EXPECT_EQ(Commit(Transaction().IfRevision("a", 0).Put("a", "2")), 3u);
}

TEST_P(KvContract, AConditionMayNameAKeyThatIsNotWritten) {
  const uint64_t term = Commit(Transaction().Put("term", "1"));
  EXPECT_EQ(Commit(Transaction().IfRevision("term", term).Put("a", "1")), 2u);
  EXPECT_EQ((*store_->Get("term"))->revision, term);
}

TEST_P(KvContract, ListsByPrefixInByteOrder) {
  Commit(Transaction()
             .Put("a/2", "")
             .Put("a/1", "")
             .Put("a", "")
             .Put("b", "")
             .Put("a/\xff", "")
             .Put("a0", ""));
  EXPECT_THAT(Keys({.prefix = "a/"}), ElementsAre("a/1", "a/2", "a/\xff"));
  EXPECT_THAT(Keys({}), ElementsAre("a", "a/1", "a/2", "a/\xff", "a0", "b"));
  EXPECT_THAT(Keys({.prefix = "c"}), IsEmpty());
}

TEST_P(KvContract, ListsPageByPage) {
  Commit(Transaction().Put("a/1", "").Put("a/2", "").Put("a/3", "").Put("b", ""));
  EXPECT_THAT(Keys({.prefix = "a/", .limit = 2}), ElementsAre("a/1", "a/2"));
  EXPECT_THAT(Keys({.prefix = "a/", .start = std::string("a/2") + '\0', .limit = 2}),
              ElementsAre("a/3"));
  EXPECT_THAT(Keys({.prefix = "a/", .limit = 0}), IsEmpty());
  EXPECT_THAT(Keys({.prefix = "b", .start = "a/2"}), ElementsAre("b"));
}

TEST_P(KvContract, ListAllCrossesPages) {
  for (int block = 0; block < 3; ++block) {
    Transaction transaction;
    for (int i = 0; i < 900; ++i) transaction.Put("k/" + std::to_string(block * 900 + i), "v");
    Commit(transaction);
  }
  EXPECT_EQ(ListAll(*store_, "k/")->size(), 2'700u);
}

TEST_P(KvContract, SnapshotsAreUnmovedByLaterCommits) {
  Commit(Transaction().Put("a", "1").Put("b", "1"));
  const auto snapshot = *store_->TakeSnapshot();
  Commit(Transaction().Put("a", "2").Delete("b").Put("c", "2"));
  EXPECT_EQ(snapshot->revision(), 1u);
  EXPECT_EQ((*snapshot->Get("a"))->value, "1");
  EXPECT_THAT(KeysOf(*snapshot->List({})), ElementsAre("a", "b"));
  EXPECT_THAT(Keys({}), ElementsAre("a", "c"));
  const auto later = *store_->TakeSnapshot();
  EXPECT_EQ(later->revision(), 2u);
  EXPECT_EQ(*later->Get("b"), std::nullopt);
}

TEST_P(KvContract, ManySnapshotsLiveAtOnce) {
  std::vector<std::unique_ptr<Snapshot>> snapshots;
  for (int i = 0; i < 10; ++i) {
    Commit(Transaction().Put("a", std::to_string(i)));
    snapshots.push_back(*store_->TakeSnapshot());
  }
  for (int i = 0; i < 10; ++i) EXPECT_EQ((*snapshots[i]->Get("a"))->value, std::to_string(i));
}

TEST_P(KvContract, RefusesTransactionsThatNoStoreCouldTake) {
  EXPECT_EQ(
      ReasonOf(
          store_->Commit(Transaction().Put("a", std::string(kTransactionBytesMax, 'x'))).status()),
      "TRANSACTION_TOO_LARGE");
  for (const Transaction& bad :
       {Transaction().Put("", "x"), Transaction().Put("a", "1").Put("a", "2"),
        Transaction().Put("a", "1").Delete("a"),
        Transaction().Delete(std::string(kKeyBytesMax + 1, 'k')),
        Transaction().IfRevision("", 0)}) {
    EXPECT_EQ(store_->Commit(bad).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(Keys({}), IsEmpty());
}

TEST_P(KvContract, OneOfManyWritersWinsACondition) {
  std::vector<std::thread> writers;
  std::atomic<int> won = 0;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&] {
      for (int round = 0; round < 25; ++round) {
        const auto entry = *store_->Get("counter");
        const int value = entry.has_value() ? std::stoi(entry->value) : 0;
        const auto revision =
            store_->Commit(Transaction()
                               .IfRevision("counter", entry.has_value() ? entry->revision : 0)
                               .Put("counter", std::to_string(value + 1)));
        if (revision.ok()) ++won;
      }
    });
  }
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(ValueOf("counter"), std::to_string(won));
}

TEST_P(KvContract, WhatWasCommittedIsThereAfterReopening) {
  if (!GetParam().durable) GTEST_SKIP() << "memory forgets";
  Commit(Transaction().Put("a", "1"));
  Commit(Transaction().Put("b", "2").Delete("a"));
  Reopen();
  EXPECT_EQ(ValueOf("a"), "(absent)");
  EXPECT_EQ(**store_->Get("b"), (Entry{.key = "b", .value = "2", .revision = 2}));
  EXPECT_EQ(Commit(Transaction().Put("c", "3")), 3u) << "revisions go on";
}

INSTANTIATE_TEST_SUITE_P(
    All, KvContract,
    testing::Values(Implementation{"Memory", [](const TempDir&) { return MakeMemoryStore(); },
                                   false},
                    Implementation{"Sqlite", OpenSqlite, true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lorry::kv
