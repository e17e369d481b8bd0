// A tree of files, a path that a framework names, and what happens to the tree while it is read:
// the reader of directories, and all that a binding does with one.
//
// What it took lies beneath its root by the kernel's own account (realpath), is what lies there once
// it was compared, and nothing stays open. What a binding made of it proves its digest, and what it
// refuses has a reason that can be said in an answer.
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/error.h"
#include "services/engine_proxy/bindings/binding_reader.h"
#include "services/engine_proxy/machine/binding_name.h"
#include "tests/fuzz/bindings/tree.h"

using namespace lorry;         // NOLINT(google-build-using-namespace)
using namespace lorry::proxy;  // NOLINT(google-build-using-namespace)

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kImageBytesMax = 1u << 20;
constexpr size_t kPathBytesMax = 8192;

// Everything that outlives one input.
struct World {
  proxy::fuzz::Tree tree;
  proxy::fuzz::Tree images;
  std::unique_ptr<ImageShelf> shelf;
  std::mutex mutex;
  std::condition_variable arrived;
  std::optional<BindingRead> read;
  std::unique_ptr<BindingReader> reader;

  World() {
    spdlog::set_level(spdlog::level::off);
    shelf = ImageShelf::Open(images / "shelf", JournalId("j1"), {}).value();
    const auto no_calls = [](uint64_t) { return std::optional<std::string>(); };
    reader = std::make_unique<BindingReader>(Roots(), kImageBytesMax, /*one_node=*/true, *shelf,
                                             no_calls, [this](Event event) {
                                               const std::lock_guard lock(mutex);
                                               read = std::get<BindingRead>(std::move(event));
                                               arrived.notify_all();
                                             });
  }
  BindingRoots Roots() const { return BindingRoots::Open({tree / "root"}).value(); }

  BindingRead Bind(const ReadBinding& asked) {
    read.reset();
    reader->Read(asked);
    std::unique_lock lock(mutex);
    LORRY_CHECK(arrived.wait_for(lock, std::chrono::milliseconds(lorry::fuzz::kPatienceMs),
                                 [this] { return read.has_value(); }));
    return *read;
  }
};

struct Script {
  std::vector<lorry::fuzz::Command> before, meanwhile;
  ReadBinding asked{.op = 1, .kind = fleet::EngineKind::kSglang};
};

Script Read(std::string_view bytes, const World& world) {
  Script script;
  bool begun = false;
  for (const lorry::fuzz::Command& command : lorry::fuzz::ReadScript(bytes)) {
    const std::string payload = lorry::fuzz::Expand(command.payload, kPathBytesMax);
    switch (command.op) {
      case 'R':
        script.asked.path = command.arg == 0 ? world.tree / payload : payload;
        break;
      case 'V':
        script.asked.kind = fleet::EngineKind::kVllm;
        break;
      case 'B':
        if (const auto base = peft::ParseBaseModel(payload); base.ok()) script.asked.base = *base;
        break;
      case 'W':
        begun = true;
        break;
      default:
        (begun ? script.meanwhile : script.before).push_back(command);
    }
  }
  return script;
}

std::string Content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void CheckFile(const World& world, const std::string& path, std::string_view taken) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  LORRY_CHECK(!error);
  LORRY_CHECK(real.string().starts_with(fs::canonical(world.tree / "root").string() + "/"));
  LORRY_CHECK(fs::is_regular_file(real));
  LORRY_CHECK(Content(real) == taken);
}

void CheckTaken(const World& world, const std::string& path, const ForeignAdapter& taken) {
  LORRY_CHECK(path.find('\0') == path.npos && taken.image_bytes <= kImageBytesMax);
  const auto image = taken.image();
  CheckFile(world, path + "/adapter_config.json", taken.config_json);
  CheckFile(world, path + "/adapter_model.safetensors",
            {reinterpret_cast<const char*>(image.data()), image.size()});
}

// The lowest number that is free.
int NextDescriptor() {
  const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(fd);
  return fd;
}

bool IsText(const std::string& bytes) {
  using json = nlohmann::json;
  return json::parse(json(bytes).dump(-1, ' ', false, json::error_handler_t::replace)) == bytes;
}

void CheckBound(World& world, const Script& script, const absl::Status& before) {
  const BindingRead bound = world.Bind(script.asked);
  if (bound.outcome != Outcome::kOk) {
    LORRY_CHECK(!bound.reason.empty());
    LORRY_CHECK(IsText(bound.detail) || !IsText(script.asked.path));
    LORRY_CHECK(before.ok() || !script.meanwhile.empty() || bound.reason == ReasonOf(before));
    return;
  }
  LORRY_CHECK(before.ok() || !script.meanwhile.empty());
  LORRY_CHECK(bound.name == BindingName(bound.digest, bound.render));
  LORRY_CHECK(bound.path.starts_with(world.images / "shelf/versions/"));
  LORRY_CHECK(world.shelf->Proves(bound.name, bound.path, bound.digest, bound.render));
  LORRY_CHECK(world.shelf->Delete(bound.name).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World world;
  const Script script = Read({reinterpret_cast<const char*>(data), size}, world);
  world.tree.Clear();
  for (const lorry::fuzz::Command& command : script.before) world.tree.Do(command);

  const BindingRoots roots = world.Roots();
  const int next = NextDescriptor();
  const auto taken = ReadForeignDirectory(roots, script.asked.path, kImageBytesMax, [&] {
    for (const lorry::fuzz::Command& command : script.meanwhile) world.tree.Do(command);
  });
  LORRY_CHECK(NextDescriptor() == next);
  LORRY_CHECK(taken.ok() || !ReasonOf(taken.status()).empty());
  if (taken.ok()) CheckTaken(world, script.asked.path, *taken);
  CheckBound(world, script, taken.status());
  return 0;
}
