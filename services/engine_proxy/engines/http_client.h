// HttpClient: bounded HTTP/1.1 calls to one server, as Asio coroutines.
//
// Each call makes a connection of its own: engines close idle connections after 5 s, and nobody
// knows whether a request that was sent at that moment has been taken. There are a few control
// calls a second, and a connect on loopback takes some 50 us. Nothing is retried and no redirect is
// followed. Thread-safe; calls run on strands of the io_context, which must outlive them.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorry::engines {

// "http://host[:port]" taken apart; INVALID_ARGUMENT ENGINE_URL_INVALID shows one that would do.
struct HttpTarget {
  std::string host;
  std::string port;
};
absl::StatusOr<HttpTarget> ParseHttpUrl(std::string_view url);

struct HttpCall {
  std::string method;  // "GET", "POST"
  std::string path;    // with the query
  std::string body;    // sent as application/json when not empty
  std::string bearer;  // Authorization: Bearer, when not empty
  // Of a 200 that may be long: takes out of what has come of it, of which the last line may not be
  // whole, what its reader does not need.
  void (*sift)(std::string& body) = nullptr;
};

struct HttpReply {
  unsigned status = 0;
  std::string body;
};

class HttpClient {
 public:
  using Clock = std::chrono::steady_clock;

  // A listing of 1,000 adapters is 300 KB. 16 MiB is far above that and still no burden.
  static constexpr size_t kMaxReplyBytes = 16 << 20;
  // Of what is sifted, so that little of it is kept: /metrics of a vLLM, which has a series for each
  // set of adapters that was ever busy at once. The deadline ends it before.
  static constexpr size_t kMaxSiftedBytes = 1 << 30;
  static constexpr size_t kMaxHeaderBytes = 64 << 10;

  HttpClient(boost::asio::io_context& io, HttpTarget target);

  // The reply, whatever its status. UNAVAILABLE ENGINE_UNREACHABLE: the engine's machine says that
  // nobody listens on the port. ABORTED ENGINE_UNREACHABLE: the machine was not reached (its name
  // is not known, there is no route to it, no descriptor is left in this process), which says
  // nothing of the engine. In both cases nothing was sent. UNKNOWN ENGINE_CONNECTION_BROKEN and
  // DEADLINE_EXCEEDED ENGINE_TIMEOUT: the engine may have taken the request.
  boost::asio::awaitable<absl::StatusOr<HttpReply>> Call(HttpCall call,
                                                         Clock::time_point deadline) const;

  boost::asio::io_context& io() const { return io_; }
  const std::string& name() const { return name_; }  // "host:port", for messages

 private:
  boost::asio::io_context& io_;
  const HttpTarget target_;
  const std::string name_;
};

}  // namespace lorry::engines
