// The flags of what frameworks may have read for them (docs/SEMANTICS.md §9).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "services/engine_proxy/bindings/binding_reader.h"

namespace lorry::proxy {

absl::StatusOr<std::unique_ptr<BindingReader>> MakeBindingReader(bool one_node, ImageShelf& shelf,
                                                                 BindingReader::TakeBody take_body,
                                                                 EventSink sink);

}  // namespace lorry::proxy
