// The CUDA implementation. Three streams of its own, and events between them and the trainer's:
//
//   training  ── ready ──┐            ┌─ packed ── goes on
//   uploading   plan ────┤            │
//   packing              └─ PackTile ─┴─ FinishLeaf ── finished ─┐
//   copying                        copies of the image before ───┴─ copies of this one
//
// Nothing waits for a whole device. Memory comes from a pool of its own, in stream order, and stays
// there for the next publish.
#include <cuda.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "clients/gpu/device.h"
#include "clients/gpu/kernels.h"

#define LORRY_CUDA(call, what)                                                       \
  if (const cudaError_t cuda_error = (call); cuda_error != cudaSuccess) [[unlikely]] \
    return Outcome { std::string(what) + ": " + cudaGetErrorString(cuda_error) }

namespace lorry::gpu {
namespace {

// A copy waits for the training step that was under way when it was queued. What takes longer than
// this hangs.
constexpr auto kWaitMax = std::chrono::minutes(10);
// Between two looks at an event. CUDA has no wait with a limit, and a copy takes some 80 us.
constexpr auto kLook = std::chrono::microseconds(20);

__global__ void __launch_bounds__(kThreads) Pack(View view) {
  __shared__ TileMemory shared;
  PackTile(Block{kThreads}, view, blockIdx.x, shared);
}

__global__ void __launch_bounds__(kLeafThreads) Finish(View view) {
  __shared__ LeafMemory shared;
  FinishLeaf(Block{kLeafThreads}, view, blockIdx.x, shared);
}

// Makes a device the calling thread's for a while. What was before is brought back by the driver's
// call: cudaSetDevice would take memory of device 0 for a context in each thread that never chose.
// Meanwhile no call of this thread spoils a graph that the trainer captures, here or in a thread of
// its own: by default CUDA ends a capture under way where any thread allocates.
class Current {
 public:
  explicit Current(int ordinal) {
    cudaThreadExchangeStreamCaptureMode(&capture_mode_);
    static const auto kGet =
        reinterpret_cast<decltype(&cuCtxGetCurrent)>(Driver("cuCtxGetCurrent"));
    if (kGet != nullptr) kGet(&before_);
    cudaSetDevice(ordinal);
  }
  ~Current() {
    static const auto kSet =
        reinterpret_cast<decltype(&cuCtxSetCurrent)>(Driver("cuCtxSetCurrent"));
    if (kSet != nullptr) kSet(before_);
    cudaThreadExchangeStreamCaptureMode(&capture_mode_);
  }

 private:
  // Null without a driver.
  static void* Driver(const char* name) {
    void* found = nullptr;
    cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault);
    return found;
  }
  CUcontext before_ = nullptr;
  cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int ordinal) : ordinal_(ordinal) {}
  ~CudaDevice() override;
  Outcome Open();

  Outcome Pack(const Plan& plan, void* stream, Packed& packed) override;
  Outcome Await(const Packed& packed) override;
  void Free(const Packed& packed) override;
  Outcome Copy(int buffer, const unsigned char* from, uint64_t bytes) override;
  Outcome Wait(int buffer) override;
  const unsigned char* buffer(int buffer) const override { return buffers_[buffer]; }

 private:
  Outcome Upload(const Plan& plan, unsigned char* memory);
  Outcome Take(uint64_t bytes, void*& memory);
  cudaError_t Run(void (*kernel)(View), size_t blocks, unsigned threads, View view);
  Outcome Launch(const Plan& plan, cudaStream_t training, const Packed& packed);

  const int ordinal_;
  cudaStream_t uploading_ = nullptr, packing_ = nullptr, copying_ = nullptr;
  cudaEvent_t uploaded_ = nullptr, ready_ = nullptr, packed_ = nullptr, copied_[kBuffers] = {};
  cudaMemPool_t pool_ = nullptr;
  unsigned char* buffers_[kBuffers] = {};
};

Outcome CudaDevice::Open() {
  LORRY_CUDA(cudaSetDevice(ordinal_), "no such device");
  for (cudaStream_t* stream : {&uploading_, &packing_, &copying_})
    LORRY_CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "no stream");
  for (cudaEvent_t* event : {&uploaded_, &ready_, &packed_, &copied_[0], &copied_[1]})
    LORRY_CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "no event");
  cudaMemPoolProps props = {};
  props.allocType = cudaMemAllocationTypePinned;
  props.location = {.type = cudaMemLocationTypeDevice, .id = ordinal_};
  LORRY_CUDA(cudaMemPoolCreate(&pool_, &props), "no memory pool");
  uint64_t keep = UINT64_MAX;
  LORRY_CUDA(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep),
             "no memory pool");
  for (unsigned char*& buffer : buffers_)
    LORRY_CUDA(cudaMallocHost(reinterpret_cast<void**>(&buffer), kBufferBytes), "no pinned memory");
  return {};
}

CudaDevice::~CudaDevice() {
  const Current current(ordinal_);
  // What a GPU that hangs may still write to is not given back.
  for (int buffer = 0; buffer < kBuffers; ++buffer)
    if (buffers_[buffer] != nullptr && Wait(buffer).ok()) cudaFreeHost(buffers_[buffer]);
  for (const cudaEvent_t event : {uploaded_, ready_, packed_, copied_[0], copied_[1]})
    if (event != nullptr) cudaEventDestroy(event);
  for (const cudaStream_t stream : {uploading_, packing_, copying_})
    if (stream != nullptr) cudaStreamDestroy(stream);
  if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
}

