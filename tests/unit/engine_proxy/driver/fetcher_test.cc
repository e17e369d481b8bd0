// What a fetcher is asked while all of its threads are busy.
#include "services/engine_proxy/driver/fetcher.h"

#include <gtest/gtest.h>

#include <latch>
#include <mutex>
#include <vector>

#include "tests/unit/engine_proxy/driver/one_image_store.h"

namespace lorry::proxy {
namespace {

constexpr OpId kMany = 300;  // more than other executors let wait
constexpr int kThreads = 4;  // the fetcher's

class FetcherTest : public ::testing::Test, protected OneImageStore {
 protected:
  FetcherTest() : OneImageStore("fetcher") {
    shelf_ = ImageShelf::Open(root_, JournalId("j1"), {}).value();
    path_ = shelf_
                ->Place(kName, Image(), kConfig, fleet::VersionTraits{.modules = {"q_proj"}},
                        fleet::Render::kRsloraFolded)
                .value();
  }

  std::unique_ptr<transfer::ImageFile> Image() {
    auto file = shelf_->Acquire(stored_.bytes.size()).value();
    std::ranges::copy(stored_.bytes, file->writable().begin());
    return file;
  }

  // What `ask`, called while as many fetches run as there are threads, is answered.
  template <typename Answer>
  std::vector<Answer> AnswersWhileBusy(const std::function<void(Fetcher&)>& ask) {
    std::mutex mutex;
    std::vector<Answer> answers;
    std::latch busy(kThreads), asked(1);
    {
      Fetcher fetcher(
          *shelf_, *transports_,
          [&](const VersionKey&) -> absl::StatusOr<Manifest> {
            busy.count_down();
            asked.wait();
            return absl::UnavailableError("the store is away");
          },
          nobody_, /*relay=*/nullptr, /*ahead=*/nullptr,
          [&](Event event) {
            const std::lock_guard lock(mutex);
            if (auto* answer = std::get_if<Answer>(&event)) answers.push_back(std::move(*answer));
          },
          [](const std::string&, double) {});
      for (OpId op = 1; op <= kThreads; ++op)
        fetcher.Start({.op = op, .name = EngineName("policy-v2-0123456789ab")});
      busy.wait();
      ask(fetcher);
      asked.count_down();
    }
    return answers;
  }

  static inline const EngineName kName{"policy-v1-0123456789ab"};
  Followers nobody_{{}, JournalId("j1"), "", [] { return std::set<std::string>(); }};
  std::unique_ptr<ImageShelf> shelf_;
  std::string path_;
};

// A proxy that starts again doubts all of its directories at once.
TEST_F(FetcherTest, GoodDirectoriesAreProvenHoweverManyWait) {
  const auto answers = AnswersWhileBusy<DirectoryHashed>([&](Fetcher& fetcher) {
    for (OpId op = 1; op <= kMany; ++op)
      fetcher.Hash({op, kName, stored_.digest, fleet::Render::kRsloraFolded, path_});
  });
  EXPECT_EQ(answers.size(), kMany);
  for (const DirectoryHashed& answer : answers) EXPECT_TRUE(answer.matches) << answer.op;
}

TEST_F(FetcherTest, GoodShapesAreReadHoweverManyWait) {
  const auto answers = AnswersWhileBusy<ShapesChecked>([&](Fetcher& fetcher) {
    for (OpId op = 1; op <= kMany; ++op)
      fetcher.Check({.op = op, .name = kName, .path = path_, .base = {}});
  });
  EXPECT_EQ(answers.size(), kMany);
  for (const ShapesChecked& answer : answers)
    EXPECT_EQ(answer.outcome, Outcome::kOk) << answer.op << " " << answer.detail;
}

}  // namespace
}  // namespace lorry::proxy
