// Any bytes as a request body on each kind of route: refused with a reason, or the rewritten body
// names the resolved adapter and nothing else, wherever the client had named one.
#include <algorithm>
#include <string>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/error.h"
#include "services/engine_proxy/door/merge_stream.h"
#include "services/engine_proxy/door/restore.h"
#include "services/engine_proxy/door/rewrite.h"

using namespace lorry;        // NOLINT(google-build-using-namespace)
using namespace lorry::door;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const EngineFacts engine{.base_models = {"base"}};
  for (const auto kind : {fleet::EngineKind::kSglang, fleet::EngineKind::kVllm}) {
    for (const auto shape : {BodyShape::kGenerate, BodyShape::kEncode, BodyShape::kCompletion,
                             BodyShape::kChat, BodyShape::kEmbedding, BodyShape::kMessages}) {
      const PaddedBody body(text);
      const auto facts = ReadBody(kind, shape, engine, body);
      if (!facts.ok()) {
        LORRY_CHECK(!ReasonOf(facts.status()).empty());
        continue;
      }
      const std::vector<Resolved> resolved(facts->adapters.size(),
                                           Resolved{.name = EngineName("the-one")});
      LORRY_CHECK(!resolved.empty());
      const std::vector<std::string> ids(std::max<size_t>(facts->batch, 1), "id");
      const PaddedBody rewritten(
          ApplyEdits(body.view(), RewriteEdits(kind, shape, engine, *facts, resolved, ids)));
      const auto again = ReadBody(kind, shape, engine, rewritten);
      LORRY_CHECK(again.ok() && again->adapters.size() == facts->adapters.size());
      for (const std::string& adapter : again->adapters) LORRY_CHECK(adapter == "the-one");
      LORRY_CHECK(again->n == 1 && again->stream == facts->stream);
    }
  }
  // What an engine may answer.
  const Samples of{.n = 2, .batch = size % 3};
  (void)MergeOpenAi({text, text}, of);
  (void)MergeGenerate({text, text}, of);
  for (const auto shape : {BodyShape::kGenerate, BodyShape::kChat}) {
    StreamMerger merger(shape, of);
    std::string out;
    const bool fed = merger.Feed(0, text, &out).ok() && merger.Feed(1, text + "\n\n", &out).ok();
    LORRY_CHECK(!fed || merger.held_bytes() <= text.size() + 1);
    (void)merger.End(&out);
  }
  std::string whole;
  std::string halves;
  ModelRestorer(R"("the-one")").Feed(text, &whole);
  ModelRestorer restorer(R"("the-one")");
  restorer.Feed(text.substr(0, size / 2), &halves);
  restorer.Feed(text.substr(size / 2), &halves);
  LORRY_CHECK(whole == halves);
  const IdSeries ids("00112233445566778899aabbccddeeff", 2);
  for (const std::vector<std::string>& values :
       {std::vector<std::string>{R"("12")"}, {R"("12")", R"("13")"}}) {
    std::string told;
    std::string told_by_halves;
    WeightVersions(values, ids).Feed(text, &told);
    WeightVersions versions(values, ids);
    versions.Feed(text.substr(0, size / 2), &told_by_halves);
    versions.Feed(text.substr(size / 2), &told_by_halves);
    LORRY_CHECK(told == told_by_halves);
  }
  return 0;
}