Outcome CudaDevice::Pack(const Plan& plan, void* stream, Packed& packed) {
  const Current current(ordinal_);
  const auto training = static_cast<cudaStream_t>(stream);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  LORRY_CUDA(cudaStreamIsCapturing(training, &capture), "the trainer's stream");
  if (capture != cudaStreamCaptureStatusNone)
    return {"the trainer's stream is captured into a graph"};
  cudaEvent_t finished = nullptr;
  LORRY_CUDA(cudaEventCreateWithFlags(&finished, cudaEventDisableTiming), "no event");
  void* memory = nullptr;
  Outcome outcome = Take(Layout(plan).end, memory);
  const Packed taken = {static_cast<unsigned char*>(memory), finished};
  if (outcome.ok()) outcome = Upload(plan, taken.memory);
  if (outcome.ok()) outcome = Launch(plan, training, taken);
  if (outcome.ok()) {
    packed = taken;
    return {};
  }
  if (memory != nullptr) cudaFreeAsync(memory, packing_);
  cudaEventDestroy(finished);
  return outcome;
}

Outcome CudaDevice::Take(uint64_t bytes, void*& memory) {
  LORRY_CUDA(cudaMallocFromPoolAsync(&memory, bytes, pool_, uploading_), "no device memory");
  return {};
}

// From pageable memory: CUDA has read it when the calls return, which may wait for what is in the
// stream. That is earlier uploads only, and never a step of the trainer's.
Outcome CudaDevice::Upload(const Plan& plan, unsigned char* memory) {
  const Layout layout(plan);
  const auto upload = [&](uint64_t at, const auto& table) {
    return cudaMemcpyAsync(memory + at, table.data(), table.size() * sizeof(table[0]),
                           cudaMemcpyHostToDevice, uploading_);
  };
  if (plan.segments.empty()) return {};
  LORRY_CUDA(upload(layout.tables, plan.segments), "upload");
  LORRY_CUDA(upload(layout.tiles, plan.tiles), "upload");
  if (!plan.leaves.empty()) LORRY_CUDA(upload(layout.leaves, plan.leaves), "upload");
  return {};
}

cudaError_t CudaDevice::Run(void (*kernel)(View), size_t blocks, unsigned threads, View view) {
  if (blocks == 0) return cudaSuccess;
  void* arguments[] = {&view};
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(threads), arguments, 0,
                          packing_);
}

Outcome CudaDevice::Launch(const Plan& plan, cudaStream_t training, const Packed& packed) {
  const View view = View::Of(plan, packed.memory);
  LORRY_CUDA(cudaEventRecord(uploaded_, uploading_), "upload");
  LORRY_CUDA(cudaStreamWaitEvent(packing_, uploaded_), "upload");
  LORRY_CUDA(cudaEventRecord(ready_, training), "the trainer's stream");
  LORRY_CUDA(cudaStreamWaitEvent(packing_, ready_), "the trainer's stream");
  LORRY_CUDA(Run(gpu::Pack, plan.tiles.size(), kThreads, view), "the packing kernel");
  LORRY_CUDA(cudaEventRecord(packed_, packing_), "the packing kernel");
  LORRY_CUDA(Run(Finish, plan.leaves.size(), kLeafThreads, view), "the hashing kernel");
  LORRY_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(packed.finished), packing_),
             "the hashing kernel");
  LORRY_CUDA(cudaStreamWaitEvent(training, packed_), "the trainer's stream");
  return {};
}

Outcome CudaDevice::Await(const Packed& packed) {
  const Current current(ordinal_);
  LORRY_CUDA(cudaStreamWaitEvent(copying_, static_cast<cudaEvent_t>(packed.finished)),
             "the kernels");
  return {};
}

void CudaDevice::Free(const Packed& packed) {
  if (packed.memory == nullptr) return;
  const Current current(ordinal_);
  const auto finished = static_cast<cudaEvent_t>(packed.finished);
  cudaStreamWaitEvent(copying_, finished);  // where nobody has waited for it
  cudaFreeAsync(packed.memory, copying_);
  cudaEventDestroy(finished);
}

Outcome CudaDevice::Copy(int buffer, const unsigned char* from, uint64_t bytes) {
  const Current current(ordinal_);
  LORRY_CUDA(cudaMemcpyAsync(buffers_[buffer], from, bytes, cudaMemcpyDeviceToHost, copying_),
             "copy");
  LORRY_CUDA(cudaEventRecord(copied_[buffer], copying_), "copy");
  return {};
}

Outcome CudaDevice::Wait(int buffer) {
  const Current current(ordinal_);
  const auto give_up = std::chrono::steady_clock::now() + kWaitMax;
  while (true) {
    const cudaError_t state = cudaEventQuery(copied_[buffer]);
    if (state == cudaSuccess) return {};
    if (state != cudaErrorNotReady) return {std::string("copy: ") + cudaGetErrorString(state)};
    if (std::chrono::steady_clock::now() > give_up)
      return {"the GPU did not finish in ten minutes"};
    std::this_thread::sleep_for(kLook);  // tidy: allow sleep: CUDA has no wait with a limit
  }
}

}  // namespace

Outcome OpenDevice(int ordinal, std::unique_ptr<Device>& device) {
  const Current current(ordinal);
  auto opened = std::make_unique<CudaDevice>(ordinal);
  Outcome outcome = opened->Open();
  if (outcome.ok()) device = std::move(opened);
  return outcome;
}

const char* DeviceKind() { return "cuda"; }

}  // namespace lorry::gpu
