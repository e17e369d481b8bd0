// One gRPC call of any kind, sent message by message as bytes: what a hostile client does, not what
// a stub would.
//
// Unary calls are streams of one message each way to HTTP/2. Thread-safe; keeps itself until gRPC
// is done with it.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace lorry::fuzz {

class RawCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // `method`: "/lorry.store.v1.StoreService/OpenRun".
  static std::shared_ptr<RawCall> Start(grpc::GenericStub& stub, const std::string& method);

  void Send(const std::string& message);
  void HalfClose();
  void Cancel() { context_.TryCancel(); }

  // Waits until it has ended; false when `limit` passes first.
  bool WaitForEnd(std::chrono::milliseconds limit);
  // Waits for the next message; none when it has ended, or `limit` passes first.
  std::optional<std::string> WaitForMessage(std::chrono::milliseconds limit);
  bool ended();
  grpc::Status status();  // once it has ended

 private:
  RawCall() = default;
  void Pump();
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  grpc::ClientContext context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<grpc::ByteBuffer> out_;
  std::deque<std::string> in_;  // the last ones
  grpc::ByteBuffer read_;
  bool writing_ = false;
  bool half_close_ = false;
  bool half_closed_ = false;
  bool done_ = false;
  grpc::Status status_;
  std::shared_ptr<RawCall> self_;
};

}  // namespace lorry::fuzz
