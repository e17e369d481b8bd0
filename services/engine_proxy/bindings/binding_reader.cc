#include "services/engine_proxy/bindings/binding_reader.h"

#include <spdlog/spdlog.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/peft/canonical_image.h"
#include "lib/peft/digest.h"
#include "lib/peft/values.h"
#include "services/engine_proxy/bindings/tensor_call.h"
#include "services/engine_proxy/machine/binding_name.h"

namespace lorry::proxy {
namespace {

std::string ReasonFor(const absl::Status& status) {
  const std::string reason(ReasonOf(status));
  return reason.empty() ? "FETCH_FAILED" : reason;
}

}  // namespace

struct BindingReader::Image {
  std::unique_ptr<transfer::ImageFile> file;
  std::string config_json;
  Digest digest;
  fleet::VersionTraits traits;
};

BindingReader::BindingReader(BindingRoots roots, uint64_t image_bytes_max, bool one_node,
                             ImageShelf& shelf, TakeBody take_body, EventSink sink)
    : roots_(std::move(roots)),
      image_bytes_max_(image_bytes_max),
      one_node_(one_node),
      shelf_(shelf),
      take_body_(std::move(take_body)),
      sink_(std::move(sink)),
      executor_({.name = "bind", .threads = 1}) {}

BindingReader::~BindingReader() { executor_.Stop(); }

absl::StatusOr<ForeignAdapter> BindingReader::ReadForeign(const ReadBinding& read) {
  if (read.ticket == 0) return ReadForeignDirectory(roots_, read.path, image_bytes_max_);
  const std::optional<std::string> body = take_body_(read.ticket);
  if (body.has_value()) return ReadTensorCall(*body, image_bytes_max_);
  return Error(absl::StatusCode::kCancelled, "TENSORS_INVALID", "the caller has left");
}

absl::StatusOr<BindingReader::Image> BindingReader::MakeImage(const ForeignAdapter& foreign,
                                                              const peft::BaseModel* base) {
  LORRY_ASSIGN_OR_RETURN(
      peft::CanonicalImage planned,
      peft::PlanCanonicalImage(foreign.image(), foreign.image().size(), foreign.config_json, base));
  LORRY_ASSIGN_OR_RETURN(const std::string canonical, peft::CanonicalConfig(planned.config));
  Image image;
  LORRY_ASSIGN_OR_RETURN(image.file, shelf_.Acquire(planned.layout.header.image_bytes));
  peft::WriteCanonicalImage(planned, foreign.image(), image.file->writable());
  peft::ValueScanner scanner(planned.layout.header);
  peft::LeafHasher hasher;
  const std::span<const std::byte> bytes = image.file->bytes();
  // Leaf by leaf, so that the second look at a byte finds it in the cache.
  for (size_t at = 0; at < bytes.size(); at += peft::kLeafBytes) {
    const auto piece = bytes.subspan(at, std::min<size_t>(peft::kLeafBytes, bytes.size() - at));
    hasher.Add(piece);
    scanner.Add(piece);
  }
  const auto values = peft::JudgeValues(planned.layout.header, planned.adapter, scanner.stats(),
                                        /*tensor_norm_max=*/0);
  const auto digest = peft::DigestOf(bytes.size(), hasher.Finish(), canonical);
  if (!values.ok() || !digest.ok()) {
    shelf_.GiveBack(std::move(image.file));
    return values.ok() ? digest.status() : values.status();
  }
  planned.adapter.traits.all_b_zero = values->all_b_zero;
  image.config_json = std::move(planned.config_json);
  image.digest = *digest;
  image.traits = planned.adapter.traits;
  return image;
}

absl::StatusOr<BindingRead> BindingReader::ReadNew(const ReadBinding& read) {
  if (!one_node_)
    return Error(absl::StatusCode::kFailedPrecondition, "BINDING_NEEDS_ONE_NODE",
                 "the engine runs on several nodes, which have this adapter only as a version of "
                 "Lorry's: publish it");
  LORRY_ASSIGN_OR_RETURN(const ForeignAdapter foreign, ReadForeign(read));
  LORRY_ASSIGN_OR_RETURN(Image image,
                         MakeImage(foreign, read.base.has_value() ? &*read.base : nullptr));
  BindingRead done{.op = read.op};
  done.digest = image.digest;
  done.traits = image.traits;
  done.render = fleet::RenderFor(read.kind, image.traits);
  done.name = BindingName(done.digest, done.render);
  if (shelf_.Has(done.name)) {
    shelf_.GiveBack(std::move(image.file));
    // Perhaps nobody remembers it.
    const std::string path = shelf_.PathOf(done.name);
    if (shelf_.Proves(done.name, path, done.digest, done.render)) done.path = path;
    return done;
  }
  LORRY_ASSIGN_OR_RETURN(done.path, shelf_.Place(done.name, std::move(image.file),
                                                 image.config_json, image.traits, done.render));
  return done;
}

void BindingReader::Read(const ReadBinding& read) {
  executor_.SubmitOwn([this, read] {
    absl::StatusOr<BindingRead> done = ReadNew(read);
    if (done.ok()) return sink_(*std::move(done));
    spdlog::warn("cannot bind {}: {} {}", read.path, ReasonFor(done.status()),
                 std::string(done.status().message()));
    BindingRead failed{.op = read.op, .outcome = Outcome::kFailed};
    failed.reason = ReasonFor(done.status());
    failed.detail = std::string(done.status().message());
    failed.missing = absl::IsNotFound(done.status());
    sink_(std::move(failed));
  });
}

absl::StatusOr<std::string> BindingReader::FetchAgain(const proxy::Fetch& fetch) {
  const auto& base = fetch.binding.base;
  if (fetch.binding.path == kTensorsPath) {
    return Error(absl::StatusCode::kDataLoss, "BINDING_LOST",
                 "the copy that was bound is lost, and it came as tensors in a call; load the "
                 "adapter again");
  }
  LORRY_ASSIGN_OR_RETURN(const ForeignAdapter foreign,
                         ReadForeignDirectory(roots_, fetch.binding.path, image_bytes_max_));
  LORRY_ASSIGN_OR_RETURN(Image image, MakeImage(foreign, base.has_value() ? &*base : nullptr));
  if (image.digest != fetch.digest) {
    shelf_.GiveBack(std::move(image.file));
    return Error(absl::StatusCode::kDataLoss, "BINDING_LOST",
                 absl::StrCat("the copy that was bound is lost, and ", fetch.binding.path,
                              " has other bytes by now; load the adapter again"));
  }
  return shelf_.Place(fetch.name, std::move(image.file), image.config_json, image.traits,
                      fetch.render);
}

void BindingReader::Fetch(const proxy::Fetch& fetch) {
  executor_.SubmitOwn([this, fetch] {
    absl::StatusOr<std::string> path = FetchAgain(fetch);
    if (path.ok()) return sink_(FetchDone{fetch.op, *std::move(path)});
    spdlog::warn("cannot read {} again: {}", fetch.binding.path,
                 std::string(path.status().message()));
    sink_(FetchFailed{.op = fetch.op,
                      .reason = ReasonFor(path.status()),
                      .detail = std::string(path.status().message()),
                      .permanent = true,
                      .away = false});
  });
}

}  // namespace lorry::proxy
