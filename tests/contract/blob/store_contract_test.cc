// What every blob::Store does, whatever stands behind it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <thread>

#include "lib/base/error.h"
#include "lib/blob/failing_store.h"
#include "lib/blob/local_store.h"
#include "lib/blob/memory_store.h"
#include "tests/testing/temp_dir.h"

namespace lorry::blob {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Implementation {
  const char* name;
  std::function<std::unique_ptr<Store>(const TempDir&)> open;
};

// A decorator that lets everything through must not be noticed.
class NoFailures final : public FailurePlan {
  absl::Status Before(BlobOp, std::string_view) override { return absl::OkStatus(); }
};
std::unique_ptr<Store> OpenDecorated(const TempDir&) {
  static NoFailures plan;
  struct Owner final : public Store {
    std::unique_ptr<Store> inner = MakeMemoryStore(1 << 30);
    std::unique_ptr<Store> outer = MakeFailingStore(*inner, plan);
    absl::StatusOr<std::unique_ptr<Staging>> Create(std::string_view k, uint64_t n) override {
      return outer->Create(k, n);
    }
    absl::StatusOr<std::unique_ptr<Staging>> Resume(std::string_view k) override {
      return outer->Resume(k);
    }
    absl::StatusOr<std::shared_ptr<const Mapping>> Open(std::string_view k) override {
      return outer->Open(k);
    }
    absl::Status Delete(std::string_view k) override { return outer->Delete(k); }
    absl::StatusOr<std::vector<BlobInfo>> List() override { return outer->List(); }
  };
  return std::make_unique<Owner>();
}

class BlobContract : public testing::TestWithParam<Implementation> {
 protected:
  BlobContract() : store_(GetParam().open(dir_)) {}

  std::unique_ptr<Staging> Create(const std::string& key, const std::string& text) {
    auto staging = store_->Create(key, text.size());
    EXPECT_TRUE(staging.ok()) << staging.status();
    std::memcpy((*staging)->bytes().data(), text.data(), text.size());
    return *std::move(staging);
  }
  void Store_(const std::string& key, const std::string& text) {
    EXPECT_TRUE(Create(key, text)->Seal().ok());
  }
  std::string Read(const std::string& key) {
    const auto mapping = store_->Open(key);
    if (!mapping.ok()) return std::string(mapping.status().message());
    return Text(**mapping);
  }
  static std::string Text(const Mapping& mapping) {
    return {reinterpret_cast<const char*>(mapping.bytes().data()), mapping.bytes().size()};
  }

