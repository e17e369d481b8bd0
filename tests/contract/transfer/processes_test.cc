// The peer is a process of its own that dies or stops in the middle.
#include <signal.h>

#include "lib/transfer/transport_set.h"
#include "tests/contract/transfer/child.h"
#include "tests/contract/transfer/kinds.h"

namespace lorry::transfer {
namespace {

using absl::StatusCode;

constexpr uint64_t kSize = 64 * kMiB;

class Processes : public TransportSuite {
 public:
  Child Serve(uint64_t seed = 1) {
    return Child(
        {LORRY_TRANSFER_PEER, "serve", GetParam(), std::to_string(kSize), std::to_string(seed)});
  }
  FetchRequest Fetch(const std::string& address, Bytes& into) {
    return {.address = address,
            .ticket = TicketFor(*keys_, Direction::kGet, "image", into.size()),
            .destination = into,
            .options = kSmall};
  }
  static constexpr TransferOptions kSmall{
      .range_bytes = kMiB, .in_flight = 2, .idle_deadline_ms = 10'000};
  const std::unique_ptr<TicketKeys> keys_ = TestKeys();
  const std::unique_ptr<Transport> transport_ = CreateTransport(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Every, Processes, testing::Values("grpc", "ucx-shm"),
                         [](const auto& info) { return TestName(info.param); });

TEST_P(Processes, AServerKilledDuringAFetchIsResumedElsewhere) {
  Child server = Serve();
  const std::string address = server.ReadLine();
  const Bytes image = MakeImage(kSize);
  Bytes into(kSize);
  const Outcome outcome = FetchAndWait(*transport_, Fetch(address, into),
                                       [&](const Range&, auto) { server.Signal(SIGKILL); });
  ASSERT_THAT(outcome, EndsWithCode(StatusCode::kUnavailable, ""));
  EXPECT_GT(outcome.bytes, 0u);
  EXPECT_LT(outcome.bytes, kSize);

  Child other = Serve();
  FetchRequest rest = Fetch(other.ReadLine(), into);
  rest.ranges = outcome.done.Missing({0, kSize});
  const Outcome resumed = FetchAndWait(*transport_, rest);
  ASSERT_THAT(resumed, EndsWell());
  EXPECT_EQ(outcome.bytes + resumed.bytes, kSize);
  EXPECT_TRUE(into == image);
}

TEST_P(Processes, ASetOfTransportsGoesOnAtTheNextAddress) {
  Child first = Serve(), second = Serve();
  Bytes into(kSize);
  const std::string ticket = Fetch("", into).ticket;
  const std::vector<Source> sources = {{first.ReadLine(), ticket}, {second.ReadLine(), ticket}};
  std::vector<std::unique_ptr<Transport>> transports;
  transports.push_back(CreateTransport(GetParam()));
  TransportSet set(std::move(transports));
  RangeSet seen;
  std::promise<Outcome> ended;
  const auto transfer = set.Fetch(
      sources, Fetch("", into),
      [&](const Range& range, auto) {
        EXPECT_FALSE(seen.Overlaps(range));
        EXPECT_TRUE(seen.Add(range).ok());
        first.Signal(SIGKILL);
      },
      [&](Outcome outcome) { ended.set_value(std::move(outcome)); });
  const Outcome outcome = ended.get_future().get();
  ASSERT_THAT(outcome, EndsWell());
  EXPECT_EQ(outcome.bytes, kSize);
  EXPECT_EQ(outcome.done.bytes(), kSize);
  EXPECT_TRUE(into == MakeImage(kSize));
}

TEST_P(Processes, AServerKilledDuringAPush) {
  Child server = Serve();
  const Bytes image = MakeImage(kSize);
  PushRequest push{.address = server.ReadLine(),
                   .ticket = TicketFor(*keys_, Direction::kPut, "image", kSize),
                   .source = image,
                   .options = kSmall};
  const Outcome outcome =
      PushAndWait(*transport_, push, [&](const Range&, auto) { server.Signal(SIGKILL); });
  EXPECT_THAT(outcome, EndsWithCode(StatusCode::kUnavailable, ""));
  EXPECT_LT(outcome.bytes, kSize);
}

TEST_P(Processes, AStoppedServerMeetsTheIdleDeadline) {
  Child server = Serve();
  Bytes into(kSize);
  FetchRequest fetch = Fetch(server.ReadLine(), into);
  fetch.options.idle_deadline_ms = 300;
  const Outcome outcome =
      FetchAndWait(*transport_, fetch, [&](const Range&, auto) { server.Signal(SIGSTOP); });
  ASSERT_THAT(outcome, EndsWithCode(StatusCode::kDeadlineExceeded, ""));
  // The memory is ours again: when the peer goes on, nothing of it changes.
  std::fill(into.begin(), into.end(), std::byte{0x11});
  server.Signal(SIGCONT);
  Bytes again(kSize);
  EXPECT_THAT(FetchAndWait(*transport_, Fetch(fetch.address, again)), EndsWell());
  EXPECT_TRUE(again == MakeImage(kSize));
  EXPECT_TRUE(
      std::all_of(into.begin(), into.end(), [](std::byte b) { return b == std::byte{0x11}; }));
}

TEST_P(Processes, AStoppedClientMeetsTheServersIdleDeadline) {
  TestHandler handler;
  handler.Serve("image", MakeImage(kSize));
  const auto server = StartServer(GetParam(), {.idle_deadline_ms = 3'000}, *keys_, handler);
  Child client(
      {LORRY_TRANSFER_PEER, "fetch", GetParam(), std::to_string(kSize), "1", server->address()});
  ASSERT_TRUE(Eventually([&] { return server->stats().bytes_sent > 0; }));
  client.Signal(SIGSTOP);
  EXPECT_TRUE(Eventually([&] { return server->stats().sessions_open == 0; }));
}

TEST_P(Processes, AKilledClientLeavesAnUploadThatAnotherFinishes) {
  TestHandler handler;
  std::atomic<uint64_t> received = 0;
  const auto target = handler.Expect("image", kSize, [&](const Range& range) {
    received += range.length;
    return absl::OkStatus();
  });
  const auto server = StartServer(GetParam(), {.idle_deadline_ms = 10'000}, *keys_, handler);
  Child client(
      {LORRY_TRANSFER_PEER, "push", GetParam(), std::to_string(kSize), "1", server->address()});
  ASSERT_TRUE(Eventually([&] { return received > 0; }));
  client.Kill();
  const Bytes image = MakeImage(kSize);
  PushRequest push{.address = server->address(),
                   .ticket = TicketFor(*keys_, Direction::kPut, "image", kSize),
                   .ranges = target->missing(),
                   .source = image,
                   .options = kSmall};
  EXPECT_THAT(PushAndWait(*transport_, push), EndsWell());
  EXPECT_TRUE(
      Eventually([&] { return target->missing().empty() && server->stats().sessions_open == 0; }));
  EXPECT_TRUE(handler.Received("image") == image);
}

}  // namespace
}  // namespace lorry::transfer
