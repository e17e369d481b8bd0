// Runs the proxy's machine: events in from engine, fetcher, door and orchestrator, records into the
// journal, effects out.
//
// Owned by main. Post and GetView from any thread. Effects run on the driver's thread and only
// begin things.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "lib/kv/record_journal.h"
#include "lib/kv/store.h"
#include "lib/runtime/driver.h"
#include "services/engine_proxy/driver/engine_link.h"
#include "services/engine_proxy/driver/fetcher.h"
#include "services/engine_proxy/machine/machine.h"

namespace lorry::proxy {

class Proxy {
 public:
  struct Options {
    Config machine;
    // The journal cannot be written: the process must end.
    std::function<void(const absl::Status&)> on_fatal;
  };
  // Where effects end. All outlive the driver's Stop.
  struct Parts {
    Fetcher* fetcher = nullptr;
    EngineLink* engine = nullptr;
    std::function<void(DoorTable)> set_door_table;              // the door reports by DoorReport
    std::function<void(const fleet::Observed&)> send_observed;  // latest wins
    std::function<void(const AnswerCall&)> answer_call;
    std::function<void(const PassCall&)> pass_call;
    std::function<void(const ReadBinding&)> read_binding;
    std::function<void(const Fetch&)> fetch_binding;  // a Fetch of what a framework's directory had
    std::function<void(AnswerBinding)> answer_binding;
  };
  struct View {
    fleet::Observed observed;
    DoorTable table;
    std::string description;
    DemandTally demand;
    FrameworkPauses framework_pauses;
    bool passes_call = false;
  };

  static absl::StatusOr<std::unique_ptr<Proxy>> Create(kv::Store& store, const Clock& clock,
                                                       Options options);
  ~Proxy();

  void Start(Parts parts);
  void Stop();

  void Post(Event event) { driver_->PostAnswer(std::move(event)); }
  // Events from the network, which may be refused: RESOURCE_EXHAUSTED MAILBOX_FULL.
  absl::Status TryPost(Event event) { return driver_->Post(std::move(event)); }
  absl::StatusOr<View> GetView(Tick deadline);
  const JournalId& journal() const { return first_observed_.journal; }
  // Directories that the journal knew of at start.
  const std::set<EngineName>& recorded_names() const { return recorded_names_; }
  const fleet::Observed& first_observed() const {
    return first_observed_;
  }  // as restored, for the first Hello

 private:
  using MachineDriver = runtime::Driver<Machine, Event>;
  Proxy(kv::Store& store, const Clock& clock, Options options);
  absl::Status Persist(const std::vector<Record>& records);
  void Run(Effect effect);

  const Clock& clock_;
  const Options options_;
  kv::RecordJournal<RecordValue> journal_;  // driver's thread, once started
  fleet::Observed first_observed_;
  std::set<EngineName> recorded_names_;
  Parts parts_;
  std::unique_ptr<MachineDriver> driver_;
};

}  // namespace lorry::proxy
