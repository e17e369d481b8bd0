// Directories that frameworks name in their calls: adapter_config.json beside
// adapter_model.safetensors, written by a trainer, perhaps at this moment.
//
// They are opened beneath roots that the operator allows, and nowhere else, whatever links and dots
// a path has: openat2 with RESOLVE_BENEATH. Links that stay beneath are followed, as caches of the
// Hugging Face Hub are made of them. Each file is read once into private memory, so that nobody can
// change it behind a check. Blocking file work, any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/transfer/arena.h"

namespace lorry::proxy {

class BindingRoots {
 public:
  // INVALID_ARGUMENT: one is no absolute path of a directory that can be opened.
  static absl::StatusOr<BindingRoots> Open(const std::vector<std::string>& directories);
  BindingRoots() = default;
  ~BindingRoots();
  BindingRoots(BindingRoots&& other) noexcept = default;
  BindingRoots& operator=(BindingRoots&&) = delete;

  bool empty() const { return roots_.empty(); }

  struct Beneath {
    int root = -1;         // an open directory; ours
    std::string relative;  // from there
  };
  // Reasons: BINDINGS_OFF without roots, PATH_OUTSIDE_ROOTS.
  absl::StatusOr<Beneath> Find(const std::string& path) const;

 private:
  struct Root {
    std::vector<std::string> names;  // as given, and without its links
    int fd = -1;
  };
  std::vector<Root> roots_;
};

struct ForeignAdapter {
  std::string config_json;
  std::unique_ptr<transfer::Arena> memory;
  uint64_t image_bytes = 0;
  std::span<const std::byte> image() const { return memory->bytes().first(image_bytes); }
};

// Besides the reasons of Find: DIRECTORY_INVALID, which is NOT_FOUND where there is nothing;
// DIRECTORY_CHANGED: somebody wrote to it meanwhile; DIRECTORY_TOO_LARGE: more than `bytes_max`.
// `before_check` is for tests: it comes when everything was read, and nothing is compared yet.
absl::StatusOr<ForeignAdapter> ReadForeignDirectory(const BindingRoots& roots,
                                                    const std::string& path, uint64_t bytes_max,
                                                    const std::function<void()>& before_check = {});

}  // namespace lorry::proxy
