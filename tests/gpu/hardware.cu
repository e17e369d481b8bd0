// What only a GPU can show: that it packs, hashes and sums as the CPU does, bit by bit; that the
// training stream waits for the pack kernel and for nothing more; and how long that is. Exit status 1
// where something is wrong or the bar is missed, 77 without a GPU. With the argument `sanitized` it
// packs few adapters and times nothing: compute-sanitizer makes a kernel a hundred times slower.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string_view>

#include "clients/gpu/packer.h"
#include "tests/unit/gpu/adapters.h"
#include "tests/unit/gpu/cpu_device.h"

namespace lorry::gpu {
namespace {

constexpr double kBar = 3.0;  // times one device-to-device copy of the image's bytes
constexpr int kRounds = 15;

int failures = 0;
void Expect(bool right, const char* what, uint64_t detail = 0) {
  if (right) return;
  ++failures;
  std::printf("FAILED: %s (%llu)\n", what, static_cast<unsigned long long>(detail));
}
void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}
void Check(const Outcome& outcome) {
  if (outcome.ok()) return;
  std::printf("packer: %s\n", outcome.error.c_str());
  std::exit(1);
}

// The tensors of an adapter in device memory, with the same alignment as on the CPU.
class OnDevice {
 public:
  explicit OnDevice(const Adapter& adapter) : sources(adapter.sources) {
    for (const auto& memory : adapter.memory)
      offsets_.push_back(bytes_), bytes_ += (memory.size() + 511) / 256 * 256;
    Check(cudaMalloc(reinterpret_cast<void**>(&memory_), bytes_));
    for (size_t i = 0; i < sources.size(); ++i) {
      const auto on_cpu = reinterpret_cast<uint64_t>(adapter.memory[i].data());
      unsigned char* begin = memory_ + offsets_[i] + on_cpu % 256;
      Check(cudaMemcpy(begin, adapter.memory[i].data(), adapter.memory[i].size(),
                       cudaMemcpyHostToDevice));
      sources[i].address += reinterpret_cast<uint64_t>(begin) - on_cpu;
    }
  }
  ~OnDevice() { cudaFree(memory_); }

