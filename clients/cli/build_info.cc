#include "clients/cli/build_info.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>

#include "absl/strings/str_cat.h"

namespace lorry::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

// One GET; each step starts the next. Lives on VersionAt's stack until the io_context has run dry.
class Get {
 public:
  Get(asio::io_context& io, std::string host) : resolver_(io), stream_(io), host_(std::move(host)) {
    request_.set(http::field::host, host_);
    request_.set(http::field::connection, "close");
  }

  void Start(const std::string& port) {
    constexpr auto kDeadline = std::chrono::seconds(2);
    stream_.expires_after(kDeadline);
    resolver_.async_resolve(host_, port, [this](beast::error_code error, auto found) {
      if (Failed(error)) return;
      stream_.async_connect(found, [this](beast::error_code e, const auto&) { OnConnected(e); });
    });
  }

  const beast::error_code& error() const { return error_; }
  const std::string& body() const { return response_.body(); }

 private:
  bool Failed(beast::error_code error) {
    error_ = error;
    return error.failed();
  }
  void OnConnected(beast::error_code error) {
    if (Failed(error)) return;
    http::async_write(stream_, request_, [this](beast::error_code e, size_t) {
      if (Failed(e)) return;
      http::async_read(stream_, buffer_, response_,
                       [this](beast::error_code e, size_t) { Failed(e); });
    });
  }

  asio::ip::tcp::resolver resolver_;
  beast::tcp_stream stream_;
  const std::string host_;
  http::request<http::empty_body> request_{http::verb::get, "/metrics", 11};
  http::response<http::string_body> response_;
  beast::flat_buffer buffer_;
  beast::error_code error_;
};

}  // namespace

absl::StatusOr<std::string> VersionAt(const std::string& admin_address) {
  const size_t colon = admin_address.rfind(':');
  if (colon == std::string::npos) return absl::UnavailableError("no admin address");
  asio::io_context io;
  Get get(io, admin_address.substr(0, colon));
  get.Start(admin_address.substr(colon + 1));
  io.run();
  if (get.error().failed()) {
    return absl::UnavailableError(absl::StrCat(admin_address, ": ", get.error().message()));
  }
  const auto version = VersionIn(get.body());
  if (!version.has_value()) return absl::NotFoundError("the metrics name no version");
  return *version;
}

std::optional<std::string> VersionIn(std::string_view metrics) {
  constexpr std::string_view kMetric = "lorry_build_info{", kLabel = "version=\"";
  const size_t line = metrics.find(kMetric);
  if (line == metrics.npos) return std::nullopt;
  const std::string_view labels = metrics.substr(line, metrics.find('\n', line) - line);
  const size_t at = labels.find(kLabel);
  if (at == labels.npos) return std::nullopt;
  const std::string_view value = labels.substr(at + kLabel.size());
  return std::string(value.substr(0, value.find('"')));
}

}  // namespace lorry::cli
