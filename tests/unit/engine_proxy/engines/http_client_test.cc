// The HTTP client against servers that misbehave, and several calls at once.
#include "services/engine_proxy/engines/http_client.h"

#include <gmock/gmock.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <functional>
#include <optional>
#include <thread>

#include "lib/base/error.h"
#include "services/engine_proxy/engines/call.h"
#include "services/engine_proxy/engines/engine.h"
#include "services/engine_proxy/engines/engines.h"
#include "tests/testing/names.h"

namespace lorry::engines {
namespace {

namespace net = boost::asio;
using net::ip::tcp;
using testing::HasSubstr;

// Takes one connection, reads a request's head, writes `reply`, and closes unless told to hang.
class OneShotServer {
 public:
  explicit OneShotServer(std::string reply, bool hang = false)
      : acceptor_(io_, tcp::endpoint(net::ip::make_address("127.0.0.1"), 0)),
        thread_([this, reply = std::move(reply), hang] {
          boost::system::error_code ignored;
          tcp::socket peer(io_);
          acceptor_.accept(peer, ignored);
          net::streambuf head;
          net::read_until(peer, head, "\r\n\r\n", ignored);
          request_ = {net::buffers_begin(head.data()), net::buffers_end(head.data())};
          net::write(peer, net::buffer(reply), ignored);
          char byte = 0;
          if (hang) peer.read_some(net::buffer(&byte, 1), ignored);  // until the client goes
        }) {}
  ~OneShotServer() { Join(); }

  std::string port() const { return std::to_string(acceptor_.local_endpoint().port()); }
  const std::string& request() {
    Join();
    return request_;
  }

 private:
  // The connection made here ends a wait for one that never came.
  void Join() {
    if (!thread_.joinable()) return;
    boost::system::error_code ignored;
    tcp::socket(io_).connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
  }

  net::io_context io_;
  tcp::acceptor acceptor_;
  std::string request_;
  std::thread thread_;
};

absl::StatusOr<HttpReply> CallOf(const std::string& host, const std::string& port, HttpCall call,
                                 std::chrono::milliseconds within = std::chrono::seconds(20)) {
  net::io_context io;
  const HttpClient client(io, {host, port});
  std::optional<absl::StatusOr<HttpReply>> answer;
  net::co_spawn(io, client.Call(std::move(call), HttpClient::Clock::now() + within),
                [&](std::exception_ptr error, absl::StatusOr<HttpReply> reply) {
                  EXPECT_FALSE(error);
                  answer = std::move(reply);
                });
  io.run();
  return *std::move(answer);
}

const HttpCall kGet{.method = "GET", .path = "/x", .body = "", .bearer = ""};

TEST(HttpClient, SendsWhatItIsToldAndReturnsAnyStatus) {
  OneShotServer server("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone");
  const auto reply = CallOf("127.0.0.1", server.port(),
                            {.method = "POST", .path = "/y?a=1", .body = "{}", .bearer = "key"});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->status, 404u);
  EXPECT_EQ(reply->body, "gone");
  EXPECT_THAT(server.request(), HasSubstr("POST /y?a=1 HTTP/1.1\r\n"));
  EXPECT_THAT(server.request(), HasSubstr("Authorization: Bearer key\r\n"));
  EXPECT_THAT(server.request(), HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_THAT(server.request(), HasSubstr("Connection: close\r\n"));
}

TEST(HttpClient, ReadsChunkedBodies) {
  OneShotServer server(
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n");
  EXPECT_EQ(CallOf("127.0.0.1", server.port(), kGet)->body, "abc");
}

TEST(HttpClient, ResolvesNames) {
  OneShotServer server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
  EXPECT_TRUE(CallOf("localhost", server.port(), kGet).ok());
}

TEST(HttpClient, TheDeadlineCoversANameServerThatDoesNotAnswer) {
  SetName("stuck.test", {});
  net::io_context io;
  const HttpClient client(io, {"stuck.test", "1"});
  net::co_spawn(io, client.Call(kGet, HttpClient::Clock::now() + std::chrono::milliseconds(50)),
                [](std::exception_ptr error, const absl::StatusOr<HttpReply>& reply) {
                  EXPECT_FALSE(error);
                  EXPECT_EQ(ReasonOf(reply.status()), "ENGINE_UNREACHABLE");
                  SetName("stuck.test", {"127.0.0.1"});  // so that the thread that asks can end
                });
  io.run();
}

TEST(HttpClient, ARefusedConnectionMeansThatNothingHappened) {
  const std::string port = [] {
    net::io_context io;
    tcp::acceptor closed(io, tcp::endpoint(net::ip::make_address("127.0.0.1"), 0));
    return std::to_string(closed.local_endpoint().port());
  }();
  const auto reply = CallOf("127.0.0.1", port, kGet);
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(reply.status()), "ENGINE_UNREACHABLE");
  EXPECT_FALSE(MayHaveHappened(reply.status()));
}

// "localhost" is ::1 as well, to which a machine without IPv6 has no way.
TEST(HttpClient, ARefusalTellsMoreThanAnAddressThatCannotBeReached) {
  SetName("dual.test", {"127.0.0.1", "255.255.255.255"});
  const auto reply = CallOf("dual.test", "1", kGet);
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable) << reply.status();
}

TEST(HttpClient, WhatCannotBeReachedIsNotTakenForGone) {
  const auto reply = CallOf("255.255.255.255", "1", kGet);  // no connection can be made there
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kAborted) << reply.status();
  EXPECT_EQ(ReasonOf(reply.status()), "ENGINE_UNREACHABLE");
  EXPECT_FALSE(MayHaveHappened(reply.status()));
}

