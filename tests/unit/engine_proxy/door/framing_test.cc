#include "services/engine_proxy/door/framing.h"

#include <gtest/gtest.h>

#include <string>

namespace lorry::door {
namespace {

// 0 when the head is accepted, else the status that it is refused with.
int Refused(std::string_view raw, HeadLimits limits = {}) {
  const auto result = ReadHead(raw, limits);
  const HeadProblem* problem = std::get_if<HeadProblem>(&result);
  return problem ? problem->status : 0;
}

RequestHead Accepted(std::string_view raw) {
  auto result = ReadHead(raw, {});
  if (const auto* problem = std::get_if<HeadProblem>(&result)) {
    ADD_FAILURE() << problem->message;
    return {};
  }
  return std::get<RequestHead>(std::move(result));
}

std::string Post(std::string_view fields) {
  return "POST /generate HTTP/1.1\r\nHost: a\r\n" + std::string(fields) + "\r\n";
}

TEST(Framing, ReadsAnOrdinaryHead) {
  const RequestHead head = Accepted(
      "POST /generate?x=1 HTTP/1.1\r\nHost: a:1\r\nContent-Length: 12\r\nX-A:  b c \r\n"
      "Expect: 100-Continue\r\n\r\n");
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.path, "/generate");
  EXPECT_EQ(head.query, "?x=1");
  EXPECT_EQ(head.content_length, 12u);
  EXPECT_EQ(head.Get("x-a"), "b c");
  EXPECT_TRUE(head.keep_alive && head.expects_continue && !head.chunked);
}

TEST(Framing, KnowsWhenAConnectionStays) {
  EXPECT_FALSE(Accepted(Post("Connection: x, Close\r\n")).keep_alive);
  EXPECT_FALSE(Accepted("GET / HTTP/1.0\r\n\r\n").keep_alive);
  EXPECT_TRUE(Accepted("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keep_alive);
  EXPECT_TRUE(Accepted(Post("Transfer-Encoding: Chunked\r\n")).chunked);
}

TEST(Framing, RefusesEveryHeadThatTwoReadersMayUnderstandDifferently) {
  for (const std::string& fields : std::vector<std::string>{
           "Content-Length: 1\r\nContent-Length: 1\r\n",
           "Content-Length: 1\r\ncontent-length: 2\r\n",
           "Content-Length: 1, 1\r\n",
           "Content-Length: +1\r\n",
           "Content-Length: 0x1\r\n",
           "Content-Length: 1 1\r\n",
           "Content-Length:\r\n",
           "Content-Length: 99999999999999999999999\r\n",
           "Content-Length : 1\r\n",
           "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
           " Transfer-Encoding: chunked\r\n",
           "X: a\r\n b\r\n",
           "X: a\r\n\tb\r\n",
           "X: a\nTransfer-Encoding: chunked\r\n",
           "X: a\rTransfer-Encoding: chunked\r\n",
           std::string("X: a\0b\r\n", 8),
           "X: a\x01\r\n",
           "X\r\n",
           ": a\r\n",
           "X\x0b: a\r\n",
           "Host: b\r\n",
       }) {
    EXPECT_EQ(Refused(Post(fields)), 400) << fields;
  }
  for (const char* coding : {"gzip", "xchunked", "chunked, gzip", "gzip, chunked",
                             "chunked,chunked", "identity", "\"chunked\"", "chunked;a=b", ""}) {
    EXPECT_EQ(Refused(Post(std::string("Transfer-Encoding: ") + coding + "\r\n")), 501) << coding;
  }
}

TEST(Framing, RefusesBadRequestLines) {
  for (const char* line :
       {"GET  / HTTP/1.1", "GET /a b HTTP/1.1", "GET /", "G(T / HTTP/1.1", "GET a HTTP/1.1",
        "GET /\x7f HTTP/1.1", "GET /#x HTTP/1.1", "CONNECT a:1 HTTP/1.1", "OPTIONS * HTTP/1.1",
        " GET / HTTP/1.1", "GET http:///x HTTP/1.1", "GET https://a/x HTTP/1.1"}) {
    EXPECT_EQ(Refused(std::string(line) + "\r\nHost: a\r\n\r\n"), 400) << line;
  }
  for (const char* version : {"HTTP/2.0", "HTTP/1.2", "HTTP/1.10", "http/1.1", "HTTP/0.9"}) {
    EXPECT_EQ(Refused("GET / " + std::string(version) + "\r\nHost: a\r\n\r\n"), 505) << version;
  }
}

TEST(Framing, HoldsTheHostToOneMeaning) {
  EXPECT_EQ(Accepted("GET http://a/x?y HTTP/1.1\r\nHost: A\r\n\r\n").path, "/x");
  EXPECT_EQ(Refused("GET http://a/x HTTP/1.1\r\nHost: b\r\n\r\n"), 400);
  EXPECT_EQ(Refused("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(Refused("GET / HTTP/1.1\r\nHost:\r\n\r\n"), 400);
  EXPECT_EQ(Refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
}

TEST(Framing, BoundsSizeCountAndExpectations) {
  EXPECT_EQ(Refused(Post("X: " + std::string(70'000, 'a') + "\r\n")), 431);
  EXPECT_EQ(Refused(Post("A: 1\r\nB: 2\r\n"), {.fields = 2}), 431);
  EXPECT_EQ(Refused(Post("A: 1\r\n"), {.fields = 2}), 0);
  EXPECT_EQ(Refused(Post("Expect: 200-ok\r\n")), 417);
}

TEST(Framing, ForwardsOnlyWhatIsNotOfTheConnection) {
  const RequestHead head = Accepted(
      Post("Connection: close, X-Mine\r\nX-Mine: 1\r\nX-Keep: 2\r\nTE: trailers\r\nUpgrade: h2c\r\n"
           "Keep-Alive: 5\r\nAccept: */*\r\n"));
  std::string out;
  AppendForwardable(head.fields, {"host"}, &out);
  EXPECT_EQ(out, "X-Keep: 2\r\nAccept: */*\r\n");
}

}  // namespace
}  // namespace lorry::door
