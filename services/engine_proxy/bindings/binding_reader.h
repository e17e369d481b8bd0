// Reads bindings for the machine: from a framework's directory, or the tensors in its call, to a
// directory that the engine reads, under the engine name that its digest certifies.
//
// One after the other, on a thread of its own, as each takes as much memory as its image
// twice. Owned by main; shelf and sink outlive it. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "lib/runtime/executor.h"
#include "services/engine_proxy/bindings/foreign_directory.h"
#include "services/engine_proxy/driver/event_sink.h"
#include "services/engine_proxy/driver/image_shelf.h"
#include "services/engine_proxy/machine/effects.h"

namespace lorry::proxy {

class BindingReader {
 public:
  // Of the call with this ticket, once; none where its caller has left.
  using TakeBody = std::function<std::optional<std::string>(uint64_t ticket)>;

  // `one_node`: the engine reads directories on this node alone.
  BindingReader(BindingRoots roots, uint64_t image_bytes_max, bool one_node, ImageShelf& shelf,
                TakeBody take_body, EventSink sink);
  ~BindingReader();  // after what runs has ended

  // Answered by BindingRead.
  void Read(const ReadBinding& read);
  // Of a binding whose files are lost; answered by FetchDone, or by FetchFailed BINDING_LOST where
  // its directory has other bytes by now, or it never had one.
  void Fetch(const proxy::Fetch& fetch);

 private:
  struct Image;
  absl::StatusOr<ForeignAdapter> ReadForeign(const ReadBinding& read);
  absl::StatusOr<Image> MakeImage(const ForeignAdapter& foreign, const peft::BaseModel* base);
  absl::StatusOr<BindingRead> ReadNew(const ReadBinding& read);
  absl::StatusOr<std::string> FetchAgain(const proxy::Fetch& fetch);

  const BindingRoots roots_;
  const uint64_t image_bytes_max_;
  const bool one_node_;
  ImageShelf& shelf_;
  const TakeBody take_body_;
  const EventSink sink_;
  // The machine's operations bound what waits here: it reads one directory at a time, and fetches two.
  runtime::Executor executor_;
};

}  // namespace lorry::proxy
