#include "services/engine_proxy/driver/engine_link.h"

#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/error.h"
#include "lib/runtime/fault_point.h"

namespace lorry::proxy {
namespace {

using Millis = engines::Engine::Millis;

Outcome OutcomeOf(const absl::Status& status) {
  switch (engines::EndOf(status)) {
    case engines::End::kOk:
      return Outcome::kOk;
    case engines::End::kRefused:
      return Outcome::kRefused;
    case engines::End::kFailed:
      return Outcome::kFailed;
    case engines::End::kUnsent:
      return Outcome::kUnsent;
    case engines::End::kBroken:
      return Outcome::kBroken;
    case engines::End::kTimedOut:
      return Outcome::kUnknown;
  }
  return Outcome::kUnknown;
}

std::string Text(const absl::Status& status) { return std::string(status.message()); }

std::string TextOf(const std::vector<engines::Problem>& problems) {
  std::string text;
  for (const engines::Problem& problem : problems) {
    text += (text.empty() ? "" : "; ") + problem.reason + ": " + problem.remedy;
  }
  return text;
}

// A 5xx is what an engine answers that fails at it, perhaps half way.
void Judge(unsigned status, PassDone& done) {
  if (status >= 200 && status < 300) return;
  done.outcome = status >= 500 ? Outcome::kBroken : Outcome::kFailed;
  done.reason = status >= 500 ? "ENGINE_FAILED" : "ENGINE_REFUSED";
}

// Since `before`, by the engine's own account; one of its requests may be the probe.
bool HasWorkedForOthers(const engines::Occupancy& before, const engines::Occupancy& after) {
  return after.running + after.waiting > 1 && before.worked.has_value() &&
         before.worked != after.worked;
}

}  // namespace

EngineLink::EngineLink(Options options, EventSink sink, Listeners listeners)
    : options_(std::move(options)),
      sink_(std::move(sink)),
      listeners_(std::move(listeners)),
      work_(boost::asio::make_work_guard(io_)),
      timer_(io_) {}

EngineLink::~EngineLink() { Stop(); }

void EngineLink::Start() {
  boost::asio::post(io_, [this] { Look(); });
  thread_ = std::thread([this] { io_.run(); });
}

void EngineLink::Stop() {
  io_.stop();
  if (thread_.joinable()) thread_.join();
}

void EngineLink::LookAgain() {
  timer_.expires_after(Millis(options_.look_every_ms));
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) Look();
  });
}

void EngineLink::Look() {
  if (engine_ != nullptr && !boot_.empty()) return Inspect();
  // What comes back may be of another kind.
  engines::DetectEngine(io_, options_.engine, Millis(options_.look_deadline_ms),
                        [this](absl::StatusOr<std::unique_ptr<engines::Engine>> engine) {
                          if (!engine.ok()) {
                            OnLook(engine.status(), passed_);
                            return LookAgain();
                          }
                          if (engine_ == nullptr || engine_->kind() != (*engine)->kind()) {
                            engine_ = *std::move(engine);
                            spdlog::info("engine kind={}",
                                         std::string(fleet::ToString(engine_->kind())));
                          }
                          Inspect();
                        });
}

void EngineLink::Inspect() {
  engine_->Inspect(Millis(options_.look_deadline_ms),
                   [this, passed = passed_](absl::StatusOr<engines::EngineFacts> facts) {
                     OnLook(facts, passed);
                     LookAgain();
                   });
}

void EngineLink::OnLook(const absl::StatusOr<engines::EngineFacts>& facts, OpId passed) {
  if (facts.ok()) return OnFacts(*facts, passed);
  // Refused at once: nobody listens. Slow or broken off: it may be busy. Not reached for a reason of
  // this side's, as a name that is not resolved: that says nothing of it.
  const bool ended = facts.status().code() == absl::StatusCode::kUnavailable;
  ++failures_;
  // What was never seen has nothing to lose: why it is not there is told at once.
  const bool was_seen = engine_ != nullptr || !boot_.empty();
  if (!ended && was_seen && failures_ < options_.lost_after) return;
  if (!boot_.empty()) spdlog::warn("engine lost: {}", Text(facts.status()));
  boot_ = BootId();
  ended_ = ended;
  if (ended) engine_.reset();
  sink_(EngineLost{.ended = ended,
                   .why = absl::StrCat(ReasonOf(facts.status()), ": ", Text(facts.status()))});
}

