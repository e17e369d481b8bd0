// The store's calls, control and transfer, in any order: each input is a script (see README.md)
// against a store of its own.
//
// After each input an honest client is still served, every call ends once it is cancelled, no
// handler is stuck, and what the store held on the heap stayed within what its limits add up to.
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/rpc/channel.h"
#include "lib/rpc/status.h"
#include "lorry/transfer/v1/transfer.pb.h"
#include "services/adapter_store/catalog/catalog.h"
#include "tests/fuzz/heap_watch.h"
#include "tests/fuzz/rpc/rpc_script.h"
#include "tests/fuzz/store/store_world.h"

namespace lorry::store::fuzz {
namespace {

using lorry::fuzz::Command;
using lorry::fuzz::HeapWatch;
using lorry::fuzz::RawCall;
using lorry::fuzz::RpcScript;
namespace pb = transfer::v1;

constexpr char kPutMethod[] = "/lorry.transfer.v1.TransferService/Put";
// Eight sessions with a message of 1 MiB on either side of the socket and a request of 65,536
// ranges each, and what gRPC keeps.
constexpr int64_t kPeakBytesMax = 64 << 20;
constexpr int64_t kRetainedBytesMax = 8 << 20;
constexpr int kWarmUpInputs = 32;
constexpr int kRangesLog2Max = 16;
constexpr uint64_t kBigWidth = 180'000;  // 33 MiB, and so 33 leaves
// An honest client that is told to come back later does so, for this long.
constexpr std::chrono::seconds kHonestPatience{10};
constexpr std::chrono::milliseconds kPatience(lorry::fuzz::kPatienceMs);

// "12 4096" as numbers; 0 for what is missing.
std::array<uint64_t, 3> Numbers(std::string_view text) {
  std::array<uint64_t, 3> numbers{};
  for (uint64_t& number : numbers) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
    text.remove_prefix(static_cast<size_t>(read.ptr - text.data()));
  }
  return numbers;
}

class Fuzzer {
 public:
  Fuzzer() {
    HeapWatch::Install();
    HeapWatch::Ignore();
  }
  void Run(std::string_view input);

 private:
  void Do(const Command& command);
  void SendChunk(const Command& command);
  void AskForRanges(const Command& command);
  void Fail(uint8_t how);
  void CheckOthersAreServed();
  void CheckHeap();

