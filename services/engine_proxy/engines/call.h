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

}  // namespace lorry::engines
