// Reads requests off a client's connection, one after the other.
#pragma once

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <variant>

#include "services/engine_proxy/door/client.h"
#include "services/engine_proxy/door/framing.h"

namespace lorry::door {

class RequestReader {
 public:
  RequestReader(Shard& shard, Client& client);

  // A problem with status 0: the connection has ended, and nobody is left to be told.
  Task<std::variant<RequestHead, HeadProblem>> ReadHead();
  // True where the client has sent the whole body with its head, as it does with most: then `body`
  // has it, counted by `lease`, and there is nothing for ReadBody to do.
  bool TakeBody(const RequestHead& head, std::string* body, BodyLease* lease);
  // Nothing: `body` is whole, and counted by `lease`.
  Task<std::optional<HeadProblem>> ReadBody(const RequestHead& head, std::string* body,
                                            BodyLease* lease);

 private:
  using Problem = std::optional<HeadProblem>;
  Task<Problem> ReadSized(size_t length, std::string* body, BodyLease* lease);
  Task<Problem> ReadChunked(std::string* body, BodyLease* lease);
  Task<bool> ReadMore(size_t room);
  void GiveRoomBack();
  HeadProblem TooLarge() const;

  Client& client_;
  const DoorLimits& limits_;
  // Reads a chunked body; the head is given to it again for the framing.
  std::optional<http::request_parser<http::string_body>> parser_;
  size_t head_bytes_ = 0;      // of the request that begins in the client's buffer
  bool continue_due_ = false;  // the client waits for "100 Continue"
};

}  // namespace lorry::door
