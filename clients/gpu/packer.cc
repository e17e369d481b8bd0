#include "clients/gpu/packer.h"

#include <cstring>
#include <utility>

namespace lorry::gpu {

Job::~Job() { device_.Free(packed_); }

Outcome Job::Pack(std::vector<Source> sources, uint64_t image_bytes, void* stream) {
  if (packed_.memory != nullptr) return {"the job was packed already"};
  sources_ = std::move(sources);
  if (Outcome planned = MakePlan(sources_, image_bytes, plan_); !planned.ok()) return planned;
  return device_.Pack(plan_, stream, packed_);
}

Outcome Job::Await(std::chrono::milliseconds limit, bool& finished) {
  if (packed_.memory == nullptr) return {"the job was not packed"};
  return device_.Await(packed_, limit, finished);
}

Outcome Job::Find() {
  for (bool finished = false; !finished;) {
    if (Outcome awaited = Await(std::chrono::seconds(1), finished); !awaited.ok()) return awaited;
  }
  const Layout layout(plan_);
  std::vector<unsigned char> results(layout.end - layout.results);
  Drain drain(device_, packed_,
              {{packed_.memory + layout.results, results.data(), results.size()}});
  for (uint64_t landed = 0; !drain.done();) {
    if (Outcome next = drain.Next(landed); !next.ok()) return next;
  }
  std::vector<Partial> partials(plan_.segments.size());
  if (!partials.empty())
    std::memcpy(partials.data(), results.data(), partials.size() * sizeof(Partial));
  stats_ = StatsOf(plan_, sources_, partials);
  leaves_.assign((plan_.image_bytes + kLeafBytes - 1) / kLeafBytes, std::nullopt);
  const unsigned char* hash = results.data() + (layout.hashes - layout.results);
  for (const uint32_t leaf : plan_.leaves) {
    std::memcpy(leaves_[leaf].emplace().bytes, hash, sizeof(Hash));
    hash += sizeof(Hash);
  }
  return {};
}

Outcome Job::Land(unsigned char* image, std::span<const Span> spans, uint64_t& landed) {
  if (packed_.memory == nullptr) return {"the job was not packed"};
  if (!drain_.has_value()) {
    std::vector<Drain::Part> parts;
    for (const Span& span : spans) {
      if (span.begin > plan_.image_bytes || span.bytes > plan_.image_bytes - span.begin)
        return {"a span ends beyond the image"};
      const unsigned char* from = packed_.memory + span.begin;
      if (!parts.empty() && parts.back().from + parts.back().bytes == from) {
        parts.back().bytes += span.bytes;  // a copy takes its time however short it is
      } else {
        parts.push_back({from, image + span.begin, span.bytes});
      }
    }
    drain_.emplace(device_, packed_, std::move(parts));
  }
  return drain_->Next(landed);
}

}  // namespace lorry::gpu
