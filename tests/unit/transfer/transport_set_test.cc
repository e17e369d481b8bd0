#include "lib/transfer/transport_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "lib/base/error.h"
#include "lib/transfer/session.h"
#include "tests/contract/transfer/world.h"

namespace lorry::transfer {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Ends each fetch at once as it was told, and remembers what it was asked for.
class Scripted final : public Transport {
 public:
  struct Asked {
    std::string address;
    std::vector<Range> ranges;
    bool operator==(const Asked &) const = default;
  };
  struct Ended final : Transfer {
    void Cancel() override {}
  };
  explicit Scripted(std::string name, std::string scheme = "grpc")
      : name_(std::move(name)), scheme_(std::move(scheme)) {}

  std::string_view name() const override { return name_; }
  std::string_view scheme() const override { return scheme_; }
  std::shared_ptr<Transfer> Fetch(FetchRequest request, OnRange, OnDone on_done) override {
    asked.push_back({request.address, request.ranges});
    EXPECT_EQ(request.ticket, "ticket of " + request.address);
    idle_ms = request.options.idle_deadline_ms;
    deadline_ms = request.options.deadline_ms;
    if (request.base) bases.push_back(request.address);
    Outcome outcome{.status = absl::UnavailableError("lost"), .transport = name_};
    if (!script.empty()) {
      outcome = script.front();
      script.pop_front();
    }
    on_done(outcome);
    return std::make_shared<Ended>();
  }
  std::shared_ptr<Transfer> Push(PushRequest, OnRange, OnDone) override { return nullptr; }
  TransportStats stats() const override { return {}; }

  std::deque<Outcome> script;
  std::vector<Asked> asked;
  std::vector<std::string> bases;     // addresses that were shown a base
  Tick idle_ms = 0, deadline_ms = 0;  // of the last one

 private:
  const std::string name_, scheme_;
};

Outcome Brought(absl::Status status, std::vector<Range> done) {
  Outcome outcome{.status = std::move(status), .done = RangeSet(done)};
  outcome.bytes = outcome.done.bytes();
  return outcome;
}

class TransportSetTest : public testing::Test {
 public:
  TransportSetTest() {
    auto ucx = std::make_unique<Scripted>("ucx-shm");
    auto grpc = std::make_unique<Scripted>("grpc");
    ucx_ = ucx.get();
    grpc_ = grpc.get();
    std::vector<std::unique_ptr<Transport>> transports;
    transports.push_back(std::move(ucx));
    transports.push_back(std::move(grpc));
    set_ = std::make_unique<TransportSet>(std::move(transports));
  }
  std::pair<Scripted *, Scripted *> SpeakToRelays() {
    auto relays = std::make_unique<Scripted>("relay", "relay");
    auto store = std::make_unique<Scripted>("grpc");
    const std::pair<Scripted *, Scripted *> made{relays.get(), store.get()};
    std::vector<std::unique_ptr<Transport>> transports;
    transports.push_back(std::move(relays));
    transports.push_back(std::move(store));
    set_ = std::make_unique<TransportSet>(std::move(transports));
    return made;
  }
  Outcome Fetch(const std::vector<std::string> &addresses) {
    std::vector<Source> sources;
    for (const std::string &address : addresses)
      sources.push_back({address, "ticket of " + address});
    std::optional<Outcome> ended;
    set_->Fetch(sources, {.destination = into_, .base = base_}, {},
                [&](Outcome outcome) { ended = std::move(outcome); });
    return ended.value();
  }

  Bytes into_ = Bytes(100);
  std::optional<Base> base_;
  Scripted *ucx_, *grpc_;
  std::unique_ptr<TransportSet> set_;
};

TEST_F(TransportSetTest, PrefersItsFirstTransportAtEveryAddress) {
  ucx_->script = {Brought(absl::UnavailableError("not here"), {}),
                  Brought(absl::OkStatus(), {{0, 100}})};
  EXPECT_TRUE(Fetch({"grpc://a", "grpc://b"}).status.ok());
  EXPECT_THAT(ucx_->asked, ElementsAre(Scripted::Asked{"grpc://a", {{0, 100}}},
                                       Scripted::Asked{"grpc://b", {{0, 100}}}));
  EXPECT_THAT(grpc_->asked, IsEmpty());
}

TEST_F(TransportSetTest, GoesOnWithWhatIsMissing) {
  ucx_->script = {Brought(absl::UnavailableError("lost"), {{0, 40}}),
                  Brought(absl::UnavailableError("lost"), {})};
  grpc_->script = {Brought(absl::OkStatus(), {{40, 60}})};
  const Outcome outcome = Fetch({"grpc://a"});
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.bytes, 100u);
  EXPECT_EQ(outcome.done.bytes(), 100u);
  EXPECT_THAT(ucx_->asked, ElementsAre(Scripted::Asked{"grpc://a", {{0, 100}}},
                                       Scripted::Asked{"grpc://a", {{40, 60}}}));
  EXPECT_THAT(grpc_->asked, ElementsAre(Scripted::Asked{"grpc://a", {{40, 60}}}));
}

