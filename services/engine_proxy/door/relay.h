// Relays one request to the engine and its reply to the client, piece by piece.
//
// On vLLM the engine's connection is closed when the client leaves, which aborts the request. On
// SGLang the request is aborted by its id once its first token was seen, and read to the end,
// because SGLang forgets to release the adapter of a request whose connection breaks
// (sglang#36333); it counts until then.
#pragma once

#include <string>
#include <string_view>

#include "services/engine_proxy/door/exchange.h"
#include "services/engine_proxy/door/upstream.h"

namespace lorry::door {

class Relay {
 public:
  explicit Relay(Exchange& x);
  // True when the client's connection may carry another request.
  Task<bool> Run(std::string body);

 private:
  // True when the client got a whole reply.
  Task<bool> RelayBody(std::string head, bool chunked);
  void OnClientLeft();
  void OnPiece(const UpstreamCall::Piece& piece);
  void AbortOnce();

  Exchange& x_;
  UpstreamCall call_;
  bool streaming_ = false;
  bool abort_sent_ = false;
};

}  // namespace lorry::door
