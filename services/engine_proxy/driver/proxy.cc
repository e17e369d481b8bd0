#include "services/engine_proxy/driver/proxy.h"

#include "lib/base/error.h"
#include "lib/runtime/fault_point.h"

namespace lorry::proxy {

Proxy::Proxy(kv::Store& store, const Clock& clock, Options options)
    : clock_(clock), options_(std::move(options)), journal_(store, "proxy/", &Decode) {}

absl::StatusOr<std::unique_ptr<Proxy>> Proxy::Create(kv::Store& store, const Clock& clock,
                                                     Options options) {
  std::unique_ptr<Proxy> self(new Proxy(store, clock, std::move(options)));
  Proxy* const p = self.get();
  LORRY_ASSIGN_OR_RETURN(Records records, p->journal_.Load());
  // The first Hello may come before the machine's first turn, and names the journal: the next process
  // must have it, too.
  const Record first = Machine::FirstRecord(p->options_.machine);
  if (!records.contains(first.key)) {
    LORRY_RETURN_IF_ERROR(p->journal_.Persist(std::vector{first}));
    records.emplace(first.key, *first.value);
  }
  LORRY_ASSIGN_OR_RETURN(Machine machine,
                         Machine::Restore(p->options_.machine, records, clock.Now()));
  p->first_observed_ = machine.Observe();
  constexpr std::string_view kNamePrefix = "name/";
  for (const auto& [key, record] : records) {
    if (key.starts_with(kNamePrefix)) p->recorded_names_.emplace(key.substr(kNamePrefix.size()));
  }
  p->driver_ = std::make_unique<MachineDriver>(
      std::move(machine), clock,
      MachineDriver::Hooks{.tick = [] { return Event(TimePassed{}); },
                           .persist = [p](const Ready& ready) { return p->Persist(ready.records); },
                           .run = [p](Effect effect) { p->Run(std::move(effect)); },
                           .on_fatal = p->options_.on_fatal},
      runtime::DriverOptions{.name = "proxy"});
  return self;
}

Proxy::~Proxy() { Stop(); }

void Proxy::Start(Parts parts) {
  parts_ = std::move(parts);
  driver_->Start();
}

// None where Create could not read the records.
void Proxy::Stop() {
  if (driver_ != nullptr) driver_->Stop();
}

absl::Status Proxy::Persist(const std::vector<Record>& records) {
  const bool flips = kv::Writes<RowRecord>(records);
  LORRY_FAULT_POINT("proxy.journal.before_sync");
  if (flips) LORRY_FAULT_POINT("proxy.row.before_sync");
  LORRY_RETURN_IF_ERROR(journal_.Persist(records));
  LORRY_FAULT_POINT("proxy.journal.synced");
  if (flips) LORRY_FAULT_POINT("proxy.row.synced");
  return absl::OkStatus();
}

void Proxy::Run(Effect effect) {
  struct Runner {
    Parts& parts;
    void operator()(Fetch& e) {
      e.binding.path.empty() ? parts.fetcher->Start(e) : parts.fetch_binding(e);
    }
    void operator()(CancelFetch& e) { parts.fetcher->Cancel(e.op); }
    void operator()(HashDirectory& e) { parts.fetcher->Hash(e); }
    void operator()(CheckShapes& e) { parts.fetcher->Check(e); }
    void operator()(DeleteDirectory& e) { parts.fetcher->Delete(e); }
    void operator()(List& e) { parts.engine->Run(e); }
    void operator()(Load& e) {
      parts.fetcher->Confirm(e, [engine = parts.engine](const Load& load) { engine->Run(load); });
    }
    void operator()(Probe& e) { parts.engine->Run(e); }
    void operator()(Unload& e) { parts.engine->Run(e); }
    void operator()(AskOccupancy& e) { parts.engine->Run(e); }
    void operator()(PauseEngine& e) { parts.engine->Run(e); }
    void operator()(ResumeEngine& e) { parts.engine->Run(e); }
    void operator()(SetDoorTable& e) {
      parts.set_door_table(std::move(e.table));
      LORRY_FAULT_POINT("proxy.door.table_set");
    }
    void operator()(ReadBinding& e) { parts.read_binding(e); }
    void operator()(AnswerBinding& e) { parts.answer_binding(std::move(e)); }
    void operator()(SendObserved& e) {
      LORRY_FAULT_POINT("proxy.observed.before_send");
      parts.send_observed(e.observed);
      LORRY_FAULT_POINT("proxy.observed.sent");
    }
    void operator()(PassCall& e) { parts.pass_call(e); }
    void operator()(AnswerCall& e) { parts.answer_call(e); }
  };
  std::visit(Runner{parts_}, effect);
}

absl::StatusOr<Proxy::View> Proxy::GetView(Tick deadline) {
  return driver_->Ask(
      [](const Machine& machine) {
        return View{machine.Observe(),      machine.door_table(),       machine.Describe(),
                    machine.demand_tally(), machine.framework_pauses(), machine.passes_call()};
      },
      deadline);
}

}  // namespace lorry::proxy