// An end that is lost, or a peer that goes wrong once it has sent everything, takes nothing away.
TEST_F(TransportSetTest, WhatCameWholeIsThereHoweverItEnded) {
  for (const absl::Status &said :
       {absl::UnavailableError("lost"), absl::DeadlineExceededError("nothing moved")}) {
    SCOPED_TRACE(said.ToString());
    ucx_->asked.clear();
    ucx_->script = {Brought(said, {{0, 100}})};
    const Outcome outcome = Fetch({"grpc://a"});
    EXPECT_TRUE(outcome.status.ok());
    EXPECT_EQ(outcome.bytes, 100u);
    EXPECT_EQ(ucx_->asked.size(), 1u);
    EXPECT_THAT(grpc_->asked, IsEmpty());
  }
}

TEST_F(TransportSetTest, AnImageWithoutBytesStillHasToBeAnswered) {
  into_.clear();
  EXPECT_TRUE(absl::IsUnavailable(Fetch({"grpc://a"}).status));
}

// What is fetched is verified here, so that one place that has it wrong says nothing of the others.
TEST_F(TransportSetTest, FetchesElsewhereWhateverAPlaceSays) {
  for (const absl::Status &said :
       {absl::NotFoundError("gone"), absl::PermissionDeniedError("another key"),
        absl::DataLossError("other bytes")}) {
    SCOPED_TRACE(said.ToString());
    ucx_->asked.clear();
    ucx_->script = {Brought(said, {{0, 40}}), Brought(absl::OkStatus(), {{40, 60}})};
    EXPECT_TRUE(Fetch({"grpc://relay", "grpc://store"}).status.ok());
    EXPECT_THAT(ucx_->asked, ElementsAre(Scripted::Asked{"grpc://relay", {{0, 100}}},
                                         Scripted::Asked{"grpc://store", {{40, 60}}}));
  }
}

TEST_F(TransportSetTest, SaysWhatTheLastOneSaid) {
  ucx_->script = {Brought(absl::NotFoundError("gone"), {}),
                  Brought(absl::DataLossError("other bytes"), {})};
  grpc_->script = {Brought(absl::NotFoundError("gone"), {}),
                   Brought(absl::DataLossError("other bytes"), {})};
  EXPECT_TRUE(absl::IsDataLoss(Fetch({"grpc://relay", "grpc://store"}).status));
}

TEST_F(TransportSetTest, LeavesAPlaceWhereNothingMoves) {
  ucx_->script = {Brought(absl::DeadlineExceededError("nothing moved"), {{0, 40}})};
  grpc_->script = {Brought(absl::OkStatus(), {{40, 60}})};
  const Outcome outcome = Fetch({"grpc://a"});
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(ucx_->asked.size(), 1u);
  EXPECT_THAT(grpc_->asked, ElementsAre(Scripted::Asked{"grpc://a", {{40, 60}}}));
  EXPECT_EQ(ucx_->idle_ms, kTrialIdleMs);
  EXPECT_EQ(grpc_->idle_ms, TransferOptions{}.idle_deadline_ms);
}

TEST_F(TransportSetTest, LeavesAPlaceThatIsFull) {
  for (const absl::Status &full :
       {TooManySessions(1), Error(absl::StatusCode::kResourceExhausted, "SERVER_BUSY", "")}) {
    ucx_->script = {Brought(full, {})};
    grpc_->script = {Brought(absl::OkStatus(), {{0, 100}})};
    EXPECT_TRUE(Fetch({"grpc://a"}).status.ok()) << full;
  }
}

TEST_F(TransportSetTest, HasNowhereToGoFromTheLastPlace) {
  grpc_->script = {Brought(absl::DeadlineExceededError("nothing moved"), {})};
  EXPECT_TRUE(absl::IsDeadlineExceeded(Fetch({"grpc://a"}).status));
  EXPECT_EQ(grpc_->asked.size(), 1u);
}

TEST_F(TransportSetTest, DoesNotRetryWhatWillNotGetBetter) {
  ucx_->script = {Brought(Error(absl::StatusCode::kDataLoss, "RANGE_CORRUPT", ""), {{0, 40}})};
  EXPECT_EQ(ReasonOf(Fetch({"grpc://a"}).status), "RANGE_CORRUPT");
  EXPECT_THAT(grpc_->asked, IsEmpty());
}

