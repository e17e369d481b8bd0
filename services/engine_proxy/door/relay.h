// Relays one request to the engine and its reply to the client, piece by piece.
//
// On vLLM the engine's connection is closed when the client leaves, which aborts the request. On
// SGLang the request is aborted by its id once its first token was seen, and read to the end,
// because SGLang forgets to release the adapter of a request whose connection breaks
// (sglang#36333); it counts until then. The same happens when the door gives an engine up that was
// silent for too long.
#pragma once

#include "services/engine_proxy/door/exchange.h"

namespace lorry::door {

// The engine gets what the exchange has spliced, or else its body. True when the client's
// connection may carry another request.
Task<bool> RelayRequest(Exchange& x);

}  // namespace lorry::door
