// Makes engines: of a known kind, or by asking the server what it is.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "services/engine_proxy/engines/engine.h"

namespace lorry::engines {

struct EngineOptions {
  std::string url;        // http://127.0.0.1:30000, the engine's own port
  std::string api_key;    // --api-key of the engine, for generating and for looking at it
  std::string admin_key;  // --admin-api-key of SGLang, for control calls; the api_key where empty
  // How long a probe is asked again that the engine sheds. Pauses and other loads wait meanwhile, and
  // get their turn before it is tried anew.
  Engine::Millis shed_for{30'000};
};

// INVALID_ARGUMENT ENGINE_URL_INVALID. `io` must outlive the engine and its calls.
absl::StatusOr<std::unique_ptr<Engine>> MakeSglang(boost::asio::io_context& io,
                                                   EngineOptions options);
absl::StatusOr<std::unique_ptr<Engine>> MakeVllm(boost::asio::io_context& io,
                                                 EngineOptions options);

// Asks GET /v1/models who owns the model. FAILED_PRECONDITION ENGINE_UNKNOWN: neither SGLang nor
// vLLM; otherwise as Engine's verbs.
void DetectEngine(boost::asio::io_context& io, EngineOptions options, Engine::Millis within,
                  Engine::Answer<absl::StatusOr<std::unique_ptr<Engine>>> answer);

}  // namespace lorry::engines
