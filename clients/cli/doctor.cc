#include "clients/cli/doctor.h"

#include <ctime>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "clients/cli/reach.h"
#include "clients/cli/remedies.h"
#include "lib/base/counted.h"
#include "lib/base/error.h"
#include "lib/rpc/certificates.h"

namespace lorry::cli {
namespace {

using Grade = Finding::Grade;
using lorry::sync::v1::GetStatusResponse;
using lorry::sync::v1::MemberStatus;

// One examination; findings in the order in which a reader wants to mend them.
class Examination {
 public:
  explicit Examination(client::Client& client, const Context& context)
      : client_(client), context_(context) {}

  std::vector<Finding> Run() {
    LookAtStore();
    LookAtOrchestrator();
    const auto proxies = client_.ProxyStatuses(status_.members());
    for (size_t i = 0; i < proxies.size(); ++i) {
      LookAtMember(status_.members(static_cast<int>(i)), proxies[i]);
    }
    LookAtEngineVersions();
    LookAtLorryVersions();
    LookAtCertificates();
    for (Finding& finding : LookAtMachine()) findings_.push_back(std::move(finding));
    return std::move(findings_);
  }

 private:
  void Add(Grade grade, std::string what, std::string remedy = "") {
    findings_.push_back({grade, std::move(what), std::move(remedy)});
  }

  void AddUnreachable(const std::string& what, const absl::Status& status) {
    const absl::Status why = context_.Explain(status);
    const std::string remedy = Remedy(ReasonOf(why));
    Add(Grade::kBad, absl::StrCat(what, ": ", std::string(why.message())),
        remedy.empty() ? "start it with `lorry up`, or name it by --store and --orchestrator"
                       : remedy);
  }

  void LookAtStore() {
    auto adapters = client_.Adapters();
    if (!adapters.ok()) return AddUnreachable("adapter-store", adapters.status());
    Add(Grade::kGood, absl::StrCat("adapter-store at ", context_.store(), " answers, ",
                                   Counted(adapters->size(), "adapter")));
    const auto revision = client_.StoreRevision();
    // Older ones do not say it, or have no such call.
    versions_["adapter-store"] = revision.ok() ? revision->lorry_version() : "";
  }

  void LookAtOrchestrator() {
    auto status = client_.Status();
    if (!status.ok()) return AddUnreachable("sync-orchestrator", status.status());
    status_ = *std::move(status);
    for (MemberStatus& member : *status_.mutable_members()) {
      if (member.state() == "DEAD") member.clear_admin_address();  // nobody expects an answer
    }
    Add(Grade::kGood, absl::StrCat("sync-orchestrator at ", context_.orchestrator(), " answers, ",
                                   Counted(status_.members_size(), "engine"), " on the roster"));
    if (!status_.store_connected()) {
      Add(Grade::kBad, "the orchestrator does not reach the adapter-store",
          "start it with --store at the address that this line names: " + context_.store());
    }
    if (status_.members_size() == 0) {
      Add(Grade::kWarning, "no engine has attached",
          "lorry attach --engine URL, or engine-proxy --orchestrator " + context_.orchestrator());
    }
    for (Finding& finding : JudgeDecisions(status_)) findings_.push_back(std::move(finding));
  }

  using ProxyAnswer = absl::StatusOr<engine::v1::GetStatusResponse>;

  void LookAtMember(const MemberStatus& member, const ProxyAnswer& proxy) {
    const std::string& name = member.member();
    if (!member.admin_address().empty()) LookAtProxy(member, proxy);
    const std::string& why = member.observed().health_detail().empty()
                                 ? member.detail()
                                 : member.observed().health_detail();
    const std::string& warning = member.observed().health_detail();
    if (member.state() == "READY" && !warning.empty()) {
      Add(Grade::kWarning, absl::StrCat(name, " is READY, but ", warning), RemedyOf(warning));
    } else if (member.state() == "READY") {
      Add(Grade::kGood, absl::StrCat(name, " is READY, door ", member.door_address()));
    } else {
      const bool broken =
          member.state() != "ASLEEP" && member.state() != "EXCLUDED" && member.state() != "DEAD";
      const std::string mend =
          member.state() == "LOST"
              ? absl::StrCat("bring its engine-proxy back; if it is gone for good: lorry mark ",
                             name, " dead")
              : RemedyOf(why);
      Add(broken ? Grade::kBad : Grade::kWarning,
          absl::StrCat(name, " is ", member.state(), why.empty() ? "" : ": ", why), mend);
    }
    if (auto slots = JudgeSlots(member)) findings_.push_back(*std::move(slots));
  }