void EngineLink::OnFacts(const engines::EngineFacts& facts, OpId passed) {
  failures_ = 0;
  ended_ = false;
  const bool is_new = facts.boot != last_boot_;
  if (!is_new && boot_.empty()) spdlog::info("engine boot={} answers again", facts.boot.value);
  boot_ = last_boot_ = facts.boot;
  const bool was_known = base_model_.model.has_value() || base_model_.unchecked;
  if (is_new || !was_known) base_model_ = options_.find_base_model(facts);
  std::vector<engines::Problem> problems = facts.problems, warnings = facts.warnings;
  if (options_.nodes != 0 && facts.nodes > options_.nodes) {
    problems.push_back(
        {"FOLLOWERS_MISSING",
         absl::StrCat("the engine runs on ", facts.nodes,
                      " nodes, and each reads adapters by itself: "
                      "start `engine-proxy --follow` on the others and name all ",
                      facts.nodes - 1, " by --followers, or say --image-dir-shared")});
  }
  if (base_model_.problem.has_value()) problems.push_back(*base_model_.problem);
  if (base_model_.warning.has_value()) warnings.push_back(*base_model_.warning);
  if (is_new) {
    spdlog::info("engine boot={} version={} base model=({}) problems={}", facts.boot.value,
                 facts.version,
                 base_model_.model.has_value() ? ToString(*base_model_.model) : "not known",
                 problems.size());
    if (!warnings.empty()) spdlog::warn("engine {}", TextOf(warnings));
    listeners_.on_facts(facts);
  }
  sink_(EngineSeen{.boot = facts.boot,
                   .limits = facts.limits,
                   .version = facts.version,
                   .problem = problems.empty() ? std::nullopt : std::optional(TextOf(problems)),
                   .asleep = facts.asleep,
                   .passed = passed,
                   .warning = TextOf(warnings),
                   .base_model = base_model_.model,
                   .base_unchecked = base_model_.unchecked});
}

void EngineLink::NoteAnswer(const BootId& boot) {
  failures_ = 0;
  if (boot_.empty() && engine_ != nullptr && boot == last_boot_) boot_ = boot;
}

void EngineLink::With(const BootId& boot, std::function<void(engines::Engine&)> call,
                      std::function<void()> otherwise) {
  boost::asio::post(io_, [this, boot, call = std::move(call), otherwise = std::move(otherwise)] {
    if (engine_ == nullptr || boot != boot_) return otherwise();
    call(*engine_);
  });
}

void EngineLink::Run(const List& list) {
  With(
      list.boot,
      [this, list](engines::Engine& engine) {
        engine.List(Millis(options_.call_deadline_ms),
                    [this, list](absl::StatusOr<engines::Engine::Listing> listing) {
                      Listed listed{
                          .op = list.op, .outcome = OutcomeOf(listing.status()), .paths = {}};
                      if (listing.ok()) {
                        std::set<std::string> paths;
                        for (const auto& [name, path] : *listing) paths.insert(path);
                        listeners_.on_listed(paths);
                        listed.paths = *std::move(listing);
                      }
                      sink_(std::move(listed));
                    });
      },
      [this, list] { sink_(Listed{.op = list.op, .outcome = Outcome::kFailed, .paths = {}}); });
}

void EngineLink::Run(const Load& load) {
  With(
      load.boot,
      [this, load](engines::Engine& engine) {
        const Tick began = SteadyClock().Now();
        LORRY_FAULT_POINT("proxy.load.before_call");
        engine.Load(load.name, load.path, Millis(options_.load_deadline_ms),
                    [this, load, began](absl::Status status) {
                      LORRY_FAULT_POINT("proxy.load.answered");
                      listeners_.on_loaded(static_cast<double>(SteadyClock().Now() - began) / 1e3);
                      spdlog::info("load name={} {}", load.name.value,
                                   status.ok() ? "ok" : Text(status));
                      sink_(LoadDone{.op = load.op,
                                     .outcome = OutcomeOf(status),
                                     .reason = ReasonOf(status),
                                     .detail = Text(status)});
                    });
        LORRY_FAULT_POINT("proxy.load.called");
      },
      [this, load] {
        sink_(LoadDone{.op = load.op,
                       .outcome = Outcome::kUnsent,
                       .reason = "ENGINE_RESTARTED",
                       .detail = ""});
      });
}

