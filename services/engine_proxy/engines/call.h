// What both drivers' coroutines are built with.
#pragma once

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/strand.hpp>
#include <exception>
#include <string>
#include <utility>

#include "services/engine_proxy/engines/engine.h"
#include "services/engine_proxy/engines/http_client.h"
#include "services/engine_proxy/engines/probe.h"

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

inline HttpClient::Clock::time_point DeadlineAfter(Engine::Millis within) {
  return HttpClient::Clock::now() + within;
}

// A token of the adapter, and for kCompare the base model's before and after it, so that what
// changes in between (a batch that fills) is taken for noise and not for the adapter.
template <typename Calls>
Task<absl::StatusOr<ProbeAnswer>> ProbeTokens(Calls& calls, std::string adapter, std::string base,
                                              fleet::ProbeKind kind,
                                              HttpClient::Clock::time_point deadline) {
  absl::StatusOr<ProbeReply> before;
  if (kind == fleet::ProbeKind::kCompare) {
    before = co_await calls.Token(base, deadline);
    if (!before.ok()) co_return before.status();
  }
  const absl::StatusOr<ProbeReply> answered = co_await calls.Token(std::move(adapter), deadline);
  if (!answered.ok()) co_return answered.status();
  if (kind != fleet::ProbeKind::kCompare) co_return ProbeAnswer();
  const absl::StatusOr<ProbeReply> after = co_await calls.Token(std::move(base), deadline);
  if (!after.ok()) co_return after.status();
  co_return Compare(*before, *answered, *after);
}

}  // namespace lorry::engines
