// HttpEngine<Calls>: the Engine over a set of coroutines, one for each verb. Calls in flight share
// `Calls`, so the Engine may be destroyed before they end.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/engine_proxy/engines/call.h"
#include "services/engine_proxy/engines/engine.h"
#include "services/engine_proxy/engines/http_client.h"
#include "services/engine_proxy/engines/probe.h"

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
        Asked(calls_, name, std::move(question), DeadlineAfter(within)), std::move(answer));
  }
  void Unload(const EngineName& name, Millis within, Answer<absl::Status> answer) override {
    Run<absl::Status>(calls_->Unload(name, DeadlineAfter(within)), std::move(answer));
  }
  void GetLoad(Millis within, Answer<absl::StatusOr<EngineLoad>> answer) override {
    Run<absl::StatusOr<EngineLoad>>(calls_->GetLoad(DeadlineAfter(within)), std::move(answer));
  }
  void SetPause(fleet::PauseKind pause, bool flush, Millis within,
                Answer<absl::Status> answer) override {
    Run<absl::Status>(calls_->SetPause(pause, flush, DeadlineAfter(within)), std::move(answer));
  }

 private:
  // Asks what a probe asks, in this order; each kind of engine has its own way to ask it.
  static Task<absl::StatusOr<fleet::ProbeAnswer>> Asked(std::shared_ptr<Calls> calls,
                                                        EngineName name,
                                                        fleet::ProbeQuestion question,
                                                        HttpClient::Clock::time_point deadline) {
    fleet::ProbeAnswer answer;
    if (question.kind == fleet::ProbeKind::kPresence) {
      const auto listing = co_await calls->List(deadline);
      if (!listing.ok()) co_return listing.status();
      const absl::Status present = JudgePresence(*listing, name);
      if (!present.ok()) co_return present;
      co_return answer;
    }
    if (question.kind == fleet::ProbeKind::kToken) {
      const auto token = co_await calls->Token(name.value, deadline);
      if (!token.ok()) co_return token.status();
      co_return answer;
    }
    std::vector<std::vector<double>> answered;
    for (const peft::ReferencePrompt& prompt : question.reference) {
      auto logprobs = co_await calls->ReferenceLogprobs(name.value, prompt, deadline);
      if (!logprobs.ok()) co_return logprobs.status();
      answered.push_back(*std::move(logprobs));
    }
    answer.gap = GapTo(question.reference, answered);
    const auto compared = co_await calls->CompareTokens(name.value, deadline);
    if (!compared.ok()) co_return compared.status();
    answer.compared = *compared;
    co_return answer;
  }

  template <typename T>
  void Run(Task<T> task, Answer<T> answer) {
    Start<T>(calls_->io(), std::move(task),
             [calls = calls_, answer = std::move(answer)](T value) { answer(std::move(value)); });
  }

  const std::shared_ptr<Calls> calls_;
};

}  // namespace lorry::engines
