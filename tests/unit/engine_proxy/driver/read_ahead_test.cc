#include "services/engine_proxy/driver/read_ahead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/testing/temp_dir.h"
#include "tests/unit/engine_proxy/driver/one_image_store.h"

namespace lorry::proxy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const VersionKey kKey{AdapterName("policy"), RunId(1), VersionNumber(2)};

class ReadAheadTest : public testing::Test {
 public:
  ReadAheadTest() {
    ahead_.OnFollow([this](const std::set<AdapterName>& adapters) {
      followed_.assign(adapters.begin(), adapters.end());
    });
  }
  // Reads the store's image ahead, of an adapter whose last one was as large.
  void ReadAll(const VersionKey& key = kKey) {
    ahead_.OnFetched(key.adapter, kBytes, "memory");
    Read(key);
  }
  // Begins to read it ahead, and waits until all of it is here.
  void Read(const VersionKey& key) {
    const Manifest manifest = *store_.ManifestNow();
    const uint64_t before = transport_.stats().bytes_received;
    ahead_.Begin({.key = key,
                  .bytes = manifest.image_bytes,
                  .source = {.address = manifest.addresses[0], .ticket = manifest.ticket}});
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (transport_.stats().bytes_received < before + manifest.image_bytes) {
      ASSERT_LT(std::chrono::steady_clock::now(), give_up);
      std::this_thread::yield();
    }
  }
  std::optional<ReadAhead::Draft> Take(const VersionKey& key = kKey) {
    return ahead_.Take(key, kBytes, store_.stored_.leaves);
  }
  std::unique_ptr<ImageShelf> Open(const std::string& host_cache = "") {
    return ImageShelf::Open(root_ / "shelf", JournalId("j1"), *ParseImageReaders("owner"),
                            host_cache)
        .value();
  }

  TempDir root_;
  OneImageStore store_{"read_ahead"};
  transfer::Transport& transport_ = *store_.transports_->transports()[0];
  const uint64_t kBytes = store_.stored_.bytes.size();
  std::unique_ptr<ImageShelf> shelf_ = Open();
  std::vector<AdapterName> followed_;
  ReadAhead ahead_{*shelf_, transport_};
};

TEST_F(ReadAheadTest, WhatCameAheadIsGivenToTheFetch) {
  ReadAll();
  const auto draft = Take();
  ASSERT_TRUE(draft.has_value());
  EXPECT_THAT(draft->proven.Missing({0, kBytes}), IsEmpty());
  EXPECT_TRUE(std::ranges::equal(draft->file->writable(), store_.stored_.bytes));
  EXPECT_FALSE(Take().has_value()) << "it is given once";
}

TEST_F(ReadAheadTest, BytesOfAnotherAttemptAreNotTaken) {
  std::vector<transfer::Checksum> others = store_.stored_.leaves;
  others[0].bytes[0] ^= 1;
  ReadAll();
  EXPECT_FALSE(ahead_.Take(kKey, kBytes, others).has_value());
}

TEST_F(ReadAheadTest, AFileThatWasCutIsNotTaken) {
  ReadAll();
  for (const auto& file : std::filesystem::directory_iterator(root_ / "shelf/pool")) {
    if (file.file_size() == kBytes) std::filesystem::resize_file(file.path(), 10);
  }
  EXPECT_FALSE(Take().has_value());
}

TEST_F(ReadAheadTest, AnotherLengthIsAnotherImage) {
  std::vector<transfer::Checksum> longer = store_.stored_.leaves;
  longer.emplace_back();
  ReadAll();
  EXPECT_FALSE(ahead_.Take(kKey, kBytes + transfer::kLeafBytes, longer).has_value());
}

TEST_F(ReadAheadTest, ANewerUploadOfTheAdapterTakesThePlaceOfTheOlder) {
  VersionKey next = kKey, other = kKey;
  next.number = VersionNumber(3);
  other.adapter = AdapterName("other");
  ReadAll();
  ReadAll(other);
  ReadAll(next);
  EXPECT_FALSE(Take().has_value());
  EXPECT_TRUE(Take(other).has_value());
  EXPECT_TRUE(Take(next).has_value());
}

TEST_F(ReadAheadTest, HasABoundedNumberOfImages) {
  const auto of = [](size_t i) {
    return VersionKey{AdapterName("a" + std::to_string(i)), RunId(1), VersionNumber(1)};
  };
  for (size_t i = 0; i <= ReadAhead::kReadingsMax; ++i) ReadAll(of(i));
  EXPECT_FALSE(Take(of(0)).has_value()) << "the oldest went";
  for (size_t i = 1; i <= ReadAhead::kReadingsMax; ++i) EXPECT_TRUE(Take(of(i)).has_value()) << i;
}