void EngineLink::Run(const Probe& probe) {
  if (probe.question.kind == fleet::ProbeKind::kPresence) return Ask(probe, {});
  // Clients that call the engine directly are seen by its own account alone.
  GetOccupancy(probe.boot, [this, probe](std::optional<engines::Occupancy> before) {
    Ask(probe, std::move(before));
  });
}

void EngineLink::GetOccupancy(const BootId& boot,
                              std::function<void(std::optional<engines::Occupancy>)> answer) {
  With(
      boot,
      [this, answer](engines::Engine& engine) {
        engine.GetOccupancy(Millis(options_.call_deadline_ms),
                            [answer](absl::StatusOr<engines::Occupancy> load) {
                              answer(load.ok() ? std::optional(*std::move(load)) : std::nullopt);
                            });
      },
      [answer] { answer(std::nullopt); });
}

void EngineLink::Ask(const Probe& probe, std::optional<engines::Occupancy> before) {
  With(
      probe.boot,
      [this, probe, before](engines::Engine& engine) {
        const Others others = listeners_.others();
        const bool is_busy =
            others.in_flight || (before.has_value() && before->running + before->waiting > 0);
        const int64_t deadline_ms =
            is_busy ? options_.busy_probe_deadline_ms : options_.probe_deadline_ms;
        // Each prompt of a reference is a request of its own, and one for each of its tokens on
        // vLLM. All are asked at once, and so wait for the engine's other requests once.
        const auto prompts = static_cast<int64_t>(probe.question.reference.size());
        spdlog::info("probe name={} is asked for its first tokens", probe.name.value);
        engine.Probe(
            probe.name, probe.question, Millis(deadline_ms + prompts * options_.probe_deadline_ms),
            [this, probe, before, others](absl::StatusOr<fleet::ProbeAnswer> answer) {
              LORRY_FAULT_POINT("proxy.probe.answered");
              const absl::Status& status = answer.status();
              spdlog::log(status.ok() ? spdlog::level::info : spdlog::level::warn,
                          "probe name={} {}", probe.name.value,
                          status.ok() ? "answered" : Text(status));
              // Shed until its deadline: there were others, and no answer.
              const bool is_shed = status.code() == absl::StatusCode::kResourceExhausted;
              ProbeDone done{.op = probe.op,
                             .outcome = is_shed ? Outcome::kUnknown : OutcomeOf(status),
                             .reason = ReasonOf(status),
                             .detail = Text(status),
                             .answer = answer.ok() ? *answer : fleet::ProbeAnswer(),
                             .others_heard = is_shed || listeners_.others().heard != others.heard};
              if (done.outcome != Outcome::kUnknown || done.others_heard || !before.has_value())
                return sink_(std::move(done));
              GetOccupancy(probe.boot, [this, done, before](auto after) mutable {
                done.others_heard = after.has_value() && HasWorkedForOthers(*before, *after);
                sink_(std::move(done));
              });
            });
      },
      [this, probe] {
        sink_(ProbeDone{.op = probe.op,
                        .outcome = Outcome::kUnsent,
                        .reason = "ENGINE_RESTARTED",
                        .detail = ""});
      });
}

void EngineLink::Run(const Unload& unload) {
  With(
      unload.boot,
      [this, unload](engines::Engine& engine) {
        LORRY_FAULT_POINT("proxy.unload.before_call");
        engine.Unload(unload.name, Millis(unload.deadline_ms), [this, unload](absl::Status status) {
          LORRY_FAULT_POINT("proxy.unload.answered");
          const Outcome outcome = OutcomeOf(status);
          listeners_.on_unloaded(outcome);
          spdlog::info("unload name={} {}", unload.name.value, status.ok() ? "ok" : Text(status));
          sink_(UnloadDone{unload.op, outcome});
        });
        LORRY_FAULT_POINT("proxy.unload.called");
      },
      [this, unload] {
        sink_(UnloadDone{unload.op, Outcome::kUnsent});
      });
}

