// Engine: one inference engine as the proxy needs it, whatever its HTTP dialect.
//
// Every verb returns at once and answers exactly once, on a thread of the io_context that the
// engine was made with, within about `within`. No verb retries: a caller that gets an answer of
// MayHaveHappened() lists and decides. Verbs may be called from any thread and may overlap, but the
// engines serialise loads and unloads themselves, and a hanging one hangs those behind it: keep at
// most one of them outstanding. Destroying an Engine cancels nothing; answers of calls in flight
// still come.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/ids.h"
#include "lib/fleet/desired.h"
#include "lib/fleet/engine_name.h"
#include "lib/fleet/probe.h"

namespace lorry::engines {

// Why an engine cannot be used as it was started. `remedy` names the flag or the variable to
// change.
struct Problem {
  std::string
      reason;  // ENGINE_LORA_DISABLED, ENGINE_RUNTIME_LORA_DISABLED, ENGINE_DP_UNSUPPORTED, ...
  std::string remedy;
  auto operator<=>(const Problem&) const = default;
};

struct EngineFacts {
  BootId boot;  // changes with every start of the engine's process
  std::string version;
  fleet::EngineLimits limits;            // zeros and empty lists where the engine does not say
  std::vector<std::string> base_models;  // the names under which it serves its base model
  // Where the base model came from: a directory of the engine's host, or a name on the Hugging Face
  // Hub and its revision there; and its config.json where the engine tells it. Empty: not said.
  std::string model_path;
  std::string model_revision;
  std::string model_config;
  std::string quantization;  // of the base model, as it was started with; empty: as the config says
  bool cumulative_streams = false;  // SGLang's /generate repeats the whole text in each event
  std::optional<bool> asleep;       // its memory is released; SGLang does not say
  uint64_t nodes = 1;               // that its ranks run on, as far as it says
  std::string device;               // that it runs on: cpu, cuda; empty: not said
  // A request for the log-probabilities of its prompt may end the engine's process.
  bool dies_of_prompt_logprobs = false;
  // A request for the base model beside one for an adapter is answered with an adapter's weights.
  bool mixes_base = false;
  // A request may be aborted by its id at any time. Where not, SGLang may be asked only once the
  // request has its first token (before 0.5.23 one that waits never lets go of its adapter), and
  // vLLM not at all (the route is there in dev mode alone).
  bool aborts_waiting = false;
  // It takes adapters only where the load pins them: an SGLang with attention groups.
  bool pins_adapters = false;
  std::vector<Problem> problems;  // empty: ready for adapters
  std::vector<Problem> warnings;  // it serves, and this is amiss all the same
};

struct Occupancy {
  uint64_t running = 0;
  uint64_t waiting = 0;
  // The adapters of these requests; SGLang does not say.
  std::optional<std::set<EngineName>> names = {};
  // Another number whenever it has computed meanwhile: vLLM's tokens so far, the time of SGLang's
  // last batch.
  std::optional<double> worked = {};
};

// A call in the engine's own API, and what it answers, whatever that is.
struct RawCall {
  std::string method;
  std::string path;  // with its query
  std::string body;
};
struct RawReply {
  unsigned status = 0;
  std::string body;
};

class Engine {
 public:
  template <typename T>
  using Answer = std::function<void(T)>;
  using Millis = std::chrono::milliseconds;
  // Adapters with their paths, without the base model.
  using Listing = std::map<EngineName, std::string>;

  virtual ~Engine() = default;
  virtual fleet::EngineKind kind() const = 0;

  virtual void Inspect(Millis within, Answer<absl::StatusOr<EngineFacts>> answer) = 0;
  virtual void List(Millis within, Answer<absl::StatusOr<Listing>> answer) = 0;

  // Answers OK once the engine has registered `name` with `path`, also where it had before.
  // ALREADY_EXISTS ENGINE_NAME_TAKEN: the name has another path. INVALID_ARGUMENT ENGINE_REFUSED:
  // the engine read the files and does not take the adapter; its own words say why.
  // FAILED_PRECONDITION ENGINE_LOAD_FAILED: it could not read them, or had no memory. The caller
  // never gives `name` to other contents, as engines may keep what they have under it.
  virtual void Load(const EngineName& name, const std::string& path, Millis within,
                    Answer<absl::Status> answer) = 0;

  // NOT_FOUND ENGINE_NAME_UNKNOWN, FAILED_PRECONDITION PROBE_FAILED. RESOURCE_EXHAUSTED
  // PROBE_BEHIND_OTHERS: until `within` it was shed for others' sake, however often it was asked
  // again. While the engine is paused a
  // probe other than kPresence waits.
  virtual void Probe(const EngineName& name, fleet::ProbeQuestion question, Millis within,
                     Answer<absl::StatusOr<fleet::ProbeAnswer>> answer) = 0;

  // OK: the engine does not list `name` (any more). SGLang answers when the last request on it has
  // ended, and keeps every other load and unload waiting until then, even after `within`.
  virtual void Unload(const EngineName& name, Millis within, Answer<absl::Status> answer) = 0;

  // By the engine's own account, which lags: SGLang publishes after a prefill, every 15 decode
  // steps and when idle, so a 0 may hide a request that has just begun. Two answers some seconds
  // apart are worth more than one.
  virtual void GetOccupancy(Millis within, Answer<absl::StatusOr<Occupancy>> answer) = 0;

  // kNone resumes. UNIMPLEMENTED ENGINE_PAUSE_KIND: this kind of engine has no such pause. With
  // `flush`, caches are dropped; FAILED_PRECONDITION ENGINE_FLUSH_FAILED leaves it paused.
  virtual void SetPause(fleet::PauseKind pause, bool flush, Millis within,
                        Answer<absl::Status> answer) = 0;

  // With the key for control calls.
  virtual void Pass(RawCall call, Millis within, Answer<absl::StatusOr<RawReply>> answer) = 0;
};

// How a call ended, by the code of its status: no verb answers with one of these codes otherwise.
// Reasons are for people.
enum class End {
  kOk,
  kRefused,   // INVALID_ARGUMENT
  kFailed,    // any other code: another answer of the engine
  kUnsent,    // UNAVAILABLE, ABORTED: no connection to it, so that it heard of nothing
  kBroken,    // UNKNOWN, INTERNAL: it may have taken effect: the connection broke after the request
              // was sent, or the engine says that it failed itself, as one does that is dying
  kTimedOut,  // DEADLINE_EXCEEDED: it may have taken effect, or may take it yet
};
End EndOf(const absl::Status& status);

// True when the call may have taken effect, or may take it yet.
inline bool MayHaveHappened(const absl::Status& status) {
  return EndOf(status) == End::kBroken || EndOf(status) == End::kTimedOut;
}

}  // namespace lorry::engines
