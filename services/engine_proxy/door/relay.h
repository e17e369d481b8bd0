// Relays one request to the engine and its reply to the client, piece by piece.
//
// On vLLM the engine's connection is closed when the client leaves, which aborts the request. On
// SGLang the request is aborted by its id once its first token was seen, and read to the end,
// because SGLang forgets to release the adapter of a request whose connection breaks
// (sglang#36333); it counts until then. The same happens when the door gives an engine up that was
// silent for too long.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "services/engine_proxy/door/exchange.h"
#include "services/engine_proxy/door/upstream.h"

namespace lorry::door {

class Relay {
 public:
  explicit Relay(Exchange& x);
  // `body` lasts until the exchange forgets it. True when the client's connection may carry another request.
  Task<bool> Run(std::span<const std::string_view> body);

 private:
  // True when the client's connection may carry another request.
  Task<bool> RelayReply();
  // Makes the head; without a length the body is in chunks, or ends with the connection.
  void BeginReply(bool keep, std::optional<uint64_t> length);
  void Restore(const UpstreamCall::Piece& piece);
  // What goes out for `piece`, with the head before it and the framing around it.
  std::span<asio::const_buffer> Framed(const UpstreamCall::Piece& piece);
  // Why no more comes of the reply.
  Task<bool> BreakOff(CallResult why);
  void OnClientLeft();
  void OnPiece(const UpstreamCall::Piece& piece);

  Exchange& x_;
  UpstreamCall call_;
  std::string head_;      // of the reply, until it is sent
  std::string restored_;  // with the client's own names, until it is sent
  std::vector<asio::const_buffer> out_;
  bool gathers_ = false;  // nothing is sent before the end
  bool chunked_ = false;
  std::optional<AnswerWatch> watch_;  // of a stream of SGLang's
};

}  // namespace lorry::door
