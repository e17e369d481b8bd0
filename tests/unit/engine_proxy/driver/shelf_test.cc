// The shelf and the fetcher together: a stored image becomes a directory that an engine may read,
// or nothing at all.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <utility>

#include "lib/base/error.h"
#include "services/engine_proxy/driver/fetcher.h"
#include "tests/unit/engine_proxy/driver/one_image_store.h"

namespace lorry::proxy {
namespace {

namespace fs = std::filesystem;

class ShelfTest : public ::testing::Test, protected OneImageStore {
 protected:
  ShelfTest() : OneImageStore("shelf") {
    shelf_ = ImageShelf::Open(root_, JournalId("j1"), {}).value();
  }

  Fetch Wanting(const Digest& digest) {
    Fetch fetch{.op = 1,
                .name = EngineName("policy-v1-0123456789ab"),
                .digest = digest,
                .render = fleet::Render::kRsloraFolded};
    fetch.traits.modules = {"q_proj"};
    return fetch;
  }

  // Runs one fetch and returns the event that ended it.
  Event Run(const Fetch& fetch, ManifestSource source, Followers* followers = nullptr) {
    std::mutex mutex;
    std::condition_variable ended;
    std::optional<Event> end;
    Fetcher fetcher(
        *shelf_, *transports_, std::move(source), followers != nullptr ? *followers : nobody_,
        /*relay=*/nullptr, /*ahead=*/nullptr,
        [&](Event event) {
          const std::lock_guard lock(mutex);
          if (const auto* progress = std::get_if<FetchProgress>(&event)) {
            if (!progress->waits_for.empty()) waited_for_.push_back(progress->waits_for);
            return;
          }
          end = std::move(event);
          ended.notify_all();
        },
        [](const std::string&, double) {});
    fetcher.Start(fetch);
    std::unique_lock lock(mutex);
    EXPECT_TRUE(ended.wait_for(lock, std::chrono::seconds(30), [&] { return end.has_value(); }));
    return *end;
  }

  Followers nobody_{{}, JournalId("j1"), "", [] { return std::set<std::string>(); }};
  std::unique_ptr<ImageShelf> shelf_;
  std::vector<std::string> waited_for_;
};

// As systemd's RemoveIPC does to /dev/shm when its user has logged out.
TEST_F(ShelfTest, ADirectoryThatIsRemovedIsMadeAnew) {
  fs::remove_all(root_);
  const Event end = Run(Wanting(stored_.digest), [&](const VersionKey&) { return ManifestNow(); });
  ASSERT_TRUE(std::holds_alternative<FetchDone>(end));
  EXPECT_TRUE(shelf_->Has(Wanting(stored_.digest).name));
}

TEST_F(ShelfTest, WhatIsLeftOfADirectoryThatWasRemovedIsNotFetchedInto) {
  const Fetch fetch = Wanting(stored_.digest);
  const auto source = [&](const VersionKey&) { return ManifestNow(); };
  Run(fetch, source);
  ASSERT_TRUE(shelf_->Delete(fetch.name).ok());
  fs::remove_all(root_);
  EXPECT_TRUE(std::holds_alternative<FetchDone>(Run(fetch, source)));
}

TEST_F(ShelfTest, AHostsCacheThatIsRemovedIsMadeAnew) {
  shelf_ = ImageShelf::Open(root_ + "/a", JournalId("j1"), {}, root_ + "/host").value();
  fs::remove_all(root_ + "/host");
  const Event end = Run(Wanting(stored_.digest), [&](const VersionKey&) { return ManifestNow(); });
  ASSERT_TRUE(std::holds_alternative<FetchDone>(end));
  EXPECT_FALSE(fs::is_empty(root_ + "/host/images"));
  EXPECT_TRUE(fs::is_empty(root_ + "/host/claims"));
}

TEST_F(ShelfTest, AFetchedVersionIsADirectoryOfTwoFilesThatProvesItself) {
  const Event end = Run(Wanting(stored_.digest), [&](const VersionKey&) { return ManifestNow(); });
  ASSERT_TRUE(std::holds_alternative<FetchDone>(end));
  const std::string path = std::get<FetchDone>(end).path;
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(path)) files.push_back(entry.path().filename());
  EXPECT_THAT(files,
              ::testing::UnorderedElementsAre("adapter_config.json", "adapter_model.safetensors"));
  EXPECT_EQ(fs::file_size(path + "/adapter_model.safetensors"), stored_.bytes.size());
  const EngineName name = Wanting(stored_.digest).name;
  EXPECT_TRUE(shelf_->Proves(name, path, stored_.digest, fleet::Render::kRsloraFolded));
  EXPECT_FALSE(shelf_->Proves(name, path, stored_.digest, fleet::Render::kPlain))
      << "another config is another content";
  EXPECT_FALSE(shelf_->Proves(name, path, Digest{"sha256-xxh3:00"}, fleet::Render::kRsloraFolded));
}

TEST_F(ShelfTest, RsloraIsFoldedIntoAlphaInTheEnginesConfig) {
  const Event end = Run(Wanting(stored_.digest), [&](const VersionKey&) { return ManifestNow(); });
  std::ifstream file(std::get<FetchDone>(end).path + "/adapter_config.json");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, ::testing::HasSubstr("\"use_rslora\": false"));
  EXPECT_THAT(text, ::testing::HasSubstr("\"lora_alpha\": 16"));  // 8 * sqrt(4)
}

