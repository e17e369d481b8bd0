// Door tables for tests, as sentences: TableOf({Open("policy", 12), ...}).
#pragma once

#include <algorithm>
#include <string>

#include "services/engine_proxy/machine/door_table.h"

namespace lorry::door::testing {

inline EngineName NameOf(const std::string& adapter, uint64_t number) {
  return EngineName(adapter + "-v" + std::to_string(number) + "-0123456789ab");
}

class TableMaker {
 public:
  explicit TableMaker(fleet::EngineKind kind = fleet::EngineKind::kSglang) {
    table_.revision = Revision(1);
    table_.boot = BootId("boot-1");
    table_.engine = kind;
    table_.lag_known = true;
  }
  TableMaker& Loaded(const std::string& adapter, uint64_t number, uint32_t lag = 0,
                     uint64_t run = 1) {
    EngineName name = NameOf(adapter, number);
    if (run != 1) name.value += "-r" + std::to_string(run);
    table_.routes.push_back({name,
                             {AdapterName(adapter), RunId(run), VersionNumber(number)},
                             Digest{"sha256-xxh3:" + name.value},
                             fleet::Render::kPlain,
                             lag});
    return *this;
  }
  TableMaker& Row(const std::string& adapter, fleet::RowMode mode, uint64_t target = 0,
                  bool catching_up = false) {
    table_.rows.push_back({AdapterName(adapter), mode, Epoch(7),
                           mode == fleet::RowMode::kOpen ? NameOf(adapter, target) : EngineName(),
                           catching_up});
    if (table_.FindRules(AdapterName(adapter)) == nullptr) {
      Rules({.adapter = AdapterName(adapter), .current_run = RunId(1)});
    }
    return *this;
  }
  TableMaker& Rules(fleet::DoorRules rules) {
    table_.rules.push_back(std::move(rules));
    std::sort(table_.rules.begin(), table_.rules.end());
    return *this;
  }
  TableMaker& Alias(const std::string& adapter, const std::string& alias, uint64_t number) {
    table_.aliases.push_back({AdapterName(adapter), AliasName(alias), NameOf(adapter, number)});
    return *this;
  }
  TableMaker& Binding(const std::string& name, const std::string& adapter, uint64_t number) {
    const EngineName target = NameOf(adapter, number);
    table_.bindings.push_back({name, target, Digest{"sha256-xxh3:" + target.value}, ""});
    std::sort(table_.bindings.begin(), table_.bindings.end());
    return *this;
  }
  proxy::DoorTable Make() {
    std::sort(table_.rows.begin(), table_.rows.end());
    std::sort(table_.routes.begin(), table_.routes.end());
    std::sort(table_.aliases.begin(), table_.aliases.end());
    for (proxy::DoorRow& row : table_.rows) {
      const proxy::DoorRoute* route = table_.FindRoute(row.target);
      row.behind = row.mode == fleet::RowMode::kOpen && route != nullptr && route->lag > 0;
    }
    return table_;
  }
  proxy::DoorTable& raw() { return table_; }

 private:
  proxy::DoorTable table_;
};

}  // namespace lorry::door::testing
