// The verbs of an engine as plain calls.
#pragma once

#include <boost/asio/io_context.hpp>
#include <optional>
#include <utility>

namespace lorry::engines {

// What `call` hands to the callback that it is given, for which the io_context runs.
template <typename T, typename Call>
T Answered(boost::asio::io_context& io, Call call) {
  std::optional<T> answer;
  call([&](T value) { answer = std::move(value); });
  io.restart();
  while (!answer) io.run_one();
  return *std::move(answer);
}

}  // namespace lorry::engines