TEST_F(ShelfTest, ChangedBytesOnDiskProveNothing) {
  const Event end = Run(Wanting(stored_.digest), [&](const VersionKey&) { return ManifestNow(); });
  const std::string path = std::get<FetchDone>(end).path;
  {
    std::fstream file(path + "/adapter_model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }
  EXPECT_FALSE(shelf_->Proves(Wanting(stored_.digest).name, path, stored_.digest,
                              fleet::Render::kRsloraFolded));
}

TEST_F(ShelfTest, AManifestThatIsNotTheDigestsIsRefusedBeforeAByteIsAskedFor) {
  const Stored other(1);
  const Event end = Run(Wanting(other.digest), [&](const VersionKey&) { return ManifestNow(); });
  ASSERT_TRUE(std::holds_alternative<FetchFailed>(end));
  EXPECT_EQ(std::get<FetchFailed>(end).reason, "DIGEST_MISMATCH");
  EXPECT_TRUE(std::get<FetchFailed>(end).permanent);
  EXPECT_TRUE(fs::is_empty(root_ + "/versions/j1"));
}

TEST_F(ShelfTest, AStoreThatIsAwayIsTriedAgain) {
  const Event end = Run(Wanting(stored_.digest), [](const VersionKey&) -> absl::StatusOr<Manifest> {
    return Error(absl::StatusCode::kUnavailable, "", "connection refused");
  });
  ASSERT_TRUE(std::holds_alternative<FetchFailed>(end));
  EXPECT_TRUE(std::get<FetchFailed>(end).away);
  EXPECT_FALSE(std::get<FetchFailed>(end).permanent);
}

// It has nothing against this member: a fleet that is larger than the store takes at once waits for
// its turn.
TEST_F(ShelfTest, AFullStoreIsAskedAgain) {
  for (const char* reason : {"TOO_MANY_SESSIONS", "SERVER_BUSY"}) {
    const Event end = Run(Wanting(stored_.digest), [&](const VersionKey&) {
      return absl::StatusOr<Manifest>(Error(absl::StatusCode::kResourceExhausted, reason, "full"));
    });
    ASSERT_TRUE(std::holds_alternative<FetchFailed>(end));
    EXPECT_TRUE(std::get<FetchFailed>(end).away) << reason;
    EXPECT_EQ(std::get<FetchFailed>(end).reason, reason);
  }
}

// A transport of a test's own, which only fetches, and has ended when it returns.
class Fetching : public transfer::Transport {
 public:
  std::string_view name() const override { return "fetching"; }
  std::string_view scheme() const override { return "memory"; }
  std::shared_ptr<transfer::Transfer> Push(transfer::PushRequest, transfer::OnRange,
                                           transfer::OnDone) override {
    return nullptr;
  }
  transfer::TransportStats stats() const override { return {}; }

 protected:
  struct Ended final : transfer::Transfer {
    void Cancel() override {}
  };
};

// Ends each fetch at once, and remembers how long it might have taken.
class Hasty final : public Fetching {
 public:
  explicit Hasty(Tick& allowed_ms) : allowed_ms_(allowed_ms) {}
  std::shared_ptr<transfer::Transfer> Fetch(transfer::FetchRequest request, transfer::OnRange,
                                            transfer::OnDone on_done) override {
    allowed_ms_ = request.options.deadline_ms;
    on_done({.status = absl::NotFoundError("gone")});
    return std::make_shared<Ended>();
  }

 private:
  Tick& allowed_ms_;
};

TEST_F(ShelfTest, ALargeImageMayComeSlowlyAsLongAsItComes) {
  Tick allowed_ms = 0;
  std::vector<std::unique_ptr<transfer::Transport>> one;
  one.push_back(std::make_unique<Hasty>(allowed_ms));
  transports_ = std::make_unique<transfer::TransportSet>(std::move(one));
  Manifest large = ManifestNow().value();
  large.image_bytes = uint64_t{96} << 20;
  large.leaves.assign(large.image_bytes / transfer::kLeafBytes, {});
  large.addresses = {"memory://store"};
  const auto config = peft::CanonicalConfig(*peft::ParseConfig(kConfig));
  large.digest = *peft::DigestOf(large.image_bytes, large.leaves, *config);
  const Event end = Run(Wanting(large.digest), [&](const VersionKey&) { return large; });
  ASSERT_TRUE(std::holds_alternative<FetchFailed>(end));
  EXPECT_GT(allowed_ms, 96'000) << "a megabyte a second is enough: "
                                << std::get<FetchFailed>(end).detail;
}

// Gives the first half of what it is asked for the first time, ending so, and all of it afterwards.
class Halting final : public Fetching {
 public:
  Halting(const Stored& stored, std::vector<std::vector<transfer::Range>>& asked,
          const absl::Status& end)
      : stored_(stored), asked_(asked), end_(end) {}
  std::shared_ptr<transfer::Transfer> Fetch(transfer::FetchRequest request, transfer::OnRange,
                                            transfer::OnDone on_done) override {
    const bool halts = asked_.empty();
    asked_.push_back(request.ranges);
    transfer::Outcome outcome{.status = halts ? end_ : absl::OkStatus()};
    for (transfer::Range range : request.ranges) {
      if (halts) range.length /= 2;
      std::copy_n(stored_.bytes.begin() + static_cast<ptrdiff_t>(range.offset), range.length,
                  request.destination.begin() + static_cast<ptrdiff_t>(range.offset));
      EXPECT_TRUE(outcome.done.Add(range).ok());
    }
    on_done(std::move(outcome));
    return std::make_shared<Ended>();
  }

 private:
  const Stored& stored_;
  std::vector<std::vector<transfer::Range>>& asked_;
  const absl::Status& end_;
};

class CutShelfTest : public ShelfTest {
 protected:
  CutShelfTest() {
    std::vector<std::unique_ptr<transfer::Transport>> one;
    one.push_back(std::make_unique<Halting>(stored_, asked_, halt_));
    transports_ = std::make_unique<transfer::TransportSet>(std::move(one));
  }
  Event Run() {
    return ShelfTest::Run(Wanting(stored_.digest),
                          [&](const VersionKey&) { return ManifestNow(); });
  }
  bool Proves(const Event& end) {
    return shelf_->Proves(Wanting(stored_.digest).name, std::get<FetchDone>(end).path,
                          stored_.digest, fleet::Render::kRsloraFolded);
  }

  std::vector<std::vector<transfer::Range>> asked_;
  absl::Status halt_ = absl::NotFoundError("gone");
  const uint64_t bytes_ = stored_.bytes.size();
};

TEST_F(CutShelfTest, WhatCameBeforeAFetchFailedIsNotFetchedAgain) {
  ASSERT_TRUE(std::holds_alternative<FetchFailed>(Run()));
  const Event end = Run();
  ASSERT_TRUE(std::holds_alternative<FetchDone>(end));
  EXPECT_THAT(asked_[1], ::testing::ElementsAre(transfer::Range{bytes_ / 2, bytes_ - bytes_ / 2}));
  EXPECT_TRUE(Proves(end));
}

TEST_F(CutShelfTest, AFileThatWasCutMeanwhileIsNotWrittenTo) {
  ASSERT_TRUE(std::holds_alternative<FetchFailed>(Run()));
  for (const auto& file : fs::directory_iterator(root_ + "/pool")) {
    if (file.file_size() == bytes_) fs::resize_file(file.path(), 10);
  }
  const Event end = Run();
  ASSERT_TRUE(std::holds_alternative<FetchDone>(end));
  EXPECT_TRUE(Proves(end));
}

// A fetch that lasts longer than its ticket ends where it has to connect again.
TEST_F(CutShelfTest, AFetchThatOutlastsItsTicketGoesOnWithTheNext) {
  halt_ = Error(absl::StatusCode::kPermissionDenied, "TICKET_EXPIRED", "too old");
  const Event cut = Run();
  ASSERT_TRUE(std::holds_alternative<FetchFailed>(cut));
  EXPECT_TRUE(std::get<FetchFailed>(cut).away) << "however often, and at once";
  ASSERT_TRUE(std::holds_alternative<FetchDone>(Run()));
  EXPECT_THAT(asked_[1], ::testing::ElementsAre(transfer::Range{bytes_ / 2, bytes_ - bytes_ / 2}));
}

TEST_F(CutShelfTest, ItIsGivenBackWhereAnotherOfTheHostHasTheImage) {
  const std::string host = root_ + "/host";
  shelf_ = ImageShelf::Open(root_ + "/a", JournalId("j1"), {}, host).value();
  ASSERT_TRUE(std::holds_alternative<FetchFailed>(Run()));
  auto ours =
      std::exchange(shelf_, ImageShelf::Open(root_ + "/b", JournalId("j2"), {}, host).value());
  ASSERT_TRUE(std::holds_alternative<FetchDone>(Run()));
  shelf_ = std::move(ours);
  ASSERT_TRUE(std::holds_alternative<FetchDone>(Run()));
  EXPECT_EQ(asked_.size(), 2u) << "the third found it in the host's cache";
  const auto again = shelf_->AcquireSpare(bytes_);
  ASSERT_TRUE(again.ok());
  size_t images = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root_ + "/a"))
    images += entry.is_regular_file() && entry.file_size() >= bytes_ ? 1 : 0;
  EXPECT_LE(images, 2u) << "what was kept is what is taken now, beside the one that is placed";
}

TEST_F(CutShelfTest, ItIsGivenUpWhereRoomIsNeeded) {
  ASSERT_TRUE(std::holds_alternative<FetchFailed>(Run()));
  EXPECT_FALSE(shelf_->AcquireSpare(transfer::kImageBytesMax).ok()) << "no guess takes its room";
  EXPECT_FALSE(shelf_->Acquire(transfer::kImageBytesMax).ok());
  const Event end = Run();
  ASSERT_TRUE(std::holds_alternative<FetchDone>(end));
  EXPECT_THAT(asked_[1], ::testing::ElementsAre(transfer::Range{0, bytes_}));
  EXPECT_TRUE(Proves(end));
}

TEST_F(ShelfTest, ADeletedVersionsFileIsUsedForTheNext) {
  const Fetch fetch = Wanting(stored_.digest);
  Run(fetch, [&](const VersionKey&) { return ManifestNow(); });
  ASSERT_TRUE(shelf_->Delete(fetch.name).ok());
  EXPECT_TRUE(fs::is_empty(root_ + "/versions/j1"));
  const auto file = shelf_->Acquire(stored_.bytes.size());
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->size(), stored_.bytes.size());
}