  const TestAdapter image_ = MakeAdapter(1);
  const TestAdapter big_ = MakeAdapter(2, kBigWidth);
  const CheckOutcome big_checked_ = CheckImage(big_.bytes(), big_.config, 0).value();
  std::unique_ptr<StoreWorld> world_;
  std::unique_ptr<RpcScript> rpcs_;
  std::string honest_upload_;
  std::string honest_ticket_;
  std::string big_ticket_;
  int inputs_ = 0;
  std::optional<int64_t> retained_before_;
};

void Fuzzer::Run(std::string_view input) {
  world_ = std::make_unique<StoreWorld>();
  const auto channel = rpc::MakeChannel({.target = world_->address()});
  LORRY_CHECK(channel.ok());
  rpcs_ = std::make_unique<RpcScript>(
      *channel,
      std::vector<std::string>{"lorry.store.v1.StoreService", "lorry.transfer.v1.TransferService"});
  rpcs_->Set("header", absl::Base64Escape(image_.header()));
  rpcs_->Set("config", absl::CEscape(image_.config));
  rpcs_->Set("bytes", std::to_string(image_.image.size()));
  const auto honest = world_->Begin("honest-and-never-named-by-an-input", image_);
  LORRY_CHECK(honest.ok());
  honest_upload_ = honest->upload;
  honest_ticket_ = honest->ticket;
  HeapWatch::ResetPeak();
  for (const Command& command : lorry::fuzz::ReadScript(input)) Do(command);
  CheckOthersAreServed();
  rpcs_->End();
  rpcs_.reset();
  world_.reset();
  CheckHeap();
}

void Fuzzer::Do(const Command& command) {
  if (rpcs_->Do(command)) return;
  switch (command.op) {
    case 'D':
      return SendChunk(command);
    case 'G':
      return AskForRanges(command);
    case 'F':
      return Fail(command.arg);
    case 'S':
      return world_->Sweep(int64_t{1000} << (command.arg % 16));
    case 'U':
      return rpcs_->Set("found", world_->FindUpload(honest_upload_));
    case 'B': {
      const auto ticket = world_->Publish("big", big_, big_checked_);
      if (ticket.ok()) big_ticket_ = *ticket;
      return;
    }
  }
}

// "offset length": these bytes of the image, as far as it goes, with their checksum.
void Fuzzer::SendChunk(const Command& command) {
  auto [offset, length, unused] = Numbers(command.payload);
  if (offset >= image_.image.size()) return;
  length = std::min(length, image_.image.size() - offset);
  const auto bytes = image_.bytes().subspan(offset, length);
  pb::PutRequest request;
  pb::Chunk& chunk = *request.mutable_chunk();
  chunk.set_offset(offset);
  chunk.set_data(bytes.data(), bytes.size());
  const std::vector<transfer::Checksum> sums = transfer::PieceChecksums(offset, bytes);
  if (!sums.empty()) chunk.set_checksum(sums[0].bytes.data(), sums[0].bytes.size());
  rpcs_->SendOn(command.arg, request);
}

// "log2 offset length": the range of the great image so many times.
void Fuzzer::AskForRanges(const Command& command) {
  const auto [log2, offset, length] = Numbers(command.payload);
  pb::GetRequest request;
  request.set_ticket(big_ticket_);
  for (uint64_t i = 0; i < uint64_t{1} << std::min<uint64_t>(log2, kRangesLog2Max); ++i) {
    pb::ByteRange& range = *request.add_ranges();
    range.set_offset(offset);
    range.set_length(length > 0 ? length : big_.image.size());
  }
  rpcs_->SendOn(command.arg, request);
}

void Fuzzer::Fail(uint8_t how) {
  constexpr std::array kOps = {blob::BlobOp::kCreate, blob::BlobOp::kSeal,   blob::BlobOp::kSync,
                               blob::BlobOp::kOpen,   blob::BlobOp::kDelete, blob::BlobOp::kList};
  const absl::Status full = Error(absl::StatusCode::kResourceExhausted, "DISK_FULL", "no room");
  const bool slow = (how & 8) != 0;
  if (how % 8 >= kOps.size()) return world_->disk().Heal();
  world_->disk().Fail(kOps[how % 8], (how & 16) != 0 ? absl::OkStatus() : full, slow);
}

// Whoever has a ticket can use it, whatever strangers without one do at the same time.
void Fuzzer::CheckOthersAreServed() {
  const auto until = std::chrono::steady_clock::now() + kHonestPatience;
  pb::PutRequest open;
  open.mutable_open()->set_ticket(honest_ticket_);
  for (;;) {
    const auto call = RawCall::Start(rpcs_->stub(), kPutMethod);
    call->Send(open.SerializeAsString());
    const bool answered = call->WaitForMessage(kPatience).has_value();
    call->Cancel();
    LORRY_CHECK(call->WaitForEnd(kPatience));
    const std::string reason = ReasonOf(rpc::FromGrpc(call->status()));
    if (answered || reason != "TOO_MANY_SESSIONS") return;
    if (std::chrono::steady_clock::now() > until) {
      std::fprintf(stderr, "a client with a ticket was refused for %ld s: %s\n",
                   static_cast<long>(kHonestPatience.count()), reason.c_str());
      std::abort();
    }
    // tidy: allow sleep: it was told to come back later
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void Fuzzer::CheckHeap() {
  if (++inputs_ == kWarmUpInputs) retained_before_ = HeapWatch::live_bytes();
  const auto grown_bytes = [&] {
    return retained_before_ ? HeapWatch::live_bytes() - *retained_before_ : 0;
  };
  // gRPC closes connections, and frees what waits to be written to them, behind a server's end.
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (grown_bytes() > kRetainedBytesMax && std::chrono::steady_clock::now() < until) {
    // tidy: allow sleep: a bounded wait for gRPC's own threads
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const int64_t peak = HeapWatch::peak_bytes();
  const int64_t grown = grown_bytes();
  if (peak <= kPeakBytesMax && grown <= kRetainedBytesMax) return;
  std::fprintf(stderr, "the store held %ld bytes, and %ld more are left than after %d inputs\n",
               peak, grown, kWarmUpInputs);
  std::abort();
}

}  // namespace
}  // namespace lorry::store::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* fuzzer = new lorry::store::fuzz::Fuzzer;
  fuzzer->Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