TEST(HttpClient, ABrokenReplyMeansThatItMayHaveHappened) {
  for (const char* cut :
       {"", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "nonsense\r\n\r\n"}) {
    OneShotServer server(cut);
    const auto reply = CallOf("127.0.0.1", server.port(), kGet);
    EXPECT_EQ(ReasonOf(reply.status()), "ENGINE_CONNECTION_BROKEN") << cut;
    EXPECT_TRUE(MayHaveHappened(reply.status()));
  }
}

TEST(HttpClient, TheDeadlineCoversTheWholeCall) {
  for (const char* beginning : {"", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"}) {
    OneShotServer server(beginning, /*hang=*/true);
    const auto reply = CallOf("127.0.0.1", server.port(), kGet, std::chrono::seconds(2));
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(ReasonOf(reply.status()), "ENGINE_TIMEOUT");
    EXPECT_TRUE(MayHaveHappened(reply.status()));
  }
}

TEST(HttpClient, AnEndlessBodyIsCutOff) {
  OneShotServer server("HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n");
  EXPECT_EQ(ReasonOf(CallOf("127.0.0.1", server.port(), kGet).status()),
            "ENGINE_CONNECTION_BROKEN");
}

// A vLLM that has served many adapters has a series for each set of them that was ever busy.
TEST(Vllm, IsUnderstoodHoweverLongItsPageOfMetricsIs) {
  const std::string states = [] {
    std::string lines = "# TYPE vllm:lora_requests_info gauge\n";
    for (int at = 0; lines.size() <= HttpClient::kMaxReplyBytes; ++at) {
      lines += "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"" +
               std::string(200, 'a') + std::to_string(at) + "\",waiting_lora_adapters=\"\"} " +
               std::to_string(at) + ".5\n";
    }
    return lines + "vllm:lora_requests_info{running_lora_adapters=\"b,c\"} 1.9e+09\n";
  }();
  const std::string page = "vllm:num_requests_running{engine=\"0\"} 2.0\n" + states +
                           "vllm:num_requests_waiting{engine=\"0\"} 1.0";
  OneShotServer server("HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(page.size()) +
                       "\r\n\r\n" + page);
  net::io_context io;
  const auto vllm = MakeVllm(io, {.url = "http://127.0.0.1:" + server.port()}).value();
  std::optional<absl::StatusOr<Occupancy>> load;
  vllm->GetOccupancy(std::chrono::seconds(60), [&](auto answer) { load = std::move(answer); });
  io.run();
  ASSERT_TRUE(load->ok()) << load->status();
  EXPECT_EQ((*load)->running, 2u);
  EXPECT_EQ((*load)->waiting, 1u);
  EXPECT_EQ((*load)->names, (std::set{EngineName("b"), EngineName("c")}));
}

TEST(ParseHttpUrl, TakesHostAndPort) {
  EXPECT_EQ(ParseHttpUrl("http://engine.local:30000")->port, "30000");
  EXPECT_EQ(ParseHttpUrl("http://engine.local/")->host, "engine.local");
  EXPECT_EQ(ParseHttpUrl("http://engine.local")->port, "80");
  EXPECT_EQ(ParseHttpUrl("http://[2001:db8::1]:8000")->host, "2001:db8::1");
}

TEST(ParseHttpUrl, RefusesWhatIsNoEnginesAddress) {
  for (const char* url :
       {"", "127.0.0.1:1", "https://a:1", "http://", "http://:80", "http://a:", "http://a:0",
        "http://a:70000", "http://a:1x", "http://a/b", "http://u@a:1", "http://a?b"}) {
    EXPECT_EQ(ReasonOf(ParseHttpUrl(url).status()), "ENGINE_URL_INVALID") << url;
  }
}

TEST(Detect, WhatIsNoEngineIsSaidToBeNone) {
  for (const char* reply : {"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
                            "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>",
                            "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n"
                            R"({"data":[{"id":"m","owned_by":"somebody else's"}]})"}) {
    OneShotServer server(reply);
    net::io_context io;
    std::optional<absl::StatusOr<std::unique_ptr<Engine>>> found;
    DetectEngine(io, {.url = "http://127.0.0.1:" + server.port()}, std::chrono::seconds(20),
                 [&](auto engine) { found = std::move(engine); });
    io.run();
    EXPECT_EQ(ReasonOf(found->status()), "ENGINE_UNKNOWN") << reply;
    EXPECT_THAT(std::string(found->status().message()), HasSubstr("give --engine")) << reply;
  }
}

// Ends when three of its kind have begun; or gives up, and says how many had.
Task<int> MeetThree(int& begun) {
  ++begun;
  for (int turn = 0; begun < 3 && turn < 1000; ++turn)
    co_await net::post(co_await net::this_coro::executor, net::use_awaitable);
  co_return begun;
}

TEST(All, TasksRunAtOnceAndTheirValuesKeepTheirOrder) {
  net::io_context io;
  const auto call = [&](auto task) {
    std::optional<std::vector<int>> values;
    Start<std::vector<int>>(io, std::move(task), [&](std::vector<int> all) { values = all; });
    io.restart();
    io.run();
    return values.value();
  };
  const auto slow = [](int value, int turns) -> Task<int> {
    for (; turns > 0; --turns)
      co_await net::post(co_await net::this_coro::executor, net::use_awaitable);
    co_return value;
  };
  int begun = 0;
  std::vector<Task<int>> met, ordered;
  for (int i = 0; i < 3; ++i) met.push_back(MeetThree(begun));
  EXPECT_THAT(call(All(std::move(met))), testing::ElementsAre(3, 3, 3));
  for (int i = 0; i < 3; ++i) ordered.push_back(slow(i, 10 - 3 * i));
  EXPECT_THAT(call(All(std::move(ordered))), testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(call(All(std::vector<Task<int>>())), testing::IsEmpty());
}

}  // namespace
}  // namespace lorry::engines