TEST_F(ShelfTest, WhatTheJournalHasNoRecordOfGoesAtStart) {
  fs::create_directories(root_ + "/versions/j1/half-v1-000000000000");
  fs::create_directories(root_ + "/versions/j1/known-v1-000000000000");
  shelf_->RemoveUnrecorded({EngineName("known-v1-000000000000")});
  EXPECT_FALSE(fs::exists(root_ + "/versions/j1/half-v1-000000000000"));
  EXPECT_TRUE(fs::exists(root_ + "/versions/j1/known-v1-000000000000"));
}

TEST_F(ShelfTest, AnotherJournalsDirectoriesGoOnceTheEngineListsNoneOfThem) {
  fs::create_directories(root_ + "/versions/j0/listed-v1-000000000000");
  fs::create_directories(root_ + "/versions/j1/ours-v1-000000000000");
  shelf_->RemoveForeign({root_ + "/versions/j0/listed-v1-000000000000"});
  EXPECT_TRUE(fs::exists(root_ + "/versions/j0"));
  shelf_->RemoveForeign({"/elsewhere"});
  EXPECT_FALSE(fs::exists(root_ + "/versions/j0"));
  EXPECT_TRUE(fs::exists(root_ + "/versions/j1/ours-v1-000000000000"));
}

TEST_F(ShelfTest, AFailedPlaceGivesItsFileBack) {
  const Fetch fetch = Wanting(stored_.digest);
  // Where the manifest should go stands a directory that is not empty.
  fs::create_directories(root_ + "/manifests/j1/" + fetch.name.value + ".json/x");
  for (int i = 0; i < 3; ++i) {
    const Event end = Run(fetch, [&](const VersionKey&) { return ManifestNow(); });
    ASSERT_TRUE(std::holds_alternative<FetchFailed>(end));
    EXPECT_EQ(std::get<FetchFailed>(end).reason, "DISK_FAILED");
  }
  size_t images = 0;
  for (const auto& entry : fs::directory_iterator(root_ + "/pool"))
    images += entry.file_size() >= stored_.bytes.size() ? 1 : 0;
  EXPECT_EQ(images, 1u) << "the next fetch takes it again";
  EXPECT_TRUE(fs::is_empty(root_ + "/versions/j1"));
}