  TempDir dir_;
  std::unique_ptr<Store> store_;
};

TEST_P(BlobContract, WhatWasSealedCanBeRead) {
  Store_("a", "hello");
  EXPECT_EQ(Read("a"), "hello");
  EXPECT_THAT(*store_->List(), ElementsAre(BlobInfo{"a", 5, BlobState::kSealed}));
  EXPECT_EQ(*BytesUsed(*store_), 5u);
}

TEST_P(BlobContract, ANewBlobIsZeroes) {
  const auto staging = *store_->Create("a", 10'000);
  for (const std::byte byte : staging->bytes()) ASSERT_EQ(byte, std::byte{0});
}

TEST_P(BlobContract, NothingIsVisibleBeforeItIsSealed) {
  const auto staging = Create("a", "hello");
  EXPECT_TRUE(absl::IsNotFound(store_->Open("a").status()));
  EXPECT_THAT(*store_->List(), ElementsAre(BlobInfo{"a", 5, BlobState::kStaging}));
  EXPECT_TRUE(staging->Seal().ok());
  EXPECT_EQ(staging->bytes().size(), 5u) << "whoever still reads them may";
  EXPECT_FALSE(staging->Seal().ok()) << "once";
}

TEST_P(BlobContract, AKeyIsTakenOnce) {
  Store_("sealed", "x");
  const auto staging = Create("staging", "x");
  for (const char* key : {"sealed", "staging"}) {
    const auto again = store_->Create(key, 1);
    EXPECT_EQ(again.status().code(), absl::StatusCode::kAlreadyExists) << key;
    EXPECT_EQ(ReasonOf(again.status()), "BLOB_EXISTS");
  }
  EXPECT_EQ(Read("sealed"), "x");
}

TEST_P(BlobContract, AnAbandonedStagingGoesOnWhereItWas) {
  {
    const auto staging = Create("a", "hel__");
    EXPECT_TRUE(staging->Sync().ok());
  }
  EXPECT_THAT(*store_->List(), ElementsAre(BlobInfo{"a", 5, BlobState::kStaging}));
  const auto staging = *store_->Resume("a");
  std::memcpy(staging->bytes().data() + 3, "lo", 2);
  EXPECT_TRUE(staging->Seal().ok());
  EXPECT_EQ(Read("a"), "hello");
}

TEST_P(BlobContract, AStagingHasOneHolder) {
  const auto staging = Create("a", "x");
  EXPECT_EQ(ReasonOf(store_->Resume("a").status()), "BLOB_BUSY");
  EXPECT_EQ(ReasonOf(store_->Delete("a")), "BLOB_BUSY");
}

TEST_P(BlobContract, ResumeFindsStagingsOnly) {
  Store_("a", "x");
  EXPECT_TRUE(absl::IsNotFound(store_->Resume("a").status()));
  EXPECT_TRUE(absl::IsNotFound(store_->Resume("never").status()));
}

TEST_P(BlobContract, DeleteRemovesSealedAndAbandoned) {
  Store_("sealed", "x");
  Create("staging", "x").reset();
  EXPECT_TRUE(store_->Delete("sealed").ok());
  EXPECT_TRUE(store_->Delete("staging").ok());
  EXPECT_TRUE(absl::IsNotFound(store_->Delete("sealed")));
  EXPECT_THAT(*store_->List(), IsEmpty());
  EXPECT_EQ(*BytesUsed(*store_), 0u);
}

TEST_P(BlobContract, AMappingOutlivesItsBlob) {
  Store_("a", "hello");
  const auto mapping = *store_->Open("a");
  EXPECT_TRUE(store_->Delete("a").ok());
  EXPECT_TRUE(mapping->Load(0, 5).ok());
  EXPECT_EQ(Text(*mapping), "hello");
}

TEST_P(BlobContract, KeysAreNamesAndNeverPaths) {
  for (const char* key : {"", ".", "..", "../a", "a/b", ".hidden", "Upper", "a b", "-a"}) {
    EXPECT_EQ(store_->Create(key, 1).status().code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_EQ(store_->Open(key).status().code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_EQ(store_->Delete(key).code(), absl::StatusCode::kInvalidArgument) << key;
  }
  EXPECT_FALSE(store_->Create(std::string(129, 'a'), 1).ok());
  EXPECT_FALSE(store_->Create("a", 0).ok());
}

TEST_P(BlobContract, ListsInTheOrderOfKeys) {
  Store_("b", "22");
  Create("a", "1").reset();
  Store_("c", "333");
  EXPECT_THAT(*store_->List(), ElementsAre(BlobInfo{"a", 1, BlobState::kStaging},
                                           BlobInfo{"b", 2, BlobState::kSealed},
                                           BlobInfo{"c", 3, BlobState::kSealed}));
}

TEST_P(BlobContract, MoreThanThereIsLeavesNothingBehind) {
  const auto staging = store_->Create("huge", uint64_t{1} << 60);
  EXPECT_EQ(staging.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(staging.status()), "DISK_FULL");
  EXPECT_THAT(*store_->List(), IsEmpty());
  Store_("huge", "fits now");
}

TEST_P(BlobContract, ThreadsWriteDisjointRanges) {
  auto staging = *store_->Create("a", 4 << 20);
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back(
        [&, i] { std::memset(staging->bytes().data() + (i << 20), 'a' + i, 1 << 20); });
  }
  for (auto& writer : writers) writer.join();
  EXPECT_TRUE(staging->Seal().ok());
  const std::string text = Read("a");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(text[(i << 20) + 12'345], 'a' + i);
}

INSTANTIATE_TEST_SUITE_P(
    All, BlobContract,
    testing::Values(
        Implementation{"Memory", [](const TempDir&) { return MakeMemoryStore(1 << 30); }},
        Implementation{"Local",
                       [](const TempDir& dir) { return *OpenLocalStore({.root = dir / "blobs"}); }},
        Implementation{"Decorated", OpenDecorated}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lorry::blob
