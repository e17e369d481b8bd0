// What both drivers' coroutines are built with.
#pragma once

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "services/engine_proxy/engines/engine.h"
#include "services/engine_proxy/engines/http_client.h"
#include "services/engine_proxy/engines/probe.h"
#include "services/engine_proxy/engines/wire.h"

namespace lorry::engines {

template <typename T>
using Task = boost::asio::awaitable<T>;

// Runs `task` on a strand of its own and hands its value to `answer`. Tasks throw only what nobody
// can handle (no memory), which ends the process as it would anywhere else.
template <typename T>
void Start(boost::asio::io_context& io, Task<T> task, Engine::Answer<T> answer) {
  boost::asio::co_spawn(boost::asio::make_strand(io), std::move(task),
                        [answer = std::move(answer)](std::exception_ptr error, T value) {
                          if (error) std::rethrow_exception(error);
                          answer(std::move(value));
                        });
}

// All of `tasks` at once, on the caller's strand; their values in the tasks' order.
template <typename T>
Task<std::vector<T>> All(std::vector<Task<T>> tasks) {
  namespace asio = boost::asio;
  if (tasks.empty()) co_return std::vector<T>();  // a group of none would never end
  const auto strand = co_await asio::this_coro::executor;
  const auto start = [&](Task<T> task) {
    return asio::co_spawn(strand, std::move(task), asio::deferred);
  };
  std::vector<decltype(start(std::move(tasks.front())))> started;
  started.reserve(tasks.size());
  for (Task<T>& task : tasks) started.push_back(start(std::move(task)));
  auto [order, errors, values] =
      co_await asio::experimental::make_parallel_group(std::move(started))
          .async_wait(asio::experimental::wait_for_all(), asio::use_awaitable);
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  co_return std::move(values);
}

// What the engine says of a reference's prompts, asked for all at once: one after the other they
// would wait behind the engine's other requests eight times.
// `ask(prompt)`: the task that asks for one.
template <typename Ask>
Task<absl::StatusOr<std::optional<fleet::ReferenceGap>>> AskReference(peft::Reference reference,
                                                                      Ask ask) {
  std::vector<Task<absl::StatusOr<std::vector<double>>>> prompts;
  for (const peft::ReferencePrompt& prompt : reference) prompts.push_back(ask(prompt));
  std::vector<std::vector<double>> answered;
  for (auto& logprobs : co_await All(std::move(prompts))) {
    if (!logprobs.ok()) co_return logprobs.status();
    answered.push_back(*std::move(logprobs));
  }
  co_return GapTo(reference, answered);
}

inline HttpClient::Clock::time_point DeadlineAfter(Engine::Millis within) {
  return HttpClient::Clock::now() + within;
}

// What the engine answers to a part of a probe that it did not shed. `ask()`: the task that asks.
template <typename Ask>
Task<absl::StatusOr<HttpReply>> AskUntilTaken(fleet::EngineKind kind, Engine::Millis shed_for,
                                              Ask ask, HttpClient::Clock::time_point deadline) {
  constexpr std::chrono::seconds kAskAgain{1};  // a full queue moves in that time
  deadline = std::min(deadline, DeadlineAfter(shed_for));
  for (;;) {
    auto reply = co_await ask();
    if (!reply.ok() || !WasShed(kind, *reply)) co_return reply;
    const auto again = HttpClient::Clock::now() + kAskAgain;
    if (again >= deadline) {
      co_return Error(absl::StatusCode::kResourceExhausted, "PROBE_BEHIND_OTHERS",
                      absl::StrCat("the engine sheds the probe: ", ErrorText(*reply)));
    }
    boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor, again);
    co_await timer.async_wait(boost::asio::use_awaitable);
  }
}

}  // namespace lorry::engines