  void LookAtProxy(const MemberStatus& member, const ProxyAnswer& proxy) {
    if (!proxy.ok()) {
      Add(Grade::kBad, absl::StrCat(member.member(), ": ", std::string(proxy.status().message())),
          "look whether it runs, and for a firewall before its admin port");
    } else if (!proxy->attached()) {
      Add(Grade::kBad, absl::StrCat(member.member(), " has no session with the orchestrator"),
          "look for a firewall between them, and at the proxy's log");
    }
  }

  // The first reason of docs/ERRORS.md that a text begins with.
  static std::string RemedyOf(const std::string& why) {
    const size_t end = why.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
    return Remedy(why.substr(0, end));
  }

  void LookAtEngineVersions() {
    std::map<int, std::set<std::string>> versions;
    for (const MemberStatus& member : status_.members()) {
      const auto& observed = member.observed();
      if (!observed.engine_version().empty()) {
        versions[observed.limits().kind()].insert(observed.engine_version());
      }
    }
    for (const auto& [kind, found] : versions) {
      if (found.size() < 2) continue;
      Add(Grade::kWarning,
          absl::StrCat("engines of one kind run versions ", absl::StrJoin(found, " and ")),
          "one version everywhere: the same adapter may answer differently");
    }
  }

  // Each says it of itself, a proxy to the orchestrator.
  void LookAtLorryVersions() {
    if (!status_.version().empty()) versions_["sync-orchestrator"] = status_.version();
    for (const MemberStatus& member : status_.members()) {
      if (member.lorry_version().empty() || member.state() == "LOST") continue;
      versions_[absl::StrCat("the proxy of ", member.member())] = member.lorry_version();
    }
    if (versions_.empty()) return;
    versions_["this program"] = LORRY_VERSION;
    findings_.push_back(JudgeVersions(versions_));
  }

  // Of what this program dials and shows. What the services know of theirs is in their metrics.
  void LookAtCertificates() {
    const rpc::ClientTls tls = context_.Reached().tls;
    if (tls.empty()) return;
    const int64_t now = std::time(nullptr);
    for (const auto& [service, address] : {std::pair("adapter-store", context_.store()),
                                           {"sync-orchestrator", context_.orchestrator()}}) {
      const auto end = ShownCertificateEnd(address, tls);
      if (!end) continue;  // which does not answer, as was said above
      findings_.push_back(
          JudgeCertificate(absl::StrCat("of the ", service), end, now,
                           "replace its --tls-cert and --tls-key; it reads them within a minute"));
    }
    for (const auto& [file, holds] :
         {std::pair(tls.ca, rpc::Holds::kAuthorities), {tls.cert, rpc::Holds::kChain}}) {
      if (file.empty()) continue;
      const auto end = rpc::EndOf(file, holds);
      findings_.push_back(JudgeCertificate(absl::StrCat("in ", file),
                                           end.ok() ? std::optional(*end) : std::nullopt, now,
                                           "replace that file"));
    }
  }