void EngineLink::Run(const AskOccupancy& ask) {
  With(
      ask.boot,
      [this, ask](engines::Engine& engine) {
        engine.GetOccupancy(Millis(options_.call_deadline_ms),
                            [this, ask](absl::StatusOr<engines::Occupancy> load) {
                              OccupancySeen seen{.op = ask.op, .outcome = OutcomeOf(load.status())};
                              if (load.ok()) {
                                seen.running_and_waiting = load->running + load->waiting;
                                seen.names = std::move(load->names);
                              }
                              listeners_.report_counts();
                              sink_(std::move(seen));
                            });
      },
      [this, ask] { sink_(OccupancySeen{.op = ask.op, .outcome = Outcome::kFailed}); });
}

void EngineLink::Run(const PauseEngine& pause) {
  With(
      pause.boot,
      [this, pause](engines::Engine& engine) {
        paused_at_ = SteadyClock().Now();
        LORRY_FAULT_POINT("proxy.pause.before_call");
        engine.SetPause(pause.kind, pause.flush, Millis(pause.deadline_ms),
                        [this, pause](absl::Status status) {
                          LORRY_FAULT_POINT("proxy.pause.answered");
                          spdlog::info("pause {}", status.ok() ? "ok" : Text(status));
                          sink_(PauseDone{.op = pause.op,
                                          .outcome = OutcomeOf(status),
                                          .reason = ReasonOf(status),
                                          .detail = Text(status)});
                        });
        LORRY_FAULT_POINT("proxy.pause.called");
      },
      [this, pause] {
        sink_(PauseDone{.op = pause.op, .outcome = Outcome::kFailed, .reason = "ENGINE_RESTARTED"});
      });
}

void EngineLink::NotePauseEnded() {
  const std::optional<Tick> began = std::exchange(paused_at_, std::nullopt);
  if (!began.has_value()) return;  // counted already, or of an earlier process
  listeners_.on_paused(static_cast<double>(SteadyClock().Now() - *began) / 1e3);
}

void EngineLink::Run(const ResumeEngine& resume) {
  if (!resume.why.empty()) spdlog::warn("the engine is let go on: {}", resume.why);
  With(
      resume.boot,
      [this, resume](engines::Engine& engine) {
        engine.SetPause(fleet::PauseKind::kNone, false, Millis(options_.call_deadline_ms),
                        [this, resume](absl::Status status) {
                          spdlog::info("resume {}", status.ok() ? "ok" : Text(status));
                          if (status.ok()) NotePauseEnded();
                          sink_(ResumeDone{resume.op, OutcomeOf(status)});
                        });
      },
      [this, resume] {
        sink_(ResumeDone{resume.op, Outcome::kFailed});
      });
}

void EngineLink::Run(const PassCall& pass, std::optional<engines::RawCall> call,
                     std::function<void(engines::RawReply)> on_reply) {
  const auto unsent = [this, pass] {
    sink_(PassDone{.op = pass.op, .outcome = Outcome::kUnsent, .reason = "ENGINE_RESTARTED"});
  };
  if (!call.has_value()) return unsent();
  With(
      pass.boot,
      [this, pass, call = *std::move(call), on_reply](engines::Engine& engine) {
        LORRY_FAULT_POINT("proxy.pass.before_call");
        engine.Pass(
            call, Millis(pass.deadline_ms),
            [this, pass, path = call.path, on_reply](absl::StatusOr<engines::RawReply> reply) {
              LORRY_FAULT_POINT("proxy.pass.answered");
              PassDone done{.op = pass.op,
                            .outcome = OutcomeOf(reply.status()),
                            .reason = ReasonOf(reply.status()),
                            .detail = Text(reply.status())};
              if (reply.ok()) Judge(reply->status, done);
              spdlog::info("passed {}: {}", path,
                           reply.ok() ? std::to_string(reply->status) : done.reason);
              if (reply.ok()) {
                NoteAnswer(pass.boot);
                on_reply(*std::move(reply));
              }
              passed_ = pass.op;
              sink_(std::move(done));
            });
      },
      unsent);
}

}  // namespace lorry::proxy