TEST_F(ReadAheadTest, ReadsNothingFarLargerThanTheAdaptersLastImageNorOfAnother) {
  const auto tell = [&](const char* adapter) {
    VersionKey key = kKey;
    key.adapter = AdapterName(adapter);
    const Manifest manifest = *store_.ManifestNow();
    ahead_.Begin({.key = key,
                  .bytes = manifest.image_bytes,
                  .source = {.address = manifest.addresses[0], .ticket = manifest.ticket}});
  };
  ahead_.OnFetched(AdapterName("small"), kBytes / 2 - 1, "memory");
  tell("small");
  tell("unknown");
  ReadAll();  // after those
  EXPECT_EQ(transport_.stats().bytes_received, kBytes);
}

// By a relay, for instance: the store tells few proxies of an upload, and the one that it tells may
// have had the last image from another.
TEST_F(ReadAheadTest, TheLastImageIsTheLastHoweverItCame) {
  const VersionKey small{AdapterName("small"), RunId(1), VersionNumber(2)};
  ahead_.OnFetched(small.adapter, kBytes / 2 - 1, "memory");
  ahead_.OnFetched(small.adapter, kBytes, "relay");
  Read(small);
  EXPECT_TRUE(Take(small).has_value());
}

TEST_F(ReadAheadTest, GivesUpWhatItHasWhereRoomIsNeeded) {
  ReadAll();
  EXPECT_FALSE(shelf_->AcquireSpare(transfer::kImageBytesMax).ok());
  EXPECT_TRUE(Take().has_value()) << "a guess takes no room from another";
  ReadAll();
  EXPECT_FALSE(shelf_->Acquire(transfer::kImageBytesMax).ok());
  EXPECT_FALSE(Take().has_value());
}

TEST_F(ReadAheadTest, FollowsWhatCameByItsTransportAndIsNotTheWholeHosts) {
  ahead_.OnFetched(AdapterName("a"), kBytes, "ucx-shm");
  EXPECT_THAT(followed_, IsEmpty());
  ahead_.OnFetched(AdapterName("a"), kBytes, "memory");
  ahead_.OnFetched(AdapterName("b"), kBytes, "memory");
  EXPECT_THAT(followed_, ElementsAre(AdapterName("a"), AdapterName("b")));

  shelf_ = nullptr;
  const auto shared = Open(root_ / "host");
  ReadAhead of_host{*shared, transport_};
  of_host.OnFollow([](const auto&) { FAIL() << "the host's cache fetches it once"; });
  of_host.OnFetched(AdapterName("a"), kBytes, "memory");
}

// Like gRPC's, its transfers hold whom they call back.
class KeepsCallbacks final : public transfer::Transport {
 public:
  std::string_view name() const override { return "memory"; }
  std::string_view scheme() const override { return "memory"; }
  std::shared_ptr<transfer::Transfer> Fetch(transfer::FetchRequest, transfer::OnRange on_range,
                                            transfer::OnDone on_done) override {
    auto reads = std::make_shared<Reads>(std::move(on_range), std::move(on_done));
    last_ = reads;
    return reads;
  }
  std::shared_ptr<transfer::Transfer> Push(transfer::PushRequest, transfer::OnRange,
                                           transfer::OnDone) override {
    return nullptr;
  }
  transfer::TransportStats stats() const override { return {}; }
  std::weak_ptr<transfer::Transfer> last_;

 private:
  struct Reads final : transfer::Transfer {
    Reads(transfer::OnRange range, transfer::OnDone done)
        : on_range(std::move(range)), on_done(std::move(done)) {}
    void Cancel() override { on_done({.status = absl::CancelledError()}); }
    const transfer::OnRange on_range;
    const transfer::OnDone on_done;
  };
};

TEST_F(ReadAheadTest, LetsGoOfWhomItReadFrom) {
  KeepsCallbacks transport;
  ReadAhead ahead{*shelf_, transport};
  ahead.OnFetched(kKey.adapter, kBytes, "memory");
  ahead.Begin({.key = kKey, .bytes = kBytes});
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (transport.last_.expired()) {
    ASSERT_LT(std::chrono::steady_clock::now(), give_up);
    std::this_thread::yield();
  }
  ahead.GiveUp();
  EXPECT_TRUE(transport.last_.expired());
}

TEST_F(ReadAheadTest, FollowsABoundedNumber) {
  for (size_t i = 0; i <= ReadAhead::kAdaptersMax; ++i)
    ahead_.OnFetched(AdapterName("a" + std::to_string(i)), kBytes, "memory");
  EXPECT_EQ(followed_.size(), ReadAhead::kAdaptersMax);
}

}  // namespace
}  // namespace lorry::proxy