// The older image may be the one that is wrong, and the store's as well as the one here.
TEST_F(TransportSetTest, AsksForTheBytesWhereWhatHasChangedDoesNotFit) {
  base_ = Base{.owner = nullptr, .bytes = into_, .ticket = "of the older one"};
  ucx_->script = {Brought(Error(absl::StatusCode::kDataLoss, "RANGE_CORRUPT", ""), {{0, 40}}),
                  Brought(absl::OkStatus(), {{40, 60}})};
  EXPECT_TRUE(Fetch({"grpc://a"}).status.ok());
  EXPECT_THAT(ucx_->asked, ElementsAre(Scripted::Asked{"grpc://a", {{0, 100}}},
                                       Scripted::Asked{"grpc://a", {{40, 60}}}));
  EXPECT_THAT(ucx_->bases, ElementsAre("grpc://a"));
  ucx_->script = {Brought(Error(absl::StatusCode::kDataLoss, "RANGE_CORRUPT", ""), {}),
                  Brought(Error(absl::StatusCode::kDataLoss, "RANGE_CORRUPT", ""), {})};
  EXPECT_EQ(ReasonOf(Fetch({"grpc://a"}).status), "RANGE_CORRUPT") << "once";
  EXPECT_TRUE(ucx_->script.empty());
}

// A ticket for the older image is of use at the store alone, and relays are other members' programs.
TEST_F(TransportSetTest, ShowsRelaysNoTicketOfTheStore) {
  const auto [at_relays, at_store] = SpeakToRelays();
  base_ = Base{.owner = nullptr, .bytes = into_, .ticket = "of the older one"};
  at_relays->script = {Brought(absl::DataLossError("other bytes"), {})};
  at_store->script = {Brought(absl::OkStatus(), {{0, 100}})};
  EXPECT_TRUE(Fetch({"relay://a", "grpc://store"}).status.ok());
  EXPECT_EQ(at_relays->asked.size(), 1u);
  EXPECT_THAT(at_relays->bases, IsEmpty());
  EXPECT_THAT(at_store->bases, ElementsAre("grpc://store"));
}

// The store is asked after it, and for no byte twice.
TEST_F(TransportSetTest, LeavesARelayWhateverItDoes) {
  for (const absl::Status &said :
       {absl::CancelledError("it was stopped"),
        absl::InvalidArgumentError("bytes nobody asked for"), absl::UnavailableError("lost"),
        absl::DeadlineExceededError("slow")}) {
    SCOPED_TRACE(said.ToString());
    const auto [at_relays, at_store] = SpeakToRelays();
    at_relays->script = {Brought(said, {{0, 40}})};
    at_store->script = {Brought(absl::OkStatus(), {{40, 60}})};
    EXPECT_TRUE(Fetch({"relay://a", "grpc://store"}).status.ok());
    EXPECT_EQ(at_relays->asked.size(), 1u);
    EXPECT_THAT(at_store->asked, ElementsAre(Scripted::Asked{"grpc://store", {{40, 60}}}));
    EXPECT_LE(at_relays->deadline_ms, TransferOptions{}.deadline_ms / 2) << "time is left";
    EXPECT_GT(at_store->deadline_ms, TransferOptions{}.deadline_ms / 2);
  }
}

TEST_F(TransportSetTest, GivesUpWhenNobodyHelps) {
  EXPECT_TRUE(absl::IsUnavailable(Fetch({"grpc://a", "grpc://b"}).status));
  EXPECT_EQ(ucx_->asked.size(), 2u);
  EXPECT_EQ(grpc_->asked.size(), 2u);
}

TEST_F(TransportSetTest, TriesABoundedNumberOfTimes) {
  for (uint64_t i = 0; i < 50; ++i)
    ucx_->script.push_back(Brought(absl::UnavailableError("lost"), {{i, 1}}));
  const Outcome outcome = Fetch({"grpc://a"});
  EXPECT_TRUE(absl::IsUnavailable(outcome.status));
  EXPECT_EQ(ucx_->asked.size(), static_cast<size_t>(kAttemptsMax));
  EXPECT_EQ(outcome.done.bytes(), static_cast<uint64_t>(kAttemptsMax));
}

TEST_F(TransportSetTest, LetsGoOfWhomItCalledBackThoughTheyHoldIt) {
  struct Holder {
    std::shared_ptr<Transfer> transfer;
  };
  auto holder = std::make_shared<Holder>();
  const std::weak_ptr<Holder> seen = holder;
  ucx_->script = {Brought(absl::OkStatus(), {{0, 100}})};
  holder->transfer = set_->Fetch(
      {{"grpc://a", "ticket of grpc://a"}}, {.destination = into_},
      [holder](const Range &, std::span<const Checksum>) {}, [holder](const Outcome &) {});
  holder.reset();
  EXPECT_TRUE(seen.expired()) << "each keeps the other for ever";
}

TEST_F(TransportSetTest, SaysWhenItSpeaksNoneOfTheSchemes) {
  EXPECT_EQ(ReasonOf(Fetch({"smoke://hill"}).status), "NO_TRANSPORT");
  EXPECT_EQ(set_->Find("ucx-net"), nullptr);
  EXPECT_EQ(set_->Find("grpc"), grpc_);
}

}  // namespace
}  // namespace lorry::transfer
