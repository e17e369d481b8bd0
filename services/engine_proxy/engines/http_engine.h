// HttpEngine<Calls>: the Engine over a set of coroutines, one for each verb. Calls in flight share
// `Calls`, so the Engine may be destroyed before they end.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "services/engine_proxy/engines/call.h"
#include "services/engine_proxy/engines/engine.h"

namespace lorry::engines {

template <typename Calls>
class HttpEngine final : public Engine {
 public:
  explicit HttpEngine(std::shared_ptr<Calls> calls) : calls_(std::move(calls)) {}

  fleet::EngineKind kind() const override { return Calls::kKind; }

  void Inspect(Millis within, Answer<absl::StatusOr<EngineFacts>> answer) override {
    Run<absl::StatusOr<EngineFacts>>(calls_->Inspect(DeadlineAfter(within)), std::move(answer));
  }
  void List(Millis within, Answer<absl::StatusOr<Listing>> answer) override {
    Run<absl::StatusOr<Listing>>(calls_->List(DeadlineAfter(within)), std::move(answer));
  }
  void Load(const EngineName& name, const std::string& path, Millis within,
            Answer<absl::Status> answer) override {
    Run<absl::Status>(calls_->Load(name, path, DeadlineAfter(within)), std::move(answer));
  }
  void Probe(const EngineName& name, fleet::ProbeQuestion question, Millis within,
             Answer<absl::StatusOr<fleet::ProbeAnswer>> answer) override {
    Run<absl::StatusOr<fleet::ProbeAnswer>>(
        calls_->Probe(name, std::move(question), DeadlineAfter(within)), std::move(answer));
  }
  void Unload(const EngineName& name, Millis within, Answer<absl::Status> answer) override {
    Run<absl::Status>(calls_->Unload(name, DeadlineAfter(within)), std::move(answer));
  }
  void GetOccupancy(Millis within, Answer<absl::StatusOr<Occupancy>> answer) override {
    Run<absl::StatusOr<Occupancy>>(calls_->GetOccupancy(DeadlineAfter(within)), std::move(answer));
  }
  void SetPause(fleet::PauseKind pause, bool flush, Millis within,
                Answer<absl::Status> answer) override {
    Run<absl::Status>(calls_->SetPause(pause, flush, DeadlineAfter(within)), std::move(answer));
  }
  void Pass(RawCall call, Millis within, Answer<absl::StatusOr<RawReply>> answer) override {
    Run<absl::StatusOr<RawReply>>(calls_->Pass(std::move(call), DeadlineAfter(within)),
                                  std::move(answer));
  }

 private:
  template <typename T>
  void Run(Task<T> task, Answer<T> answer) {
    Start<T>(calls_->io(), std::move(task),
             [calls = calls_, answer = std::move(answer)](T value) { answer(std::move(value)); });
  }

  const std::shared_ptr<Calls> calls_;
};

}  // namespace lorry::engines