  std::vector<Source> sources;
  unsigned char* memory() const { return memory_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::vector<uint64_t> offsets_;
  uint64_t bytes_ = 0;
  unsigned char* memory_ = nullptr;
};

struct Result {
  std::vector<unsigned char> image;
  std::vector<TensorStats> stats;
  std::vector<std::optional<Hash>> leaves;
};

// Into memory that is there already where `result` has it, as a client's pool of images has.
void Drain(Job& job, const std::vector<Source>& sources, uint64_t image_bytes, Result& result) {
  Check(job.Find());
  result.image.resize(image_bytes);
  std::vector<Job::Span> spans;
  for (const Source& source : sources) spans.push_back({source.begin, source.bytes()});
  for (uint64_t landed = 0, before = 1; landed != before;) {
    before = landed;
    Check(job.Land(result.image.data(), spans, landed));
  }
  result.stats = job.stats();
  result.leaves = job.leaves();
}

Result Drained(Job& job, const std::vector<Source>& sources, uint64_t image_bytes) {
  Result result;
  Drain(job, sources, image_bytes, result);
  return result;
}

void ExpectSame(const Result& gpu, const Result& cpu) {
  Expect(gpu.image == cpu.image, "the image's bytes");
  for (size_t i = 0; i < cpu.stats.size(); ++i) {
    Expect(gpu.stats[i].finite == cpu.stats[i].finite && gpu.stats[i].zero == cpu.stats[i].zero,
           "flags", i);
    Expect(std::bit_cast<uint64_t>(gpu.stats[i].sum_squares) ==
               std::bit_cast<uint64_t>(cpu.stats[i].sum_squares),
           "a sum of squares", i);
  }
  for (size_t i = 0; i < cpu.leaves.size(); ++i) {
    Expect(gpu.leaves[i].has_value() == cpu.leaves[i].has_value(), "which leaves are hashed", i);
    if (gpu.leaves[i].has_value() && cpu.leaves[i].has_value())
      Expect(std::memcmp(gpu.leaves[i]->bytes, cpu.leaves[i]->bytes, 16) == 0, "a leaf's hash", i);
  }
}

// All casts, strided and not, sizes that are multiples of nothing.
Adapter Mixed(uint64_t seed, int tensors, uint64_t columns_max) {
  constexpr Format kF32 = Format::kF32, kF16 = Format::kF16, kBf16 = Format::kBf16;
  constexpr Format kCasts[][2] = {
      {kF32, kF32}, {kF32, kBf16}, {kF16, kF16}, {kF16, kBf16}, {kBf16, kBf16}};
  Prng prng(seed);
  Adapter adapter;
  adapter.image_bytes = 8 * prng.Below(200'000);
  for (int i = 0; i < tensors; ++i) {
    const auto& cast = kCasts[prng.Below(5)];
    AddTensor(adapter, prng, cast[0], cast[1], prng.Below(40), 1 + prng.Below(columns_max),
              1 + prng.Below(5) / 3, prng.Below(5) / 3, prng.Below(9));
  }
  return adapter;
}

void PacksAsTheCpuDoes(Device& device, uint64_t adapters) {
  for (uint64_t seed = 1; seed <= adapters; ++seed) {
    const Adapter adapter = seed == 40 ? Mixed(seed, 20'000, 30) : Mixed(seed, 60, 9000);
    const OnDevice on_device(adapter);
    CpuDevice cpu_device;
    Job on_gpu(device), on_cpu(cpu_device);
    Check(on_gpu.Pack(on_device.sources, adapter.image_bytes, nullptr));
    Check(on_cpu.Pack(adapter.sources, adapter.image_bytes, nullptr));
    ExpectSame(Drained(on_gpu, on_device.sources, adapter.image_bytes),
               Drained(on_cpu, adapter.sources, adapter.image_bytes));
  }
}

__global__ void Spin(long long cycles) {
  for (const long long begin = clock64(); clock64() - begin < cycles;) {
  }
}

// The weights are read after the step that was queued before, and before the one queued after; and
// neither two images in flight nor work of the trainer's disturb each other.
void IsPartOfTheTrainingStream(Device& device, cudaStream_t training) {
  Adapter adapter = Mixed(99, 60, 9000);
  const OnDevice on_device(adapter);
  Job ones(device), twos(device);
  for (const auto& [job, value] : {std::pair(&ones, 1), std::pair(&twos, 2)}) {
    Spin<<<1, 1, 0, training>>>(50'000'000);
    Check(cudaMemsetAsync(on_device.memory(), value, on_device.bytes(), training));
    Check(job->Pack(on_device.sources, adapter.image_bytes, training));
    Check(cudaMemsetAsync(on_device.memory(), 0xff, on_device.bytes(), training));
  }
  Expect(cudaStreamQuery(training) == cudaErrorNotReady, "who publishes waits for no step");
  for (const auto& [job, value] : {std::pair(&ones, 1), std::pair(&twos, 2)}) {
    const Result result = Drained(*job, on_device.sources, adapter.image_bytes);
    for (auto& memory : adapter.memory)  // where its sources point
      std::fill(memory.begin(), memory.end(), static_cast<unsigned char>(value));
    Expect(result.image == Expected(adapter), "the weights are of the step before",
           static_cast<uint64_t>(value));
  }
}

// Two adapters in one process, each with a stream: the second neither waits for the first's step nor
// comes down after it.
void WaitsForNoStepOfAnother(Device& device, cudaStream_t training) {
  cudaStream_t other;
  Check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  const Adapter adapter = Mixed(98, 60, 9000);
  const OnDevice on_device(adapter);
  {
    Job late(device), job(device);
    Spin<<<1, 1, 0, training>>>(2'000'000'000);
    Check(late.Pack(on_device.sources, adapter.image_bytes, training));
    Check(job.Pack(on_device.sources, adapter.image_bytes, other));
    const Result result = Drained(job, on_device.sources, adapter.image_bytes);
    Check(cudaStreamSynchronize(other));
    Expect(cudaStreamQuery(training) == cudaErrorNotReady, "an image waits for another's step");
    Expect(result.image == Expected(adapter), "an image beside another's step");
    Expect(Drained(late, on_device.sources, adapter.image_bytes).image == Expected(adapter),
           "the image that was late");
  }
  Check(cudaStreamDestroy(other));
}

// Images that are queued together have their own memory each; afterwards that of one is kept.
void KeepsTheMemoryOfOneImage(Device& device, cudaStream_t training) {
  constexpr int kImages = 8;
  Prng prng(8);
  Adapter adapter;
  adapter.image_bytes = 40'008;
  AddTensor(adapter, prng, Format::kBf16, Format::kBf16, 16, 200'000'000 / 32);
  const OnDevice on_device(adapter);
  const auto free_bytes = [] {
    size_t free = 0, all = 0;
    Check(cudaMemGetInfo(&free, &all));
    return free;
  };
  const size_t before = free_bytes();
  {
    std::vector<std::unique_ptr<Job>> jobs;
    for (int i = 0; i < kImages; ++i) {
      jobs.push_back(std::make_unique<Job>(device));
      Check(jobs.back()->Pack(on_device.sources, adapter.image_bytes, training));
    }
    for (const auto& job : jobs) Drained(*job, on_device.sources, adapter.image_bytes);
    Expect(before - free_bytes() >= kImages * adapter.image_bytes, "each has its own memory");
  }
  Check(cudaDeviceSynchronize());  // the frees are done
  Check(cudaStreamSynchronize(training));
  const size_t kept = before - std::min(before, free_bytes());
  Expect(kept >= adapter.image_bytes / 2 && kept <= 2 * adapter.image_bytes,
         "the memory of one is kept", kept);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Milliseconds between two events around what `queue` puts into the stream.
template <class Queue>
double Timed(cudaStream_t stream, const Queue& queue) {
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  Spin<<<1, 1, 0, stream>>>(40'000'000);  // so that what follows is queued before it can begin
  Check(cudaEventRecord(begin, stream));
  queue();
  Check(cudaEventRecord(end, stream));
  Check(cudaEventSynchronize(end));
  float ms = 0;
  Check(cudaEventElapsedTime(&ms, begin, end));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return ms;
}

// A training stream is held at most kBar times as long as one copy of the bytes takes.
void HoldsTheTrainingStreamBriefly(Device& device, cudaStream_t training, const char* name,
                                   Format from, int tensors, uint64_t image_bytes) {
  Prng prng(7);
  Adapter adapter;
  adapter.image_bytes = 40'008;
  for (int i = 0; i < tensors; ++i)
    AddTensor(adapter, prng, from, Format::kBf16, 16, image_bytes / 32 / tensors);
  const OnDevice on_device(adapter);
  unsigned char *a, *b, *pinned;
  Check(cudaMalloc(reinterpret_cast<void**>(&a), adapter.image_bytes));
  Check(cudaMalloc(reinterpret_cast<void**>(&b), adapter.image_bytes));
  Check(cudaMallocHost(reinterpret_cast<void**>(&pinned), adapter.image_bytes));
  std::vector<double> held, copied, drained, fetched;
  Result result;
  for (int round = 0; round < kRounds; ++round) {
    Job job(device);
    held.push_back(Timed(
        training, [&] { Check(job.Pack(on_device.sources, adapter.image_bytes, training)); }));
    copied.push_back(Timed(training, [&] {
      Check(cudaMemcpyAsync(b, a, adapter.image_bytes, cudaMemcpyDeviceToDevice, training));
    }));
    const auto begin = std::chrono::steady_clock::now();
    Drain(job, on_device.sources, adapter.image_bytes, result);
    drained.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
            .count());
    fetched.push_back(Timed(training, [&] {
      Check(cudaMemcpyAsync(pinned, a, adapter.image_bytes, cudaMemcpyDeviceToHost, training));
    }));
  }
  const double ratio = Median(held) / Median(copied);
  std::printf(
      "%-28s %6.0f MB  held %7.3f ms  one copy %7.3f ms  ratio %5.2f  drained %7.2f ms  pinned "
      "copy %7.2f ms\n",
      name, static_cast<double>(adapter.image_bytes) / 1e6, Median(held), Median(copied), ratio,
      Median(drained), Median(fetched));
  Expect(ratio <= kBar, "the bar of 3 copies");
  cudaFree(a);
  cudaFree(b);
  cudaFreeHost(pinned);
}

int Main(bool sanitized) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  cudaDeviceProp about;
  Check(cudaGetDeviceProperties(&about, 0));
  std::printf("%s, medians of %d rounds\n", about.name, kRounds);
  std::unique_ptr<Device> device;
  Check(OpenDevice(0, device));
  cudaStream_t training;
  Check(cudaStreamCreate(&training));
  PacksAsTheCpuDoes(*device, sanitized ? 3 : 40);
  if (sanitized) return failures == 0 ? 0 : 1;
  IsPartOfTheTrainingStream(*device, training);
  WaitsForNoStepOfAnother(*device, training);
  KeepsTheMemoryOfOneImage(*device, training);
  HoldsTheTrainingStreamBriefly(*device, training, "bf16, 448 tensors", Format::kBf16, 448,
                                200'000'000);
  HoldsTheTrainingStreamBriefly(*device, training, "fp32 to bf16, 448 tensors", Format::kF32, 448,
                                200'000'000);
  HoldsTheTrainingStreamBriefly(*device, training, "bf16, 20,000 tensors", Format::kBf16, 20'000,
                                200'000'000);
  HoldsTheTrainingStreamBriefly(*device, training, "bf16, 448 tensors, 1 GB", Format::kBf16, 448,
                                1'000'000'000);
  std::printf(failures == 0 ? "all right\n" : "%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lorry::gpu

int main(int argc, char** argv) {
  return lorry::gpu::Main(argc > 1 && std::string_view(argv[1]) == "sanitized");
}
