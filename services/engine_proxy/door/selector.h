// How clients spell an adapter: `policy`, `policy@latest`, `policy@12`, `policy-v12`,
// `policy@eval`, `@base`.
//
// Pure functions, any thread. `policy-v12` has one reading because adapter names may not end in
// -v<digits>.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/ids.h"

namespace lorry::door {

enum class SelectorKind { kNone, kLatest, kNumber, kAlias, kBase };

struct Selector {
  SelectorKind kind = SelectorKind::kNone;
  AdapterName adapter;  // empty: nothing named, or a bare `@base`
  VersionNumber number;
  AliasName alias;
};

// Never fails: what has no meaning resolves to nothing later. Empty text is kNone.
Selector ParseSelector(std::string_view text);

// Up to three of `known` that a person may have meant by `typed`, nearest first.
std::vector<std::string> NearestNames(std::string_view typed,
                                      const std::vector<std::string>& known);

}  // namespace lorry::door