  client::Client& client_;
  const Context& context_;
  GetStatusResponse status_;
  std::map<std::string, std::string> versions_;  // of Lorry, by who it is
  std::vector<Finding> findings_;
};

const char* Mark(Grade grade) {
  return grade == Grade::kGood ? "✓" : grade == Grade::kBad ? "✗" : "!";
}

}  // namespace

std::vector<Finding> JudgeDecisions(const GetStatusResponse& status) {
  if (!status.lost().empty())
    return {{Grade::kBad, absl::StrCat(status.lost(), ": ", status.lost_detail()),
             Remedy(status.lost())}};
  std::vector<Finding> findings;
  for (const lorry::sync::v1::PoolStatus& pool : status.pools()) {
    const std::string& why = pool.running().reason();
    if (why.empty() || why == "OVERRIDDEN" || why == "NEXT_VERSION") continue;
    const std::string& detail = pool.running().detail();
    findings.push_back(
        {Grade::kWarning,
         absl::StrCat(pool.adapter(), " ", ToText(pool.running_version()), " waits in ",
                      pool.pool(), ": ", why, detail.empty() ? "" : ": ", detail),
         Remedy(why)});
  }
  return findings;
}

Finding JudgeVersions(const std::map<std::string, std::string>& version_by_name) {
  std::map<std::string, std::vector<std::string>> names;
  std::set<std::string> minors;
  for (const auto& [name, version] : version_by_name) {
    names[version].push_back(name);
    minors.insert(version.substr(0, version.rfind('.')));
  }
  if (names.size() == 1) {
    return {Grade::kGood, absl::StrCat("everything is Lorry ", names.begin()->first)};
  }
  std::vector<std::string> parts;
  for (const auto& [version, who] : names) {
    parts.push_back(
        absl::StrCat(version.empty() ? "unknown" : version, " (", absl::StrJoin(who, ", "), ")"));
  }
  const std::string all = absl::StrJoin(parts, ", ");
  if (minors.size() == 1) return {Grade::kGood, absl::StrCat("Lorry of one minor version: ", all)};
  return {Grade::kWarning, absl::StrCat("versions of Lorry differ: ", all),
          "bring all to one version, the store first"};
}

Finding JudgeCertificate(const std::string& whose, std::optional<int64_t> end, int64_t now,
                         const std::string& renew) {
  constexpr int64_t kDayS = 24 * 3600;
  constexpr int64_t kWarnS = 7 * kDayS;  // as deploy/prometheus/alerts.yaml
  const std::string what = absl::StrCat("the certificate ", whose);
  if (!end) return {Grade::kBad, what + " cannot be read", renew};
  if (*end < now) return {Grade::kBad, what + " has ended", renew};
  const int64_t left_s = *end - now;
  const std::string left =
      left_s < 2 * kDayS ? Counted(left_s / 3600, "hour") : Counted(left_s / kDayS, "day");
  if (left_s < kWarnS) return {Grade::kWarning, absl::StrCat(what, " ends in ", left), renew};
  return {Grade::kGood, absl::StrCat(what, " is good for ", left)};
}

std::optional<Finding> JudgeSlots(const MemberStatus& member) {
  const auto& need = member.slot_need();
  const auto& limits = member.observed().limits();
  if (need.needed() == 0 || member.observed().boot_id().empty()) return std::nullopt;
  const std::string needs = absl::StrCat("needs ", Counted(need.needed(), "slot"));
  if (!need.shortage().empty())
    return Finding{Grade::kBad, absl::StrCat(member.member(), ": ", need.shortage()),
                   "raise that flag, lower keep, or set residency=on_demand"};
  if (limits.slots() > 0)
    return Finding{Grade::kGood, absl::StrCat(member.member(), " has ",
                                              Counted(limits.slots(), "slot"), ", ", needs)};
  if (limits.kind() != lorry::sync::v1::ENGINE_KIND_VLLM)
    return Finding{Grade::kGood, absl::StrCat(member.member(), " has no slot limit; ", needs)};
  return Finding{Grade::kWarning,
                 absl::StrCat(member.member(), " has a slot limit that is not known; ", needs),
                 "start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment, and --max-cpu-loras "
                 "of at least so many"};
}

std::string RenderFindings(const std::vector<Finding>& findings, bool colour) {
  std::string out;
  for (const Finding& finding : findings) {
    const Colour paint = finding.grade == Grade::kGood  ? Colour::kGood
                         : finding.grade == Grade::kBad ? Colour::kBad
                                                        : Colour::kWarn;
    absl::StrAppend(&out, Paint(Mark(finding.grade), paint, colour), " ", Visible(finding.what),
                    "\n");
    if (!finding.remedy.empty()) absl::StrAppend(&out, "    → ", finding.remedy, "\n");
  }
  return out;
}

absl::StatusOr<int> Doctor(Context& context, const Arguments&) {
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  const std::vector<Finding> findings = Examination(*client, context).Run();
  bool broken = false;
  for (const Finding& finding : findings) {
    broken = broken || finding.grade == Grade::kBad;
    const char* grade = finding.grade == Grade::kGood  ? "good"
                        : finding.grade == Grade::kBad ? "bad"
                                                       : "warning";
    if (!context.json()) continue;
    context.PrintJson({{"grade", grade}, {"what", finding.what}, {"remedy", finding.remedy}});
  }
  if (!context.json()) context.Print(RenderFindings(findings, context.colour()));
  return broken ? kFailed : kOk;
}

}  // namespace lorry::cli
