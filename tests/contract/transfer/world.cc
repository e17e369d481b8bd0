#include "tests/contract/transfer/world.h"

#include <chrono>
#include <cstdio>
#include <cstring>

#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/base/prng.h"
#include "lib/rpc/access.h"
#include "lib/rpc/gate.h"
#include "lib/transfer/grpc/grpc_transport.h"
#include "lib/transfer/memory/memory_transport.h"
#include "lib/transfer/ucx/ucx_transport.h"
#include "tests/contract/transfer/grpc_listener.h"
#include "tests/testing/eventually.h"

namespace lorry::transfer {
namespace {

absl::Status Unknown() {
  return Error(absl::StatusCode::kNotFound, "UNKNOWN_VERSION", "no such object");
}

template <typename T>
T Started(absl::StatusOr<T> started) {
  if (!started.ok()) std::fprintf(stderr, "%s\n", started.status().ToString().c_str());
  LORRY_CHECK(started.ok());
  return *std::move(started);
}

// "ucx-net" declares TCP on the loopback device: for processes in a network of their own.
UcxDevices DevicesOf(std::string_view kind) {
  return {.tcp = kind == "ucx-net" ? "lo" : "", .rdma = ""};
}

// Lets everybody in, for as long as the process lives.
rpc::Gate& OpenGate() {
  static const std::unique_ptr<rpc::Access> access = *rpc::Access::Open("", false);
  static auto* gate = new rpc::Gate(*access);
  return *gate;
}

}  // namespace

Bytes MakeImage(uint64_t bytes, uint64_t seed) {
  Bytes image(bytes);
  Prng prng(seed);
  for (uint64_t at = 0; at < bytes; at += 8) {
    const uint64_t value = prng.Next();
    std::memcpy(image.data() + at, &value, std::min<uint64_t>(8, bytes - at));
  }
  return image;
}

std::unique_ptr<TicketKeys> TestKeys() {
  auto keys = std::make_unique<TicketKeys>();
  TicketKeys::Secret secret;
  secret.fill(0x5a);
  keys->Add(7, secret);
  return keys;
}

TicketClaims ClaimsFor(Direction direction, const std::string& object, uint64_t image_bytes) {
  return {.ticket_id = "test",
          .direction = direction,
          .object = object,
          .image_bytes = image_bytes,
          .peer = "tester",
          .expires_unix_ms = NowUnixMs() + 600'000};
}

std::string TicketFor(const TicketKeys& keys, Direction direction, const std::string& object,
                      uint64_t image_bytes) {
  return *keys.Mint(ClaimsFor(direction, object, image_bytes));
}

void TestHandler::Serve(const std::string& object, Bytes image, bool with_leaves) {
  auto leaves = with_leaves ? LeavesOf(image) : std::vector<Checksum>();
  ServeWithLeaves(object, std::move(image), std::move(leaves));
}

void TestHandler::ServeWithLeaves(const std::string& object, Bytes image,
                                  std::vector<Checksum> leaves) {
  const auto owned = std::make_shared<const Bytes>(std::move(image));
  MutexLock lock(mutex_);
  images_[object] = {.owner = owned, .bytes = *owned, .leaves = std::move(leaves)};
}

void TestHandler::ServePartly(const std::string& object, Bytes image,
                              std::shared_ptr<const ComingBytes> arrivals) {
  Serve(object, std::move(image));
  MutexLock lock(mutex_);
  images_[object].arrivals = std::move(arrivals);
}

std::shared_ptr<PutTarget> TestHandler::Expect(const std::string& object, uint64_t bytes,
                                               std::function<absl::Status(const Range&)> on_range) {
  Upload upload{.bytes = std::make_shared<Bytes>(bytes, std::byte{0xee})};
  upload.target = PutTarget::Create(
      {.owner = upload.bytes,
       .bytes = *upload.bytes,
       .on_range = [on_range = std::move(on_range)](const Range& range, std::span<const Checksum>) {
         return on_range ? on_range(range) : absl::OkStatus();
       }});
  MutexLock lock(mutex_);
  uploads_[object] = upload;
  return upload.target;
}

const Bytes& TestHandler::Received(const std::string& object) {
  MutexLock lock(mutex_);
  return *uploads_.at(object).bytes;
}

void TestHandler::OpenGet(const TicketClaims& claims, GetOpened done) {
  absl::StatusOr<GetSource> opened = Unknown();
  {
    MutexLock lock(mutex_);
    if (silent_) return unanswered_gets_.push_back(std::move(done));
    if (const auto found = images_.find(claims.object); found != images_.end())
      opened = found->second;
  }
  done(std::move(opened));
}

void TestHandler::OnFailed(const FailedSession& failed) {
  const std::string reason = ReasonOf(failed.why);
  MutexLock lock(mutex_);
  failed_.push_back(reason.empty() ? absl::StatusCodeToString(failed.why.code()) : reason);
}

std::vector<std::string> TestHandler::failed() {
  MutexLock lock(mutex_);
  return failed_;
}

void TestHandler::OpenPut(const TicketClaims& claims, PutOpened done) {
  absl::StatusOr<std::shared_ptr<PutTarget>> opened = Unknown();
  {
    MutexLock lock(mutex_);
    if (silent_) return unanswered_puts_.push_back(std::move(done));
    if (const auto found = uploads_.find(claims.object); found != uploads_.end())
      opened = found->second.target;
  }
  done(std::move(opened));
}

void TestHandler::AnswerLate(const absl::Status& status) {
  std::vector<GetOpened> gets;
  std::vector<PutOpened> puts;
  {
    MutexLock lock(mutex_);
    gets.swap(unanswered_gets_);
    puts.swap(unanswered_puts_);
  }
  for (const auto& done : gets) done(status);
  for (const auto& done : puts) done(status);
}

std::unique_ptr<TransferServer> StartServer(std::string_view kind, ServerLimits limits,
                                            const TicketKeys& keys, TransferHandler& handler,
                                            rpc::Gate* gate) {
  if (kind == "memory") return StartMemoryServer(limits, keys, handler);
  if (gate == nullptr) gate = &OpenGate();
  std::vector<std::unique_ptr<GrpcTransferService>> services;
  const UcxServiceOptions ucx{
      .shared_memory = kind == "ucx-shm", .devices = DevicesOf(kind), .limits = limits};
  services.push_back(kind == "grpc" ? CreateGrpcTransferService(limits, *gate, keys, handler)
                                    : Started(CreateUcxService(ucx, *gate, keys, handler)));
  return Started(Listen(std::move(services), std::string(kind)));
}

std::unique_ptr<Transport> CreateTransport(std::string_view kind) {
  if (kind == "memory") return CreateMemoryTransport();
  if (kind == "grpc") return CreateGrpcTransport();
  const UcxDevices devices = DevicesOf(kind);
  const UcxLane lane = devices.empty() ? UcxLane::kSharedMemory : UcxLane::kNetwork;
  return Started(CreateUcxTransport(lane, std::make_shared<Channels>(), devices));
}

std::unique_ptr<TransferServer> StartBoth(const TicketKeys& keys, TransferHandler& by_ucx,
                                          TransferHandler& by_grpc) {
  std::vector<std::unique_ptr<GrpcTransferService>> services;
  services.push_back(Started(CreateUcxService({}, OpenGate(), keys, by_ucx)));
  services.push_back(CreateGrpcTransferService({}, OpenGate(), keys, by_grpc));
  return Started(Listen(std::move(services), "grpc"));
}

bool Eventually(const std::function<bool()>& condition) {
  return lorry::Eventually(condition, std::chrono::seconds(60));
}

OnDone Running::Promise() {
  return [promise = promise_](Outcome outcome) { promise->set_value(std::move(outcome)); };
}

Running::Running(Transport& transport, FetchRequest request, OnRange on_range)
    : transfer_(transport.Fetch(std::move(request), std::move(on_range), Promise())) {}

Running::Running(Transport& transport, PushRequest request, OnRange on_range)
    : transfer_(transport.Push(std::move(request), std::move(on_range), Promise())) {}

}  // namespace lorry::transfer
