#include "tests/sim/shrink.h"

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/swarm.h"

namespace lorry::sim {
namespace {

// A run that goes without something draws other numbers from there on. Some of these show whether
// the rule can still be broken.
constexpr uint64_t kSalts = 6;

std::string RuleOf(const Result& result) {
  return result.violation.substr(0, result.violation.find(" at "));
}

class Shrinker {
 public:
  explicit Shrinker(uint64_t seed) : seed_(seed), rule_(RuleOf(RunSeed({seed}))) {}

  bool fails() const { return !rule_.empty(); }

  void Run() {
    std::vector<std::string> names = kWorkNames;
    for (const FaultRow& row : kFaultRows) names.emplace_back(row.name);
    for (const MishapRow& row : kMishapRows) names.emplace_back(row.name);
    while (Pass(names)) {
    }
  }

  void Print() const {
    std::printf("%s still breaks with", rule_.c_str());
    for (const FaultRow& row : kFaultRows) PrintKept(row.name);
    for (const MishapRow& row : kMishapRows) PrintKept(row.name);
    for (const std::string& name : kWorkNames) PrintKept(name);
    std::printf("\nof %llu members and %lld seconds:\n",
                static_cast<unsigned long long>(kept_.members_most),
                static_cast<long long>(kept_.seconds_most));
    const Result result = RunSeed({.seed = seed_, .narrates = true, .without = kept_});
    std::printf("%s%s\n", result.state.c_str(), result.violation.c_str());
  }

 private:
  void PrintKept(const std::string& name) const {
    if (kept_.Has(name)) std::printf(" %s", name.c_str());
  }

  bool Try(Without less) {
    for (uint64_t salt = 0; salt < kSalts; ++salt) {
      less.salt = salt == 0 ? kept_.salt : salt;
      if (RuleOf(RunSeed({.seed = seed_, .without = less})) != rule_) continue;
      kept_ = std::move(less);
      return true;
    }
    return false;
  }

  // Whether anything could be left out.
  bool Pass(const std::vector<std::string>& names) {
    bool any = false;
    for (const uint64_t members : {1, 2, 3, 4, 8}) {
      if (members >= kept_.members_most) break;
      Without less = kept_;
      less.members_most = members;
      if (Try(std::move(less))) {
        any = true;
        break;
      }
    }
    for (const std::string& name : names) {
      if (!kept_.Has(name)) continue;
      Without less = kept_;
      less.names.insert(name);
      any = Try(std::move(less)) || any;
    }
    for (int64_t seconds = 2; seconds < kept_.seconds_most && seconds < 90; seconds *= 2) {
      Without less = kept_;
      less.seconds_most = seconds;
      if (!Try(std::move(less))) continue;
      any = true;
      break;
    }
    return any;
  }

  uint64_t seed_;
  std::string rule_;
  Without kept_;
};

}  // namespace

bool Shrink(uint64_t seed) {
  Shrinker shrinker(seed);
  if (!shrinker.fails()) return false;
  shrinker.Run();
  shrinker.Print();
  return true;
}

}  // namespace lorry::sim