// One node that answers so, first when the fetch begins and then while it is waited for.
Followers OneNode(absl::StatusOr<bool> at_first, absl::StatusOr<bool> then,
                  std::vector<FollowerOrder>& asked) {
  const AskFollower ask = [=, &asked](const FollowerOrder& order, int64_t) {
    asked.push_back(order);
    return asked.size() == 1 ? at_first : then;
  };
  return Followers({{"node:1", ask}}, JournalId("j1"), "life",
                   [] { return std::set<std::string>(); });
}

TEST_F(ShelfTest, AVersionIsThereOnceItsFollowersHaveIt) {
  std::vector<FollowerOrder> asked;
  Followers followers = OneNode(false, true, asked);
  const Fetch fetch = Wanting(stored_.digest);
  const Event end = Run(
      fetch, [&](const VersionKey&) { return ManifestNow(); }, &followers);
  ASSERT_TRUE(std::holds_alternative<FetchDone>(end));
  ASSERT_GE(asked.size(), 2u) << "begun, and awaited";
  for (const FollowerOrder& order : asked) {
    EXPECT_EQ(order.place->path, std::get<FetchDone>(end).path);
    EXPECT_EQ(order.place->contents.digest, fetch.digest);
    EXPECT_EQ(order.place->contents.render, fetch.render);
    EXPECT_EQ(order.place->contents.traits, fetch.traits);
  }
}

