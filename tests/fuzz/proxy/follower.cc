// What `engine-proxy --follow` is ordered, by its leader and by strangers, in any order: each input
// is a script (see README.md) against a follower of its own, wired as its main does, beside a store
// that says what the input says.
//
// Nothing outside of its image directory is ever touched. What it says is there is there, whole, and
// was asked for; what the last order does not name goes, and what it names stays; and afterwards an
// honest leader is served.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/fleet/engine_name.h"
#include "lib/rpc/server.h"
#include "lib/rpc/status.h"
#include "services/engine_proxy/rpc/follower_service.h"
#include "services/engine_proxy/rpc/store_client.h"
#include "tests/fuzz/heap_watch.h"
#include "tests/fuzz/proxy/owed.h"
#include "tests/fuzz/proxy/scripted_fleet.h"
#include "tests/fuzz/proxy/wiring.h"
#include "tests/fuzz/rpc/rpc_script.h"
#include "tests/fuzz/store/store_world.h"
#include "tests/testing/temp_dir.h"

namespace lorry::proxy::fuzz {
namespace {

namespace fs = std::filesystem;
using engine::v1::FollowRequest;
using lorry::fuzz::Command;
using lorry::fuzz::HeapWatch;
using lorry::fuzz::kPatienceMs;
using lorry::fuzz::RpcScript;

// A request of 4 MiB of paths, as bytes, as a message, and as the set that is kept of it and of the
// one before; and gRPC's buffers.
constexpr int64_t kPeakBytesMax = 64 << 20;
constexpr std::chrono::milliseconds kLook(3);
constexpr char kMember[] = "engine-1";
constexpr char kJournal[] = "j1";
// A life that no input knows, so that no order of an input is later than its own.
constexpr char kHonestLife[] = "honest-and-never-named-by-an-input";

// One life of the process, over a directory that outlives it.
class Life {
 public:
  Life(const std::string& images, const std::string& store)
      : store_(Dial(store)),
        transports_(Transports()),
        agent_([images](const JournalId& journal) { return ImageShelf::Open(images, journal, {}); },
               *transports_, [this](const VersionKey& key) { return store_.OpenFetch(key); },
               [](const std::string&, double) {}),
        access_(Must(rpc::Access::Open("", /*certificates=*/false))),
        gate_(*access_),
        service_(gate_, kMember, agent_),
        server_(Must(rpc::Server::Start({.shutdown_max_ms = kPatienceMs}, gate_, {&service_}))) {}
  ~Life() { LORRY_CHECK(server_->Shutdown().ok()); }
  std::string address() const { return server_->address(); }

 private:
  StoreClient store_;
  std::unique_ptr<transfer::TransportSet> transports_;
  Agent agent_;
  std::unique_ptr<rpc::Access> access_;
  rpc::Gate gate_;
  FollowerService service_;
  std::unique_ptr<rpc::Server> server_;
};

std::string Content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Answer {
  absl::Status status;
  bool placed = false;
};

class Fuzzer {
 public:
  Fuzzer() {
    HeapWatch::Install();
    HeapWatch::Ignore();
    spdlog::set_level(spdlog::level::off);
    for (uint64_t run : {1, 2}) {
      const store::TestAdapter adapter = store::MakeAdapter(run);
      LORRY_CHECK(world_.Publish("policy", adapter).ok());
      const Digest digest = store::DigestOf(adapter.bytes(), adapter.config);
      images_[digest.value] = adapter.image;
      Place(run, digest, fleet::Render::kPlain, run == 1 ? "one" : "two");
      if (run == 1) Place(run, digest, fleet::Render::kRsloraFolded, "folded");
    }
    fs::create_directories(fs::path(root_).parent_path());
    std::ofstream(base_ / "secret") << "secret";
    outside_ = Outside();
  }
  void Run(std::string_view input);

 private:
  void Place(uint64_t run, const Digest& digest, fleet::Render render, const std::string& name);
  std::map<std::string, std::string> Outside() const;
  std::set<std::string> Inside() const;
  void Start();
  void Stop();
  void Restart(uint8_t what_is_lost);
  void Do(const Command& command);
  Answer Ask(const FollowRequest& order);
  void Order(const FollowRequest& order);
  void CheckAnswer(const FollowRequest& order, const Answer& answer);
  bool IsPlaced(const FollowRequest& order) const;
  void CheckDisk();
  void CheckHonestLeaderIsServed();

