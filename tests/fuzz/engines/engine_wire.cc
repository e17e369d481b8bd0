// Any bytes as an engine's reply, to everything that reads replies: a value, or a status with a
// reason. The first byte chooses the HTTP status.
#include <array>
#include <string>

#include "lib/base/check.h"
#include "lib/base/error.h"
#include "services/engine_proxy/engines/wire.h"

using namespace lorry;           // NOLINT(google-build-using-namespace)
using namespace lorry::engines;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::array<unsigned, 8> kStatuses = {200, 200, 200, 400, 401, 404, 500, 503};
constexpr size_t kErrorTextBytesMax = 512;

template <typename T>
void Judge(const absl::StatusOr<T>& read) {
  LORRY_CHECK(read.ok() || !ReasonOf(read.status()).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const HttpReply reply{.status = kStatuses[data[0] % kStatuses.size()],
                        .body = std::string(reinterpret_cast<const char*>(data + 1), size - 1)};
  LORRY_CHECK(ErrorText(reply).size() <= kErrorTextBytesMax);
  LORRY_CHECK(!ReasonOf(StatusOfRefusal("GET /", reply)).empty());
  Judge(ParseModels(reply));
  Judge(ParseSglangInfo(reply));
  Judge(ParseSglangOccupancy(reply));
  Judge(ParseSglangToken(reply));
  Judge(ParseVllmOccupancy(reply));
  Judge(ParseVllmBoot(reply));
  Judge(ParseVllmToken(reply));
  const peft::ReferencePrompt prompt{.tokens = {1, 2, 3}, .logprobs = {-1, -2}};
  for (const auto& read :
       {ParseSglangReference(reply, prompt), ParseVllmReference(reply, prompt)}) {
    Judge(read);
    LORRY_CHECK(!read.ok() || read->empty() || read->size() == prompt.logprobs.size());
  }
  EngineFacts facts;
  AddVllmServerInfo(reply, facts);
  AddVllmMetrics(reply.body, facts);
  (void)SumOfMetric(reply.body, "vllm:num_requests_running");
  for (const auto kind : {fleet::EngineKind::kSglang, fleet::EngineKind::kVllm}) {
    (void)IsUnknownAdapter(kind, reply);
  }
  (void)IsAlreadyLoaded(reply);
  (void)IsMissingRoute(reply);
  return 0;
}
