#include "lib/metrics/admin_server.h"

#include <spdlog/spdlog.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/host_port.h"

namespace lorry::metrics {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

// Probes and scrapers: a handful of connections. One more closes the one that has been silent for
// longest, so that nobody can lock the probes out by connecting.
constexpr size_t kConnectionsMax = 64;
constexpr size_t kRequestBytesMax = 8 << 10;
// A connection that sends or takes nothing for this long is closed; scrapers keep theirs between
// scrapes.
constexpr auto kIdleLimit = std::chrono::seconds(75);
// Before the next try where a connection cannot be taken in.
constexpr auto kAcceptPause = std::chrono::milliseconds(50);

Page Answer(const absl::Status& status) {
  if (status.ok()) return {.body = "ok\n"};
  return {.code = 503, .body = absl::StrCat(std::string(status.message()), "\n")};
}

class BeastAdminServer final : public AdminServer {
 public:
  BeastAdminServer(AdminOptions options, Registry& registry) : pages_(std::move(options.pages)) {
    pages_["/metrics"] = [&registry] {
      return Page{.body = registry.Scrape(),
                  .content_type = "text/plain; version=0.0.4; charset=utf-8"};
    };
    pages_["/livez"] = [live = std::move(options.live)] { return Answer(live()); };
    pages_["/readyz"] = [ready = std::move(options.ready)] { return Answer(ready()); };
    pages_["/configz"] = [config = std::move(options.config_json)] {
      return Page{.body = config(), .content_type = "application/json"};
    };
  }
  ~BeastAdminServer() override {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Listen(const std::string& address) {
    LORRY_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(address, "--admin-listen"));
    boost::system::error_code error;
    const auto host = asio::ip::make_address(at.host, error);
    if (error) {
      return Error(absl::StatusCode::kInvalidArgument, "",
                   absl::StrCat("the admin address \"", address, "\" names no IP address"));
    }
    const tcp::endpoint endpoint(host, at.port);
    if (!acceptor_.open(endpoint.protocol(), error) &&
        !acceptor_.set_option(tcp::acceptor::reuse_address(true), error) &&
        !acceptor_.bind(endpoint, error)) {
      acceptor_.listen(kConnectionsMax, error);
    }
    if (error) {
      return Error(absl::StatusCode::kUnavailable, "LISTEN_FAILED",
                   absl::StrCat("cannot listen on ", address, ": ", error.message()));
    }
    port_ = acceptor_.local_endpoint().port();
    const std::string reached = host.is_unspecified() ? "127.0.0.1" : host.to_string();
    address_ = HostPort{reached, static_cast<uint16_t>(port_)}.ToString();
    if (!host.is_loopback()) {
      spdlog::warn("the admin port listens on {}: whoever reaches it reads metrics and settings",
                   address);
    }
    asio::co_spawn(context_, Accept(), asio::detached);
    thread_ = std::thread([this] { context_.run(); });
    return absl::OkStatus();
  }
  int port() const override { return port_; }
  std::string address() const override { return address_; }

 private:
  asio::awaitable<void> Accept() {
    bool refused = false;
    while (true) {
      boost::system::error_code error;
      tcp::socket socket =
          co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, error));
      if (error == asio::error::operation_aborted) co_return;
      if (error) {
        if (!std::exchange(refused, true))
          spdlog::error("the admin port takes in nobody just now: {}", error.message());
        // What cannot be taken in stays in the queue, so that the next try fails at once.
        asio::steady_timer pause(context_, kAcceptPause);
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      refused = false;
      if (by_last_request_.size() >= kConnectionsMax) {
        by_last_request_.begin()->second->close();
        by_last_request_.erase(by_last_request_.begin());
      }
      asio::co_spawn(context_, Serve(beast::tcp_stream(std::move(socket))), asio::detached);
    }
  }

  asio::awaitable<void> Serve(beast::tcp_stream stream) {
    beast::flat_buffer buffer(kRequestBytesMax);
    bool keep_alive = true;
    uint64_t turn = 0;
    while (keep_alive) {
      by_last_request_.erase(turn);
      turn = ++turns_;
      by_last_request_[turn] = &stream;
      stream.expires_after(kIdleLimit);
      http::request<http::empty_body> request;
      boost::system::error_code error;
      co_await http::async_read(stream, buffer, request,
                                asio::redirect_error(asio::use_awaitable, error));
      if (error) break;
      http::response<http::string_body> response = Respond(request);
      keep_alive = response.keep_alive();
      stream.expires_after(kIdleLimit);
      co_await http::async_write(stream, response,
                                 asio::redirect_error(asio::use_awaitable, error));
      if (error) break;
    }
    by_last_request_.erase(turn);
  }

  http::response<http::string_body> Respond(const http::request<http::empty_body>& request) const {
    Page page = PageFor(request);
    http::response<http::string_body> response(static_cast<http::status>(page.code),
                                               request.version(), std::move(page.body));
    response.set(http::field::content_type, page.content_type);
    response.set(http::field::cache_control, "no-store");
    response.keep_alive(request.keep_alive());
    response.prepare_payload();
    if (request.method() == http::verb::head) response.body().clear();
    return response;
  }

  Page PageFor(const http::request<http::empty_body>& request) const {
    if (request.method() != http::verb::get && request.method() != http::verb::head) {
      return {.code = 405, .body = "GET only\n"};
    }
    const std::string target(request.target());
    const auto page = pages_.find(target.substr(0, target.find('?')));
    if (page != pages_.end()) return page->second();
    std::string known = "not found; there are";
    for (const auto& [path, function] : pages_) absl::StrAppend(&known, " ", path);
    return {.code = 404, .body = known + "\n"};
  }

  std::map<std::string, std::function<Page()>> pages_;
  asio::io_context context_{1};
  tcp::acceptor acceptor_{context_};
  // Open connections, the longest silent one first; of the context's thread, as is `turns_`.
  std::map<uint64_t, beast::tcp_stream*> by_last_request_;
  uint64_t turns_ = 0;
  int port_ = 0;
  std::string address_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(AdminOptions options,
                                                                Registry& registry) {
  const std::string address = options.address;
  auto server = std::make_unique<BeastAdminServer>(std::move(options), registry);
  LORRY_RETURN_IF_ERROR(server->Listen(address));
  return server;
}

}  // namespace lorry::metrics
