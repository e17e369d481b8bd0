// Any text as adapter_config.json: refused with a reason, or its canonical form is a fixed point,
// and what is rendered of it for an engine reads back.
#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/peft/base_model.h"
#include "lib/peft/config.h"
#include "lib/peft/render.h"

using namespace lorry;        // NOLINT(google-build-using-namespace)
using namespace lorry::peft;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto base = ParseBaseModel(text);
  if (base.ok()) (void)ShapeOf(*base, "model.layers.0.self_attn.q_proj");

  const auto config = ParseConfig(text);
  if (!config.ok()) {
    LORRY_CHECK(!ReasonOf(config.status()).empty());
    return 0;
  }
  const auto canonical = CanonicalConfig(*config);
  LORRY_CHECK(canonical.ok());
  const auto again = ParseConfig(*canonical);
  LORRY_CHECK(again.ok() && *CanonicalConfig(*again) == *canonical);

  for (const std::string_view path : {"model.layers.0.self_attn.q_proj", ""}) {
    (void)RankOf(*config, path);
    (void)AlphaOf(*config, path);
  }
  const std::vector<std::string> modules = {"q_proj"};
  for (const bool fold : {false, true}) {
    const auto rendered =
        RenderConfig(*config, modules, {.fold_rslora = fold, .base_model_name_or_path = ""});
    if (rendered.ok()) LORRY_CHECK(ParseConfig(*rendered).ok() || fold);
  }
  return 0;
}
