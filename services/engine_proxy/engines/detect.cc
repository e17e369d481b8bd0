#include <boost/asio/post.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "services/engine_proxy/engines/call.h"
#include "services/engine_proxy/engines/engines.h"
#include "services/engine_proxy/engines/wire.h"

namespace lorry::engines {
namespace {

absl::Status Unknown(const std::string& url, absl::string_view why) {
  return Error(absl::StatusCode::kFailedPrecondition, "ENGINE_UNKNOWN",
               absl::StrCat("what answers at ", url,
                            " is neither SGLang nor vLLM; give --engine "
                            "the engine's own address (",
                            why, ")"));
}

Task<absl::StatusOr<std::unique_ptr<Engine>>> Detect(boost::asio::io_context& io, HttpTarget target,
                                                     EngineOptions options,
                                                     HttpClient::Clock::time_point deadline) {
  const HttpClient client(io, std::move(target));
  HttpCall call{.method = "GET", .path = "/v1/models", .body = "", .bearer = options.api_key};
  const auto reply = co_await client.Call(std::move(call), deadline);
  if (!reply.ok()) co_return reply.status();
  if (reply->status == 401 || reply->status == 403)
    co_return StatusOfRefusal("GET /v1/models", *reply);
  const auto models = ParseModels(*reply);
  if (!models.ok()) co_return Unknown(options.url, models.status().message());
  if (models->owned_by == "sglang") co_return MakeSglang(io, std::move(options));
  if (models->owned_by == "vllm") co_return MakeVllm(io, std::move(options));
  co_return Unknown(options.url, absl::StrCat("its model is owned by '", models->owned_by, "'"));
}

}  // namespace

void DetectEngine(boost::asio::io_context& io, EngineOptions options, Engine::Millis within,
                  Engine::Answer<absl::StatusOr<std::unique_ptr<Engine>>> answer) {
  auto target = ParseHttpUrl(options.url);
  if (!target.ok()) {
    boost::asio::post(io,
                      [answer = std::move(answer), status = target.status()] { answer(status); });
    return;
  }
  Start<absl::StatusOr<std::unique_ptr<Engine>>>(
      io, Detect(io, *std::move(target), std::move(options), DeadlineAfter(within)),
      std::move(answer));
}

}  // namespace lorry::engines