  store::fuzz::StoreWorld world_;
  ScriptedFleet fleet_{world_.address()};
  const TempDir base_{TempDir::Memory()};
  // Deep, so that what climbs out of it is seen.
  const std::string root_ = base_ / "a/b/images";
  const std::string versions_ = root_ + "/versions";
  std::map<std::string, std::string> images_;   // of the store, by their digests
  std::map<std::string, std::string> words_;    // that a payload may hold as "$name"
  std::map<std::string, std::string> outside_;  // of base_, as it was at first
  engine::v1::Placement honest_;
  std::optional<Owed> owed_;
  std::unique_ptr<Life> life_;
  std::unique_ptr<RpcScript> rpcs_;
  std::unique_ptr<engine::v1::FollowerService::Stub> stub_;
};

void Fuzzer::Place(uint64_t run, const Digest& digest, fleet::Render render,
                   const std::string& name) {
  const VersionKey key{AdapterName("policy"), RunId(run), VersionNumber(1)};
  words_[name] = fleet::MakeEngineName(key, digest, render).value;
  words_["digest_of_" + name] = digest.value;
  if (name != "one") return;
  honest_.set_engine_name(words_[name]);
  honest_.set_path(versions_ + "/" + kJournal + "/" + words_[name]);
  honest_.mutable_version()->set_adapter("policy");
  honest_.mutable_version()->set_run(run);
  honest_.mutable_version()->set_number(1);
  honest_.set_digest(digest.value);
  for (const char* module : {"k_proj", "q_proj", "v_proj"})
    honest_.mutable_traits()->add_modules(module);
  honest_.set_render(sync::v1::RENDER_PLAIN);
}

// Everything beside the image directory: paths, and what is in files.
std::map<std::string, std::string> Fuzzer::Outside() const {
  std::map<std::string, std::string> found;
  for (auto at = fs::recursive_directory_iterator(base_.path()); at != fs::end(at); ++at) {
    if (at->path() == root_) {
      at.disable_recursion_pending();
    } else {
      found[at->path()] = at->is_regular_file() ? Content(at->path()) : "";
    }
  }
  return found;
}

// The directories of all journals.
std::set<std::string> Fuzzer::Inside() const {
  std::set<std::string> found;
  std::error_code error;
  for (auto journal = fs::directory_iterator(versions_, error); journal != fs::end(journal);
       journal.increment(error)) {
    for (auto at = fs::directory_iterator(journal->path(), error); at != fs::end(at);
         at.increment(error))
      found.insert(at->path());
  }
  return found;
}

void Fuzzer::Run(std::string_view input) {
  owed_.emplace(versions_);
  Start();
  HeapWatch::ResetPeak();
  for (const Command& command : lorry::fuzz::ReadScript(input)) Do(command);
  CheckHonestLeaderIsServed();
  Stop();
  LORRY_CHECK(Outside() == outside_);
  LORRY_CHECK(HeapWatch::peak_bytes() <= kPeakBytesMax);
  fs::remove_all(root_);
}

void Fuzzer::Start() {
  life_ = std::make_unique<Life>(root_, fleet_.address());
  const auto channel = Dial(life_->address())->Get();
  stub_ = engine::v1::FollowerService::NewStub(channel);
  rpcs_ = std::make_unique<RpcScript>(channel,
                                      std::vector<std::string>{"lorry.engine.v1.FollowerService"});
  rpcs_->Set("root", root_);
  for (const auto& [name, value] : words_) rpcs_->Set(name, value);
}

void Fuzzer::Stop() {
  rpcs_->End();
  rpcs_.reset();
  stub_.reset();
  life_.reset();
}

// 1: the last byte of each image is another one; 2: nothing is left.
void Fuzzer::Restart(uint8_t what_is_lost) {
  Stop();
  for (const std::string& path : Inside()) {
    const std::string image = path + "/adapter_model.safetensors";
    if (what_is_lost == 1 && fs::exists(image)) {
      std::fstream file(image, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(-1, std::ios::end);
      const char last = static_cast<char>(file.get());
      file.seekp(-1, std::ios::end);
      file.put(static_cast<char>(~last));
    }
  }
  if (what_is_lost == 2) fs::remove_all(root_);
  owed_->Restarted();
  if (what_is_lost == 1 || what_is_lost == 2) owed_->Lost();
  Start();
}

void Fuzzer::Do(const Command& command) {
  if (command.op == 'K') return Restart(command.arg % 4);
  if (command.op == 'R') {
    std::error_code ignored;  // a fetch may be writing there
    for (const std::string& path : Inside()) fs::remove_all(path, ignored);
    return owed_->Lost();
  }
  if (command.op == 'N') {
    if (auto manifest = rpcs_->Read<store::v1::OpenFetchResponse>(command.payload))
      fleet_.Plan(*std::move(manifest));
    return;
  }
  constexpr std::string_view kFollow = "Follow ";
  if (command.op == 'C' && command.payload.starts_with(kFollow)) {
    if (auto order = rpcs_->Read<FollowRequest>(command.payload.substr(kFollow.size())))
      return Order(*order);
  }
  if (rpcs_->Do(command)) owed_->Lose();
}

Answer Fuzzer::Ask(const FollowRequest& order) {
  grpc::ClientContext context;
  rpc::SetDeadlineIn(context, kPatienceMs);
  engine::v1::FollowResponse response;
  Answer answer{rpc::FromGrpc(stub_->Follow(&context, order, &response)), response.placed()};
  LORRY_CHECK(!absl::IsDeadlineExceeded(answer.status));
  return answer;
}

// A leader's order, of which everything is known.
void Fuzzer::Order(const FollowRequest& order) {
  const Answer answer = Ask(order);
  const std::string reason = ReasonOf(answer.status);
  // Without a reason gRPC refused it: more bytes than it takes, or no message.
  const bool refused = !answer.status.ok() && (absl::IsInvalidArgument(answer.status) ||
                                               reason == "FOLLOWER_OF_ANOTHER" || reason.empty());
  if (!owed_->is_known()) return;
  if (!refused) {
    owed_->Heard(order);
    CheckAnswer(order, answer);
  }
  CheckDisk();
}

void Fuzzer::CheckAnswer(const FollowRequest& order, const Answer& answer) {
  LORRY_CHECK(order.member() == kMember);
  const std::string& journal = order.journal();
  LORRY_CHECK(!journal.empty() && journal.find('/') == journal.npos && !journal.starts_with('.'));
  if (!order.has_place()) {
    LORRY_CHECK(answer.status.ok() && answer.placed);
    return;
  }
  const std::string path = owed_->PathOf(order);
  LORRY_CHECK((ReasonOf(answer.status) == "IMAGE_DIR_DIFFERS") == (order.place().path() != path));
  if (answer.status.ok() && answer.placed) {
    LORRY_CHECK(owed_->Lists(path));
    LORRY_CHECK(IsPlaced(order));
    owed_->Placed(path);
  } else {
    owed_->Unplaced(path);
  }
}

// The directory holds what the order's digest says; false: it is gone, or half of it.
bool Fuzzer::IsPlaced(const FollowRequest& order) const {
  const auto image = images_.find(order.place().digest());
  LORRY_CHECK(image != images_.end());
  const std::string content = Content(order.place().path() + "/adapter_model.safetensors");
  LORRY_CHECK(content.empty() || content == image->second);
  return !content.empty() && fs::exists(order.place().path() + "/adapter_config.json");
}

// Nothing lies there that should not; what was being written when it was given up goes with the
// order's repetition.
void Fuzzer::CheckDisk() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (true) {
    const std::set<std::string> there = Inside();
    for (const std::string& path : owed_->placed()) LORRY_CHECK(there.contains(path));
    if (std::all_of(there.begin(), there.end(), [&](auto& path) { return owed_->MayStay(path); }))
      return;
    LORRY_CHECK(std::chrono::steady_clock::now() < until);
    LORRY_CHECK(Ask(owed_->Latest()).status.ok());
    std::this_thread::sleep_for(kLook);  // tidy: allow sleep: a bounded poll of the disk
  }
}

// Orders of strangers that are still being served may come between its own, also once it was answered.
void Fuzzer::CheckHonestLeaderIsServed() {
  rpcs_->End();
  fleet_.Clear();
  FollowRequest order;
  order.set_member(kMember);
  order.set_journal(kJournal);
  order.set_life(kHonestLife);
  order.add_paths(honest_.path());
  *order.mutable_place() = honest_;
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (true) {
    order.set_revision(order.revision() + 1);
    const Answer answer = Ask(order);
    const bool is_placed = answer.status.ok() && answer.placed && IsPlaced(order);
    if (is_placed && Inside() == std::set{honest_.path()}) return;
    if (std::chrono::steady_clock::now() >= until) {
      std::fprintf(stderr, "an honest leader was refused: %s\n",
                   std::string(answer.status.ToString()).c_str());
      std::abort();
    }
    std::this_thread::sleep_for(kLook);  // tidy: allow sleep: a bounded poll of the disk
  }
}

}  // namespace
}  // namespace lorry::proxy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* fuzzer = new lorry::proxy::fuzz::Fuzzer;
  fuzzer->Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
