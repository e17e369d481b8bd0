// What an engine sends, in pieces of every size.
#include "services/engine_proxy/door/reply_parser.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace lorry::door {
namespace {

struct Read {
  std::string body;
  bool is_done = false;
  bool is_broken = false;
  bool keep_alive = false;
  size_t left = 0;  // bytes that are no part of it
};

// As if `step` bytes came at a time.
Read ReadBy(size_t step, std::string_view reply, bool answers_head = false) {
  ReplyParser parser(answers_head);
  Read read;
  std::string here;
  for (size_t at = 0; at < reply.size() && !read.is_broken; at += step) {
    here += reply.substr(at, step);
    while (!parser.has_head() || !parser.is_done()) {
      parser.ForgetPieces();
      const std::optional<size_t> took = parser.Take(here);
      read.is_broken = !took;
      for (const asio::const_buffer& piece : parser.pieces()) {
        read.body.append(static_cast<const char*>(piece.data()), piece.size());
      }
      here.erase(0, took.value_or(0));
      if (took.value_or(0) == 0) break;
    }
  }
  read.is_done = parser.has_head() && parser.is_done();
  read.keep_alive = parser.has_head() && parser.keep_alive();
  read.left = here.size();
  return read;
}

constexpr std::string_view kOk = "HTTP/1.1 200 OK\r\n";

std::string Ok(std::string_view fields, std::string_view body) {
  return std::string(kOk) + std::string(fields) + "\r\n" + std::string(body);
}

class InSteps : public testing::TestWithParam<size_t> {
 protected:
  Read Of(std::string_view reply, bool answers_head = false) {
    return ReadBy(GetParam(), reply, answers_head);
  }
};

TEST_P(InSteps, EndsWithItsLength) {
  const Read read = Of(Ok("Content-Length: 5\r\n", "helloHTTP"));
  EXPECT_EQ(read.body, "hello");
  EXPECT_TRUE(read.is_done && read.keep_alive);
  EXPECT_EQ(read.left, 4u) << "what follows is no part of it";
  EXPECT_TRUE(Of(Ok("Content-Length: 0\r\n", "")).is_done);
  EXPECT_FALSE(Of(Ok("Content-Length: 5\r\n", "hell")).is_done);
}

TEST_P(InSteps, EndsWithItsLastChunk) {
  const Read read = Of(Ok("Transfer-Encoding: chunked\r\n",
                          "4;x=y\r\nsome\r\n6\r\n words\r\n0\r\nTrailer: a\r\n\r\n"));
  EXPECT_EQ(read.body, "some words");
  EXPECT_TRUE(read.is_done && read.keep_alive && !read.is_broken);
  EXPECT_EQ(read.left, 0u);
  EXPECT_FALSE(Of(Ok("Transfer-Encoding: chunked\r\n", "4\r\nsome\r\n")).is_done);
  EXPECT_TRUE(Of(Ok("Transfer-Encoding: chunked\r\n", "nonsense\r\n")).is_broken);
  EXPECT_TRUE(Of(Ok("Transfer-Encoding: chunked\r\n", "ffffffffffffffffff\r\n")).is_broken);
}

TEST_P(InSteps, EndsWithItsConnection) {
  const Read read = Of(Ok("", "some words"));
  EXPECT_EQ(read.body, "some words");
  EXPECT_FALSE(read.is_done || read.keep_alive);
}

TEST_P(InSteps, HasNoBodyWhereNoneCanBe) {
  const std::string fields = "Content-Length: 5\r\n\r\n";
  EXPECT_TRUE(Of(std::string(kOk) + fields, /*answers_head=*/true).is_done);
  EXPECT_TRUE(Of("HTTP/1.1 204 No Content\r\n\r\n").is_done);
  EXPECT_TRUE(Of("HTTP/1.1 304 Not Modified\r\n" + fields).is_done);
  EXPECT_TRUE(Of("HTTP/1.1 100 Continue\r\n\r\n").is_done);
}

TEST_P(InSteps, IsNoReplyWhereItsHeadIsNone) {
  EXPECT_TRUE(Of("SSH-2.0\r\n\r\n").is_broken);
  EXPECT_TRUE(Of(std::string(kOk) + "A: " + std::string(70'000, 'a')).is_broken) << "endless";
}

INSTANTIATE_TEST_SUITE_P(Bytes, InSteps, testing::Values(1, 2, 7, 64, 100'000));

}  // namespace
}  // namespace lorry::door
