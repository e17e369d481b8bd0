#include "lib/peft/traits.h"

#include <algorithm>
#include <map>
#include <set>

#include "lib/peft/config.h"
#include "lib/peft/names.h"

namespace lorry::peft {

Traits TraitsOf(const Config& config, std::span<const AdapterModule> modules) {
  Traits traits;
  traits.rslora = config.use_rslora;
  std::set<std::string> names;
  std::map<std::string_view, std::set<std::string_view>> siblings;  // by parent
  for (const AdapterModule& module : modules) {
    const std::string_view path = module.path, name = ModuleOf(path);
    traits.rank_max = std::max(traits.rank_max, module.rank);
    if (RankOf(config, path) != config.r || AlphaOf(config, path) != config.lora_alpha) {
      traits.rank_or_alpha_pattern = true;
    }
    names.emplace(name);
    siblings[path.substr(0, path.size() - name.size())].insert(name);
  }
  for (const auto& [parent, group] : siblings) {
    const auto has = [&, &group = group](std::string_view name) { return group.contains(name); };
    traits.partial_groups |= has("q_proj") != has("v_proj") || (has("k_proj") && !has("q_proj")) ||
                             (has("up_proj") && !has("gate_proj"));
  }
  traits.modules.assign(names.begin(), names.end());
  return traits;
}

}  // namespace lorry::peft
