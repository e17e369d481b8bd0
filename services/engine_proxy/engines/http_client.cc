#include "services/engine_proxy/engines/http_client.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"

namespace lorry::engines {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using beast::error_code;
using net::ip::tcp;

constexpr auto kTuple = net::as_tuple(net::use_awaitable);

absl::Status Unreachable(std::string_view server, const error_code& error) {
  const bool nobody_listens = error == net::error::connection_refused;
  return Error(nobody_listens ? absl::StatusCode::kUnavailable : absl::StatusCode::kAborted,
               "ENGINE_UNREACHABLE",
               absl::StrCat("engine at ", ToAbsl(server), " cannot be reached: ", error.message(),
                            "; check its address and that it has finished starting"));
}

absl::Status Broken(std::string_view server, const HttpCall& call, const error_code& error) {
  const std::string where = absl::StrCat(call.method, " ", call.path, " at ", ToAbsl(server));
  if (error == beast::error::timeout) {
    return Error(absl::StatusCode::kDeadlineExceeded, "ENGINE_TIMEOUT",
                 absl::StrCat(where, " was not answered in time; it may have taken effect"));
  }
  return Error(absl::StatusCode::kUnknown, "ENGINE_CONNECTION_BROKEN",
               absl::StrCat(where, " broke off (", error.message(), "); it may have taken effect"));
}

http::request<http::string_body> MakeRequest(const HttpCall& call, const std::string& server) {
  http::request<http::string_body> request;
  request.method_string(call.method);
  request.target(call.path);
  request.set(http::field::host, server);
  request.set(http::field::connection, "close");
  if (!call.bearer.empty()) request.set(http::field::authorization, "Bearer " + call.bearer);
  if (!call.body.empty()) request.set(http::field::content_type, "application/json");
  request.body() = call.body;
  request.prepare_payload();
  return request;
}

using Resolved = std::pair<error_code, tcp::resolver::results_type>;

// getaddrinfo has no deadline of its own and cannot be cancelled, so a timer is waited for, which
// ends early with the answer.
net::awaitable<Resolved> Resolve(HttpTarget target, HttpClient::Clock::time_point deadline) {
  const auto executor = co_await net::this_coro::executor;
  auto resolver = std::make_shared<tcp::resolver>(executor);
  auto timer = std::make_shared<net::steady_timer>(executor, deadline);
  auto resolved = std::make_shared<Resolved>(net::error::timed_out, tcp::resolver::results_type());
  resolver->async_resolve(target.host, target.port,
                          [resolver, timer, resolved](const error_code& error, auto results) {
                            *resolved = {error, std::move(results)};
                            timer->cancel();
                          });
  co_await timer->async_wait(kTuple);
  co_return *resolved;
}

// To the first that takes the connection. An address that refuses it tells more than one that this
// machine has no way to, as ::1 without IPv6.
net::awaitable<error_code> Connect(beast::tcp_stream& stream,
                                   const tcp::resolver::results_type& addresses) {
  error_code failed = net::error::host_not_found;
  for (const auto& address : addresses) {
    auto [error] = co_await stream.async_connect(address.endpoint(), kTuple);
    if (!error || error == beast::error::timeout) co_return error;
    if (failed != net::error::connection_refused) failed = error;
    stream.close();
  }
  co_return failed;
}

}  // namespace

absl::StatusOr<HttpTarget> ParseHttpUrl(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  const auto invalid = [&] {
    return Error(absl::StatusCode::kInvalidArgument, "ENGINE_URL_INVALID",
                 absl::StrCat("'", ToAbsl(url),
                              "' is not an engine's address; write http://127.0.0.1:30000"));
  };
  std::string_view rest = url;
  if (rest.substr(0, kScheme.size()) != kScheme) return invalid();
  rest.remove_prefix(kScheme.size());
  if (!rest.empty() && rest.back() == '/') rest.remove_suffix(1);
  std::string_view port = "80";
  const size_t bracket = rest.find(']');  // [::1]:30000
  const size_t colon = rest.find(':', bracket == std::string_view::npos ? 0 : bracket);
  std::string_view host = rest.substr(0, colon);
  if (colon != std::string_view::npos) port = rest.substr(colon + 1);
  if (!host.empty() && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number == 0) return invalid();
  if (host.empty() || host.find_first_of("/@?# ") != std::string_view::npos) return invalid();
  return HttpTarget{std::string(host), std::string(port)};
}

HttpClient::HttpClient(net::io_context& io, HttpTarget target)
    : io_(io), target_(std::move(target)), name_(target_.host + ":" + target_.port) {}

net::awaitable<absl::StatusOr<HttpReply>> HttpClient::Call(HttpCall call,
                                                           Clock::time_point deadline) const {
  auto resolved = co_await Resolve(target_, deadline);
  if (resolved.first) co_return Unreachable(name_, resolved.first);

  beast::tcp_stream stream(co_await net::this_coro::executor);
  stream.expires_at(deadline);
  const error_code connect_error = co_await Connect(stream, resolved.second);
  // A busy engine accepts late; only a refused connection says that nobody is there.
  if (connect_error == beast::error::timeout) co_return Broken(name_, call, connect_error);
  if (connect_error) co_return Unreachable(name_, connect_error);

  const auto request = MakeRequest(call, name_);
  auto [write_error, written] = co_await http::async_write(stream, request, kTuple);
  if (write_error) co_return Broken(name_, call, write_error);

  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(call.sift != nullptr ? kMaxSiftedBytes : kMaxReplyBytes);
  parser.header_limit(kMaxHeaderBytes);
  parser.eager(true);
  while (!parser.is_done()) {
    auto [read_error, read] = co_await http::async_read_some(stream, buffer, parser, kTuple);
    if (read_error) co_return Broken(name_, call, read_error);
    const bool is_sifted = call.sift != nullptr && parser.is_header_done() &&
                           parser.get().result() == http::status::ok;
    if (is_sifted) call.sift(parser.get().body());
  }

  auto message = parser.release();
  co_return HttpReply{message.result_int(), std::move(message.body())};
}

}  // namespace lorry::engines