TEST_F(ShelfTest, AFetchSaysWhichFollowerItWaitsFor) {
  int asked = 0;
  const AskFollower late = [&asked](const FollowerOrder&, int64_t) { return ++asked > 3; };
  Followers followers({{"node:1", late}}, JournalId("j1"), "life",
                      [] { return std::set<std::string>(); });
  Run(
      Wanting(stored_.digest), [&](const VersionKey&) { return ManifestNow(); }, &followers);
  EXPECT_THAT(waited_for_, ::testing::ElementsAre(::testing::HasSubstr("node:1")));
}

TEST_F(ShelfTest, AFollowerThatCannotHaveItFailsTheFetchAndLeavesNothing) {
  const absl::Status silent =
      Error(absl::StatusCode::kUnavailable, "FOLLOWER_UNANSWERED", "refused");
  for (const absl::StatusOr<bool>& at_first : {absl::StatusOr<bool>(silent), {false}}) {
    std::vector<FollowerOrder> asked;
    Followers followers = OneNode(at_first, silent, asked);
    const Event end = Run(
        Wanting(stored_.digest), [&](const VersionKey&) { return ManifestNow(); }, &followers);
    ASSERT_TRUE(std::holds_alternative<FetchFailed>(end));
    EXPECT_EQ(std::get<FetchFailed>(end).reason, "FOLLOWER_UNANSWERED");
    EXPECT_TRUE(std::get<FetchFailed>(end).away) << "it is nobody's fault here, and tried again";
    EXPECT_TRUE(fs::is_empty(root_ + "/versions/j1"));
  }
}

// Whatever it is that the follower lacks: the leader's bytes are as good when it comes back.
TEST_F(ShelfTest, AnImageThatWaitsForAFollowerIsReadFromTheStoreOnce) {
  std::vector<FollowerOrder> asked;
  Followers away =
      OneNode(false, Error(absl::StatusCode::kUnavailable, "FETCH_UNANSWERED", "no store"), asked);
  const auto source = [&](const VersionKey&) { return ManifestNow(); };
  const Event failed = Run(Wanting(stored_.digest), source, &away);
  ASSERT_TRUE(std::holds_alternative<FetchFailed>(failed));
  EXPECT_TRUE(std::get<FetchFailed>(failed).away);
  store_.serves = false;
  std::vector<FollowerOrder> asked_again;
  Followers back = OneNode(true, true, asked_again);
  EXPECT_TRUE(std::holds_alternative<FetchDone>(Run(Wanting(stored_.digest), source, &back)));
}

fs::perms ModeOf(const std::string& path) { return fs::status(path).permissions(); }

