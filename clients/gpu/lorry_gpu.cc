#include "clients/gpu/lorry_gpu.h"

#include <cstring>
#include <utility>

#include "clients/gpu/packer.h"

using lorry::gpu::Format;
using lorry::gpu::Job;
using lorry::gpu::Outcome;
using lorry::gpu::Source;

struct lorry_gpu {
  std::unique_ptr<lorry::gpu::Device> device;
};

struct lorry_gpu_job {
  explicit lorry_gpu_job(lorry::gpu::Device& device) : job(device) {}
  Job job;
};

namespace {

const char* Said(Outcome outcome) {
  thread_local std::string said;
  said = std::move(outcome.error);
  return said.empty() ? nullptr : said.c_str();
}

}  // namespace

const char* lorry_gpu_kind(void) { return lorry::gpu::DeviceKind(); }

const char* lorry_gpu_open(int device, lorry_gpu** out) {
  auto gpu = std::make_unique<lorry_gpu>();
  Outcome opened = lorry::gpu::OpenDevice(device, gpu->device);
  if (opened.ok()) *out = gpu.release();
  return Said(std::move(opened));
}

void lorry_gpu_close(lorry_gpu* gpu) { delete gpu; }

const char* lorry_gpu_pack(lorry_gpu* gpu, const lorry_gpu_source* sources, uint64_t count,
                           uint64_t image_bytes, void* stream, lorry_gpu_job** out) {
  std::vector<Source> wanted;
  wanted.reserve(count);
  for (const lorry_gpu_source& s : std::span(sources, count)) {
    wanted.push_back({.address = s.address,
                      .rows = s.rows,
                      .columns = s.columns,
                      .row_stride = s.row_stride,
                      .column_stride = s.column_stride,
                      .begin = s.begin,
                      .from = static_cast<Format>(s.from),
                      .to = static_cast<Format>(s.to)});
  }
  auto job = std::make_unique<lorry_gpu_job>(*gpu->device);
  Outcome packed = job->job.Pack(std::move(wanted), image_bytes, stream);
  if (packed.ok()) *out = job.release();
  return Said(std::move(packed));
}

const char* lorry_gpu_wait(lorry_gpu_job* job, uint64_t milliseconds, uint8_t* packed) {
  bool finished = false;
  Outcome awaited = job->job.Await(std::chrono::milliseconds(milliseconds), finished);
  *packed = finished ? 1 : 0;
  return Said(std::move(awaited));
}

const char* lorry_gpu_find(lorry_gpu_job* job, lorry_gpu_stats* stats, uint8_t* known,
                           uint8_t* hashes) {
  Outcome found = job->job.Find();
  if (!found.ok()) return Said(std::move(found));
  for (const lorry::gpu::TensorStats& of : job->job.stats()) {
    *stats++ = {.sum_squares = of.sum_squares,
                .finite = static_cast<uint8_t>(of.finite),
                .zero = static_cast<uint8_t>(of.zero)};
  }
  for (const std::optional<lorry::gpu::Hash>& leaf : job->job.leaves()) {
    *known++ = leaf.has_value() ? 1 : 0;
    if (leaf.has_value()) std::memcpy(hashes, leaf->bytes, sizeof(leaf->bytes));
    hashes += sizeof(leaf->bytes);
  }
  return nullptr;
}

const char* lorry_gpu_land(lorry_gpu_job* job, unsigned char* image, const uint64_t* spans,
                           uint64_t count, uint64_t* landed) {
  static_assert(sizeof(Job::Span) == 2 * sizeof(uint64_t));
  return Said(job->job.Land(image, {reinterpret_cast<const Job::Span*>(spans), count}, *landed));
}

void lorry_gpu_free(lorry_gpu_job* job) { delete job; }
