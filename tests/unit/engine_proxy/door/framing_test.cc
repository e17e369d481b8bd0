#include "services/engine_proxy/door/framing.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace lorry::door {
namespace {

// 0 when the head is accepted, else the status that it is refused with.
int Refused(std::string_view raw, HeadLimits limits = {}) {
  const auto result = ReadHead(raw, limits);
  const HeadProblem* problem = std::get_if<HeadProblem>(&result);
  return problem ? problem->status : 0;
}

std::string Why(std::string_view raw, HeadLimits limits = {}) {
  const auto result = ReadHead(raw, limits);
  const HeadProblem* problem = std::get_if<HeadProblem>(&result);
  return problem ? problem->message : "accepted";
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

// 0 when the head is not accepted.
int StatusOf(std::string_view raw) {
  const auto result = ReadReplyHead(raw, {});
  const ReplyHead* head = std::get_if<ReplyHead>(&result);
  return head ? head->status : 0;
}

TEST(Framing, ReadsAReplysHead) {
  const auto result = ReadReplyHead(
      "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 12\r\nX-A:  b c \r\n\r\n", {});
  const ReplyHead& head = std::get<ReplyHead>(result);
  EXPECT_EQ(head.status, 429);
  EXPECT_EQ(head.content_length, 12u);
  EXPECT_EQ(head.Get("x-a"), "b c");
  EXPECT_TRUE(head.keep_alive && !head.chunked);
  EXPECT_EQ(StatusOf("HTTP/1.1 200\r\n\r\n"), 200) << "the phrase is for people";
  EXPECT_FALSE(std::get<ReplyHead>(ReadReplyHead("HTTP/1.0 200 OK\r\n\r\n", {})).keep_alive);
}

TEST(Framing, RefusesAReplyThatTwoReadersMayUnderstandDifferently) {
  for (const char* line :
       {"HTTP/2 200 OK", "HTTP/1.2 200 OK", "HTTP/1.1 2000 OK", "HTTP/1.1 20", "HTTP/1.1  200 OK",
        "HTTP/1.1 2x0 OK", "HTTP/1.1 099 OK", "200 OK", ""}) {
    EXPECT_EQ(StatusOf(std::string(line) + "\r\n\r\n"), 0) << line;
  }
  for (const char* fields :
       {"Content-Length: 1\r\nContent-Length: 1\r\n", "Content-Length: -1\r\n", "A\r\n", "A: b\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n", "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "A: b\r\n c\r\n",
        "A : b\r\n", "A: \x01\r\n"}) {
    EXPECT_EQ(StatusOf("HTTP/1.1 200 OK\r\n" + std::string(fields) + "\r\n"), 0) << fields;
  }
  EXPECT_EQ(StatusOf("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), 0);
}

TEST(Framing, RefusesEveryHeadThatTwoReadersMayUnderstandDifferently) {
  const std::vector<std::pair<std::string, std::string_view>> cases = {
      {"Content-Length: 1\r\nContent-Length: 1\r\n", "Content-Length is given twice"},
      {"Content-Length: 1\r\ncontent-length: 2\r\n", "Content-Length is given twice"},
      {"Content-Length: 1, 1\r\n", "Content-Length is not a number"},
      {"Content-Length: +1\r\n", "Content-Length is not a number"},
      {"Content-Length: 0x1\r\n", "Content-Length is not a number"},
      {"Content-Length: 1 1\r\n", "Content-Length is not a number"},
      {"Content-Length:\r\n", "Content-Length is not a number"},
      {"Content-Length: 99999999999999999999999\r\n", "Content-Length is not a number"},
      {"Content-Length : 1\r\n", "a header name is not a token"},
      {"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", "exclude each other"},
      {"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n", "exclude each other"},
      {"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "is given twice"},
      {"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "is given twice"},
      {" Transfer-Encoding: chunked\r\n", "a header line is folded"},
      {"X: a\r\n b\r\n", "a header line is folded"},
      {"X: a\r\n\tb\r\n", "a header line is folded"},
      {"\tX: a\r\n", "a header line is folded"},
      {"X: a\nTransfer-Encoding: chunked\r\n", "a line does not end in CR LF alone"},
      {"X: a\rTransfer-Encoding: chunked\r\n", "a line does not end in CR LF alone"},
      {std::string("X: a\0b\r\n", 8), "a line does not end in CR LF alone"},
      {"X: a\x01\r\n", "a control character"},
      {"X: a\x1f"
       "b\r\n",
       "a control character"},
      {"X: a\x7f\r\n", "a control character"},
      {"X\r\n", "a header line has no colon"},
      {": a\r\n", "a header name is not a token"},
      {"X\x0b: a\r\n", "a header name is not a token"},
      {"Host: b\r\n", "there must be one Host"}};
  for (const auto& [fields, why] : cases) {
    EXPECT_EQ(Refused(Post(fields)), 400) << fields;
    EXPECT_NE(Why(Post(fields)).find(why), std::string::npos) << Why(Post(fields));
  }
  for (const char* coding : {"gzip", "xchunked", "chunked, gzip", "gzip, chunked",
                             "chunked,chunked", "identity", "\"chunked\"", "chunked;a=b", ""}) {
    EXPECT_EQ(Refused(Post(std::string("Transfer-Encoding: ") + coding + "\r\n")), 501) << coding;
  }
}

TEST(Framing, RefusesBadRequestLines) {
  const std::vector<std::pair<std::string, std::string_view>> cases = {
      {"GET  / HTTP/1.1", "the target is not a path"},
      {"GET /a b HTTP/1.1", "the target is not a path"},
      {"GET /", "the request line has no three parts"},
      {"GET", "the request line has no three parts"},
      {"G(T / HTTP/1.1", "the method is not a token"},
      {"GET a HTTP/1.1", "the target is not a path"},
      {"GET /\x7f HTTP/1.1", "the target is not a path"},
      {"GET /\xff HTTP/1.1", "the target is not a path"},
      {"GET /#x HTTP/1.1", "the target is not a path"},
      {"CONNECT a:1 HTTP/1.1", "the target is not a path"},
      {"OPTIONS * HTTP/1.1", "the target is not a path"},
      {" GET / HTTP/1.1", "the method is not a token"},
      {"GET http:///x HTTP/1.1", "the target names no host"},
      {"GET http:// HTTP/1.1", "the target names no host"},
      {"GET https://a/x HTTP/1.1", "the target is not a path"}};
  for (const auto& [line, why] : cases) {
    EXPECT_EQ(Refused(line + "\r\nHost: a\r\n\r\n"), 400) << line;
    EXPECT_EQ(Why(line + "\r\nHost: a\r\n\r\n"), why) << line;
  }
  for (const char* version : {"HTTP/2.0", "HTTP/1.2", "HTTP/1.10", "http/1.1", "HTTP/0.9"}) {
    EXPECT_EQ(Refused("GET / " + std::string(version) + "\r\nHost: a\r\n\r\n"), 505) << version;
  }
}

TEST(Framing, SeesAStrayByteWhereverItStands) {
  const std::string whole = Post("X: " + std::string(100, 'a') + "\r\n");
  const size_t value = whole.find("aaa");
  const std::pair<char, std::string_view> cases[] = {{'\r', "a line does not end in CR LF alone"},
                                                     {'\n', "a line does not end in CR LF alone"},
                                                     {'\0', "a line does not end in CR LF alone"},
                                                     {'\x01', "a control character"},
                                                     {'\x1f', "a control character"},
                                                     {'\x7f', "a control character"}};
  for (size_t i = 0; i < 100; ++i) {
    for (const auto& [byte, why] : cases) {
      std::string damaged = whole;
      damaged[value + i] = byte;
      EXPECT_NE(Why(damaged).find(why), std::string::npos) << i << ": " << Why(damaged);
    }
  }
}

TEST(Framing, AHeadIsWhole) {
  EXPECT_EQ(Why("GET / HTTP/1.1"), "a line does not end in CR LF alone");
  EXPECT_EQ(Why("GET / HTTP/1.1\r\nHost: a\r\n"), "a line does not end in CR LF alone");
  EXPECT_EQ(Why("GET /\n HTTP/1.1\r\nHost: a\r\n\r\n"), "a line does not end in CR LF alone");
  EXPECT_EQ(Why(Post("") + "x"), "bytes follow the head");
}

TEST(Framing, ReadsTargetsThatNameTheirHost) {
  const RequestHead bare = Accepted("GET HTTP://a HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(bare.path, "/");
  EXPECT_EQ(bare.query, "");
  EXPECT_EQ(Accepted("GET /~ HTTP/1.1\r\nHost: a\r\n\r\n").path, "/~");
  EXPECT_EQ(Accepted("GET http://a/x?y HTTP/1.1\r\nHost: A\r\n\r\n").query, "?y");
}

TEST(Framing, ReadsOldClients) {
  const RequestHead head =
      Accepted("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n");
  EXPECT_FALSE(head.http11 || head.expects_continue || head.has_body());
  EXPECT_TRUE(Accepted(Post("Content-Length: 1\r\n")).has_body());
  EXPECT_FALSE(Accepted("GET / HTTP/1.0\r\nConnection: other\r\n\r\n").keep_alive);
  EXPECT_TRUE(Accepted(Post("Connection: other\r\n")).keep_alive);
  EXPECT_FALSE(Accepted(Post("Connection: close, keep-alive\r\n")).keep_alive);
}

TEST(Framing, ReadsSeveralFieldsAsOneList) {
  const RequestHead head = Accepted(Post("A: \t1\t \r\na:\r\nB: x\r\nA: 2\r\nC: \r\n"));
  EXPECT_EQ(head.GetAll("a"), "1, 2");
  EXPECT_EQ(head.GetAll("c"), "");
  EXPECT_EQ(head.Get("A"), "1");
  EXPECT_EQ(head.Get("nosuch"), "");
  EXPECT_EQ(Accepted(Post("A: a\tb\r\n")).Get("a"), "a\tb");
}

TEST(Framing, OnlyLettersHaveTwoCases) {
  EXPECT_TRUE(EqualsIgnoreCase("AZaz09", "azAZ09"));
  EXPECT_FALSE(EqualsIgnoreCase("@", "`"));
  EXPECT_FALSE(EqualsIgnoreCase("[", "{"));
  EXPECT_FALSE(EqualsIgnoreCase("a", "ab"));
  EXPECT_FALSE(EqualsIgnoreCase("ab", "a"));
}

TEST(Framing, KnowsWhatSpeaksOfOneConnection) {
  EXPECT_TRUE(IsHopByHop("Proxy-Authorization", ""));
  EXPECT_TRUE(IsHopByHop("X-Mine", "a, x-mine"));
  EXPECT_TRUE(IsHopByHop("X-Mine", "x-mine,b"));
  EXPECT_FALSE(IsHopByHop("X-Mine", "x-mine-too"));
  EXPECT_FALSE(IsHopByHop("Accept", ""));
}

TEST(Framing, DropsWhatTheDoorKeepsToItself) {
  const RequestHead head =
      Accepted(Post("X-Lorry-A: 1\r\nx-lorry-: 2\r\nX-Lorr: 3\r\nAccept: 4\r\n"));
  std::string out;
  static constexpr std::string_view kDropped[] = {"x-lorry-*", "host"};
  AppendForwardable(head.fields, FieldNames(kDropped), &out);
  EXPECT_EQ(out, "X-Lorr: 3\r\nAccept: 4\r\n");
  const FieldNames names(kDropped);
  EXPECT_TRUE(names.Has("HOST"));
  EXPECT_FALSE(names.Has("Hose")) << "as long, and begins with the same letter";
  EXPECT_FALSE(names.Has(""));
}

TEST(Framing, HoldsTheHostToOneMeaning) {
  EXPECT_EQ(Accepted("GET http://a/x?y HTTP/1.1\r\nHost: A\r\n\r\n").path, "/x");
  EXPECT_EQ(Refused("GET http://a/x HTTP/1.1\r\nHost: b\r\n\r\n"), 400);
  EXPECT_EQ(Refused("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(Refused("GET / HTTP/1.1\r\nHost:\r\n\r\n"), 400);
  EXPECT_EQ(Why("GET http://a/x HTTP/1.1\r\nHost: b\r\n\r\n"), "Host and the target's host differ");
  EXPECT_EQ(Why("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 needs a Host");
  EXPECT_EQ(Why("GET / HTTP/1.1\r\nHost:\r\n\r\n"), "there must be one Host with a value");
  EXPECT_EQ(Refused("GET / HTTP/1.0\r\n\r\n"), 0) << "which knew no Host";
  EXPECT_EQ(Why("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
            "HTTP/1.0 has no Transfer-Encoding");
}

TEST(Framing, BoundsSizeCountAndExpectations) {
  EXPECT_EQ(Refused(Post("X: " + std::string(70'000, 'a') + "\r\n")), 431);
  EXPECT_EQ(Refused(Post("A: 1\r\nB: 2\r\n"), {.fields = 2}), 431);
  EXPECT_EQ(Refused(Post(""), {.bytes = Post("").size()}), 0);
  EXPECT_EQ(Refused(Post(""), {.bytes = Post("").size() - 1}), 431);
  EXPECT_EQ(Refused(Post("A: 1\r\n"), {.fields = 2}), 0);
  EXPECT_EQ(Refused(Post("Expect: 200-ok\r\n")), 417);
}

TEST(Framing, ForwardsOnlyWhatIsNotOfTheConnection) {
  const RequestHead head = Accepted(
      Post("Connection: close, X-Mine\r\nX-Mine: 1\r\nX-Keep: 2\r\nTE: trailers\r\nUpgrade: h2c\r\n"
           "Keep-Alive: 5\r\nAccept: */*\r\n"));
  std::string out;
  static constexpr std::string_view kDropped[] = {"host"};
  AppendForwardable(head.fields, FieldNames(kDropped), &out);
  EXPECT_EQ(out, "X-Keep: 2\r\nAccept: */*\r\n");
}

}  // namespace
}  // namespace lorry::door
