// Reads the directories of bindings for the machine: from a framework's directory to one that the
// engine reads, under the engine name that its digest certifies.
//
// One directory after the other, on a thread of its own, as each takes as much memory as its image
// twice. Owned by main; shelf and sink outlive it. Thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "lib/runtime/executor.h"
#include "services/engine_proxy/bindings/foreign_directory.h"
#include "services/engine_proxy/driver/event_sink.h"
#include "services/engine_proxy/driver/image_shelf.h"
#include "services/engine_proxy/machine/effects.h"

namespace lorry::proxy {

class BindingReader {
 public:
  // `one_node`: the engine reads directories on this node alone.
  BindingReader(BindingRoots roots, uint64_t image_bytes_max, bool one_node, ImageShelf& shelf,
                EventSink sink);
  ~BindingReader();  // after what runs has ended

  // Answered by BindingRead.
  void Read(const ReadBinding& read);
  // Of a binding whose files are lost; answered by FetchDone, or by FetchFailed BINDING_LOST where
  // its directory has other bytes by now.
  void Fetch(const proxy::Fetch& fetch);

 private:
  struct Image;
  absl::StatusOr<Image> ReadImage(const std::string& path, const peft::BaseModel* base);
  absl::StatusOr<BindingRead> ReadNew(const ReadBinding& read);
  absl::StatusOr<std::string> FetchAgain(const proxy::Fetch& fetch);

  const BindingRoots roots_;
  const uint64_t image_bytes_max_;
  const bool one_node_;
  ImageShelf& shelf_;
  const EventSink sink_;
  runtime::Executor executor_;
};

}  // namespace lorry::proxy
