// `lorry doctor`: findings about services, engines and this machine, each with a remedy.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "clients/cli/context.h"
#include "lorry/sync/v1/sync.pb.h"

namespace lorry::cli {

struct Finding {
  enum class Grade { kGood, kWarning, kBad };
  Grade grade = Grade::kGood;
  std::string what;
  std::string remedy = {};
};

// The slots that a member needs, as the orchestrator counts them, against those that its engine has.
// No limit that is told: SGLang has none then; vLLM always has one, and tells it in dev mode alone.
// None: nothing is known of the engine, or nothing is to be served there. Pure.
std::optional<Finding> JudgeSlots(const lorry::sync::v1::MemberStatus& member);

// Why the orchestrator decides nothing although it answers: its own records or the store's are lost; or
// each pool whose version waits, but where an operator or the policy wants it so. Pure.
std::vector<Finding> JudgeDecisions(const lorry::sync::v1::GetStatusResponse& status);

// Who runs which version of Lorry, "this program" among them; a warning where two differ before the
// last dot, as messages may have changed between them. Pure.
Finding JudgeVersions(const std::map<std::string, std::string>& version_by_name);

// A certificate that ends at `end`, Unix seconds, or none that can be read: a warning in its last week.
// `renew`: what to do then. Pure.
Finding JudgeCertificate(const std::string& whose, std::optional<int64_t> end, int64_t now,
                         const std::string& renew);

std::vector<Finding> LookAtMachine();
std::string RenderFindings(const std::vector<Finding>& findings, bool colour);

// The verb. Exit status 1 when something is broken.
absl::StatusOr<int> Doctor(Context& context, const Arguments& arguments);

}  // namespace lorry::cli
