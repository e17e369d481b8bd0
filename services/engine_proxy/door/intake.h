// Reads requests off a client's connection, one after the other.
#pragma once

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "services/engine_proxy/door/client.h"
#include "services/engine_proxy/door/framing.h"

namespace lorry::door {

class RequestReader {
 public:
  RequestReader(Shard& shard, Client& client);

  // The next request begins: what the last one left in the client's buffer is given up.
  void Begin();
  // The request's head; nothing where it is not whole yet: then await ReadMore and hand its result
  // to Took, which is false where the connection has ended.
  std::optional<std::variant<RequestHead, HeadProblem>> TakeHead();
  auto ReadMore() { return client_.ReadMore(kReadBytes); }
  bool Took(const Transferred& read);

  // True where the client has sent the whole body with its head, as it does with most: then `body`
  // has it, counted by `lease`, and there is nothing for ReadBody to do. A body lies in the
  // client's buffer until ForgetBody.
  bool TakeBody(const RequestHead& head, std::string_view* body, BodyLease* lease);
  // Reads the rest of the body. Nothing: `body` is whole, and counted by `lease`. A refusal with
  // status 0: the connection has ended, and nobody is left to be told.
  Task<std::optional<Refused>> ReadBody(const RequestHead& head, std::string_view* body,
                                        BodyLease* lease);
  // The same of a call that carries tensors, which may have far more than other bodies: it waits for
  // the room of all of it, and then may not be slow, as others wait for that room. It is read into
  // `body`, as copying it would stop whatever else its thread does.
  Task<std::optional<Refused>> ReadTensors(const RequestHead& head, std::string* body,
                                           BodyLease* lease);
  void ForgetBody();

 private:
  static constexpr size_t kReadBytes = 4 * 1024;
  using Problem = std::optional<Refused>;
  Task<Problem> ReadSized(size_t length, std::string_view* body, BodyLease* lease);
  Task<Problem> ReadSizedTensors(size_t length, std::string* body, BodyLease* lease);
  Task<Problem> AwaitRoom(size_t bytes, BodyLease* lease);
  Task<Problem> ReadChunked(std::string_view* body, BodyLease* lease);
  Task<bool> ReadMoreOfBody(size_t room);
  // Adds how many bytes came to `read`.
  Task<Problem> ReadMoreTensors(asio::mutable_buffer room, int64_t until_ms, size_t* read);
  Task<bool> SendContinue();
  std::string_view Here() const;  // what the client's buffer holds
  size_t MostBytes() const;
  Refused TooLarge(std::optional<size_t> length) const;

  Shard& shard_;
  Client& client_;
  const DoorLimits& limits_;
  // Reads a chunked body, and keeps it; the head is given to it again for the framing.
  std::optional<http::request_parser<http::string_body>> parser_;
  size_t searched_ = 0;        // of a head whose end has not come
  bool began_ = false;         // some of the head is here
  size_t head_bytes_ = 0;      // of the request that begins in the client's buffer
  size_t body_bytes_ = 0;      // of a body that lies in the client's buffer
  bool has_tensors_ = false;   // the body whose rest is read: it is of such a call
  bool continue_due_ = false;  // the client waits for "100 Continue"
};

}  // namespace lorry::door