TEST_F(ShelfTest, ImagesAreThisUsersAlone) {
  const Event end = Run(Wanting(stored_.digest), [&](const VersionKey&) { return ManifestNow(); });
  const std::string path = std::get<FetchDone>(end).path;
  for (const std::string& folder : {root_, root_ + "/versions", root_ + "/versions/j1", path})
    EXPECT_EQ(ModeOf(folder), fs::perms(0700)) << folder;
  for (const char* file : {"/adapter_config.json", "/adapter_model.safetensors"})
    EXPECT_EQ(ModeOf(path + file), fs::perms(0600)) << file;
}

TEST_F(ShelfTest, AnEngineOfAnotherUserReadsWhatItIsLet) {
  shelf_.reset();
  shelf_ = ImageShelf::Open(root_, JournalId("j1"), ParseImageReaders("all").value()).value();
  const Event end = Run(Wanting(stored_.digest), [&](const VersionKey&) { return ManifestNow(); });
  const std::string path = std::get<FetchDone>(end).path;
  EXPECT_EQ(ModeOf(path), fs::perms(0755));
  EXPECT_EQ(ModeOf(path + "/adapter_model.safetensors"), fs::perms(0644));
  EXPECT_EQ(ModeOf(root_ + "/pool"), fs::perms(0700)) << "half-written images are nobody's";
  EXPECT_EQ(ModeOf(root_ + "/manifests/j1"), fs::perms(0700));
}

TEST_F(ShelfTest, AnImageThatAnotherProxyOfTheHostHasIsLinkedAndItsFileUsedAgain) {
  const auto open = [&](const std::string& member) {
    return ImageShelf::Open(root_ + member, JournalId("j1"), {}, root_ + "/host").value();
  };
  const auto source = [&](const VersionKey&) { return ManifestNow(); };
  const Fetch fetch = Wanting(stored_.digest);
  shelf_ = open("/a");
  const Event first = Run(fetch, source);
  std::unique_ptr<ImageShelf> other = std::exchange(shelf_, open("/b"));
  store_.serves = false;
  const Event second = Run(fetch, source);
  ASSERT_TRUE(std::holds_alternative<FetchDone>(first) &&
              std::holds_alternative<FetchDone>(second));
  const std::string image = "/adapter_model.safetensors";
  EXPECT_TRUE(fs::equivalent(std::get<FetchDone>(first).path + image,
                             std::get<FetchDone>(second).path + image));
  EXPECT_TRUE(fs::is_empty(root_ + "/host/claims"));
  const int fd = ::open((std::get<FetchDone>(second).path + image).c_str(), O_RDONLY);
  EXPECT_EQ(::fcntl(fd, F_SETLEASE, F_RDLCK), 0) << "nobody has it open to be written";
  ::close(fd);
  ASSERT_TRUE(other->Delete(fetch.name).ok());
  EXPECT_TRUE(shelf_->Proves(fetch.name, std::get<FetchDone>(second).path, stored_.digest,
                             fleet::Render::kRsloraFolded));
  ASSERT_TRUE(shelf_->Delete(fetch.name).ok());
  EXPECT_FALSE(fs::is_empty(root_ + "/host/images")) << "kept, as nobody needs the room";
  other->Close(/*engine_ended=*/true);
  EXPECT_TRUE(fs::is_empty(root_ + "/host/images"));
}

TEST_F(ShelfTest, AFetchThatFailsLetsTheNextProxyTry) {
  shelf_ = ImageShelf::Open(root_ + "/a", JournalId("j1"), {}, root_ + "/host").value();
  store_.serves = false;
  const Event end = Run(Wanting(stored_.digest), [&](const VersionKey&) { return ManifestNow(); });
  ASSERT_TRUE(std::holds_alternative<FetchFailed>(end));
  EXPECT_TRUE(fs::is_empty(root_ + "/host/claims"));
  EXPECT_TRUE(fs::is_empty(root_ + "/host/images"));
}

TEST_F(ShelfTest, ClosingRemovesWhatNoEngineCanRead) {
  Run(Wanting(stored_.digest), [&](const VersionKey&) { return ManifestNow(); });
  shelf_->Close(/*engine_ended=*/false);
  EXPECT_FALSE(fs::exists(root_ + "/pool"));
  EXPECT_TRUE(fs::exists(root_ + "/versions/j1/" + Wanting(stored_.digest).name.value))
      << "an engine that goes on may read it again";
  shelf_->Close(/*engine_ended=*/true);
  EXPECT_FALSE(fs::exists(root_));
}

}  // namespace
}  // namespace lorry::proxy
