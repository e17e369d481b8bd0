// The dialling side: one Attach stream and one endpoint for a transfer, ranges asked for or
// announced up to `in_flight` at a time. Internal to lib/transfer/ucx.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/runtime/loop.h"
#include "lib/transfer/session.h"
#include "lib/transfer/ucx/attach_call.h"
#include "lib/transfer/ucx/handshake.h"
#include "lib/transfer/ucx/loop.h"
#include "lib/transfer/ucx/ucx_transport.h"
#include "lib/transfer/ucx/wire.h"

namespace lorry::transfer::ucx {

class UcxClient;

// A Fetch or Push in one shape.
struct Job {
  Direction direction;
  std::string address;
  std::string ticket;
  std::vector<Range> ranges;
  std::span<std::byte> destination;
  std::span<const std::byte> source;
  std::vector<Checksum> leaves;
  TransferOptions options;
  OnRange on_range;
  OnDone on_done;
  uint64_t image_bytes() const {
    return direction == Direction::kGet ? destination.size() : source.size();
  }
};

// One transfer. Everything but Cancel runs on the loop's thread. Ends in three steps: a status is
// found (`End`); hashing is over and the endpoint closed, which is when UCX has let go of the
// memory, and OnDone is called; the stream is done, and the transfer is forgotten.
class UcxTransfer final : public Transfer, public std::enable_shared_from_this<UcxTransfer> {
 public:
  UcxTransfer(UcxClient& client, Job job) : client_(client), job_(std::move(job)) {}

  void Cancel() override;
  void Start();
  void HandleTick(Tick now);
  void End(absl::Status status);

 private:
  absl::Status Dial();
  void HandleResponse(const pb::AttachResponse& response);
  absl::Status HandleChallenge(const pb::AttachResponse::Challenge& challenge);
  absl::Status HandleAttached(const pb::AttachResponse::Attached& attached);
  void HandleStreamDone(absl::Status status);
  bool HandleMessage(const Incoming& incoming);
  void HandleLost(ucs_status_t status);
  void SendMessage(const Message& message, std::span<const std::byte> payload = {});
  void Pump();
  void Offer(uint32_t request, std::vector<Checksum> pieces);
  bool HandleData(const Incoming& incoming, const Message& message);
  void Verify(uint32_t request, const Range& range, std::vector<Checksum> pieces);
  void HandleRangeDone(uint32_t request, std::vector<Checksum> pieces);
  void Close();
  void HandleClosed();
  void ReportIfQuiet();
  void ForgetIfEnded();

  // A range that was asked for or offered.
  struct Pending {
    Range range;
    bool arriving = false;         // fetch: its bytes are being received or verified
    std::vector<Checksum> pieces;  // push: what was sent with it
  };

  UcxClient& client_;
  Job job_;
  std::unique_ptr<Plan> plan_;
  Handshake handshake_;
  std::shared_ptr<AttachCall> call_;  // until it is done
  Endpoint* endpoint_ = nullptr;
  std::unordered_map<uint32_t, Pending> pending_;
  uint32_t next_request_ = 1;
  int hashing_ = 0;
  enum class Phase { kDialling, kAttaching, kMoving, kEnding, kClosing, kClosed };
  Phase phase_ = Phase::kDialling;
  // When the endpoint broke or the transfer began to end; 0 before.
  Tick ending_since_ = 0;
  bool reported_ = false;
  absl::Status lost_, status_;
};

class UcxClient final : public Transport {
 public:
  UcxClient(UcxLane lane, std::shared_ptr<Channels> channels)
      : lane_(lane), channels_(std::move(channels)) {}
  absl::Status Init(const UcxDevices& devices);
  ~UcxClient() override;

  std::string_view name() const override { return NameOf(lane_); }
  std::string_view scheme() const override { return "grpc"; }
  std::shared_ptr<Transfer> Fetch(FetchRequest request, OnRange on_range, OnDone on_done) override {
    return Begin({.direction = Direction::kGet,
                  .address = std::move(request.address),
                  .ticket = std::move(request.ticket),
                  .ranges = std::move(request.ranges),
                  .destination = request.destination,
                  .leaves = std::move(request.leaves),
                  .options = request.options,
                  .on_range = std::move(on_range),
                  .on_done = std::move(on_done)});
  }
  std::shared_ptr<Transfer> Push(PushRequest request, OnRange on_range, OnDone on_done) override {
    return Begin({.direction = Direction::kPut,
                  .address = std::move(request.address),
                  .ticket = std::move(request.ticket),
                  .ranges = std::move(request.ranges),
                  .source = request.source,
                  .leaves = std::move(request.leaves),
                  .options = request.options,
                  .on_range = std::move(on_range),
                  .on_done = std::move(on_done)});
  }
  TransportStats stats() const override { return counters_.Snapshot(); }

  UcxLane lane() const { return lane_; }
  Channels& channels() { return *channels_; }
  Loop& loop() { return *loop_; }
  runtime::Loop& hasher() { return *hasher_; }
  Counters& counters() { return counters_; }
  void Forget(const std::shared_ptr<UcxTransfer>& transfer) LORRY_EXCLUDES(mutex_);

 private:
  std::shared_ptr<Transfer> Begin(Job job);
  void HandleTick(Tick now);

  const UcxLane lane_;
  const std::shared_ptr<Channels> channels_;
  Counters counters_;
  // The loop's thread.
  std::unordered_set<std::shared_ptr<UcxTransfer>> transfers_;
  bool stopping_ = false;

  Mutex mutex_;
  CondVar ended_;
  int live_ LORRY_GUARDED_BY(mutex_) = 0;  // transfers that were not forgotten
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<runtime::Loop> hasher_;
};

}  // namespace lorry::transfer::ucx
