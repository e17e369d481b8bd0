// The CUDA implementation. Three streams of its own, and events between them and the trainer's:
//
//   training  ── ready ──┐            ┌─ packed ── goes on
//   uploading   plan ────┤            │
//   packing              └─ PackTile ─┴─ FinishLeaf ── finished ─┐
//   copying                        copies of the image before ───┴─ copies of this one
//
// Nothing waits for a whole device. Memory comes from a pool of its own, in stream order, where that
// of one image stays for the next publish. More, of images that were queued together, goes back to
// the GPU when somebody in the process next synchronises, as trainers do in every step. The context
// is the device's primary one, which is the trainer's.
#include <algorithm>
#include <chrono>
#include <thread>

#include "clients/gpu/cuda_driver.h"
#include "clients/gpu/device.h"
#include "clients/gpu/kernels.h"

#define LORRY_CUDA(call, what)                                                             \
  if (const CUresult cuda_error = (driver_.call); cuda_error != CUDA_SUCCESS) [[unlikely]] \
  return Said(what, cuda_error)

// What nvcc made of kernels.cu, for each kind of GPU, where cuobjdump looks for it.
asm(".pushsection .nv_fatbin, \"a\"\n"
    ".balign 64\n"
    ".globl lorry_kernels\n"
    ".hidden lorry_kernels\n"
    "lorry_kernels: .incbin \"" LORRY_KERNELS
    "\"\n"
    ".popsection");
extern "C" __attribute__((visibility("hidden"))) const unsigned char lorry_kernels[];

namespace lorry::gpu {
namespace {

// A copy waits for the training step that was under way when it was queued. What takes longer than
// this hangs.
constexpr auto kWaitMax = std::chrono::minutes(10);
// More than the pieces in which a pool takes memory from the GPU: the one that ends an image is kept
// whole.
constexpr uint64_t kPieceBytes = 64 << 20;
// Between two looks at an event. CUDA has no wait with a limit, and a copy takes some 80 us.
constexpr auto kLook = std::chrono::microseconds(20);

// Meanwhile no call of this thread spoils a graph that the trainer captures, here or in a thread of
// its own: by default CUDA ends a capture under way where any thread allocates.
class Relaxed {
 public:
  explicit Relaxed(const Driver& driver) : driver_(driver) {
    driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~Relaxed() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Makes a context the calling thread's for a while.
class Current {
 public:
  Current(const Driver& driver, CUcontext context)
      : driver_(driver), relaxed_(driver), pushed_(driver.cuCtxPushCurrent(context)) {}
  ~Current() {
    CUcontext own = nullptr;
    if (pushed_ == CUDA_SUCCESS) driver_.cuCtxPopCurrent(&own);
  }

 private:
  const Driver& driver_;
  const Relaxed relaxed_;
  const CUresult pushed_;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(const Driver& driver) : driver_(driver) {}
  ~CudaDevice() override;
  Outcome Open(int ordinal);

  Outcome Pack(const Plan& plan, void* stream, Packed& packed) override;
  Outcome Await(const Packed& packed) override;
  void Free(const Packed& packed) override;
  Outcome Copy(int buffer, const unsigned char* from, uint64_t bytes) override;
  Outcome Wait(int buffer) override;
  const unsigned char* buffer(int buffer) const override { return buffers_[buffer]; }

 private:
  Outcome Said(const char* what, CUresult error) const;
  Outcome Upload(const Plan& plan, CUdeviceptr memory);
  Outcome Take(uint64_t bytes, CUdeviceptr& memory);
  Outcome Run(CUfunction kernel, size_t blocks, unsigned threads, View view, const char* what);
  Outcome Launch(const Plan& plan, CUstream training, const Packed& packed);

  const Driver& driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUfunction pack_ = nullptr, finish_ = nullptr;
  CUstream uploading_ = nullptr, packing_ = nullptr, copying_ = nullptr;
  CUevent uploaded_ = nullptr, ready_ = nullptr, packed_ = nullptr, copied_[kBuffers] = {};
  CUmemoryPool pool_ = nullptr;
  cuuint64_t kept_ = 0;  // of its bytes
  unsigned char* buffers_[kBuffers] = {};
};

CUdeviceptr Address(const unsigned char* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

Outcome CudaDevice::Said(const char* what, CUresult error) const {
  const char* text = nullptr;  // stays so for an error that the driver does not know itself
  driver_.cuGetErrorString(error, &text);
  return {std::string(what) + ": " + (text != nullptr ? text : std::to_string(error))};
}

Outcome CudaDevice::Open(int ordinal) {
  LORRY_CUDA(cuInit(0), "no GPU");
  LORRY_CUDA(cuDeviceGet(&device_, ordinal), "no such device");
  const Relaxed relaxed(driver_);
  LORRY_CUDA(cuDevicePrimaryCtxRetain(&context_, device_), "no context");
  const Current current(driver_, context_);
  CUmodule module = nullptr;  // stays in the context, as what runs may be of it
  LORRY_CUDA(cuModuleLoadData(&module, lorry_kernels),
             "the kernels do not suit this driver or GPU (580 or newer, of 2018 or later)");
  LORRY_CUDA(cuModuleGetFunction(&pack_, module, "lorry_pack"), "no kernel");
  LORRY_CUDA(cuModuleGetFunction(&finish_, module, "lorry_finish"), "no kernel");
  for (CUstream* stream : {&uploading_, &packing_, &copying_})
    LORRY_CUDA(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING), "no stream");
  for (CUevent* event : {&uploaded_, &ready_, &packed_, &copied_[0], &copied_[1]})
    LORRY_CUDA(cuEventCreate(event, CU_EVENT_DISABLE_TIMING), "no event");
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.location.id = device_;
  LORRY_CUDA(cuMemPoolCreate(&pool_, &props), "no memory pool");
  for (unsigned char*& buffer : buffers_)
    LORRY_CUDA(cuMemAllocHost(reinterpret_cast<void**>(&buffer), kBufferBytes), "no pinned memory");
  return {};
}

CudaDevice::~CudaDevice() {
  if (context_ == nullptr) return;
  {
    const Current current(driver_, context_);
    // What a GPU that hangs may still write to is not given back.
    for (int buffer = 0; buffer < kBuffers; ++buffer)
      if (buffers_[buffer] != nullptr && Wait(buffer).ok()) driver_.cuMemFreeHost(buffers_[buffer]);
    for (const CUevent event : {uploaded_, ready_, packed_, copied_[0], copied_[1]})
      if (event != nullptr) driver_.cuEventDestroy(event);
    for (const CUstream stream : {uploading_, packing_, copying_})
      if (stream != nullptr) driver_.cuStreamDestroy(stream);
    if (pool_ != nullptr) driver_.cuMemPoolDestroy(pool_);
  }
  driver_.cuDevicePrimaryCtxRelease(device_);
}

Outcome CudaDevice::Pack(const Plan& plan, void* stream, Packed& packed) {
  const Current current(driver_, context_);
  const auto training = static_cast<CUstream>(stream);
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  LORRY_CUDA(cuStreamIsCapturing(training, &capture), "the trainer's stream");
  if (capture != CU_STREAM_CAPTURE_STATUS_NONE)
    return {"the trainer's stream is captured into a graph"};
  CUevent finished = nullptr;
  LORRY_CUDA(cuEventCreate(&finished, CU_EVENT_DISABLE_TIMING), "no event");
  CUdeviceptr memory = 0;
  Outcome outcome = Take(Layout(plan).end, memory);
  const Packed taken = {reinterpret_cast<unsigned char*>(memory), finished};
  if (outcome.ok()) outcome = Upload(plan, memory);
  if (outcome.ok()) outcome = Launch(plan, training, taken);
  if (outcome.ok()) {
    packed = taken;
    return {};
  }
  if (memory != 0) driver_.cuMemFreeAsync(memory, packing_);
  driver_.cuEventDestroy(finished);
  return outcome;
}

Outcome CudaDevice::Take(uint64_t bytes, CUdeviceptr& memory) {
  bytes = std::max<uint64_t>(bytes, 1);  // an image of nothing is packed, too
  if (cuuint64_t keep = bytes + kPieceBytes; keep > kept_) {
    LORRY_CUDA(cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep),
               "no memory pool");
    kept_ = keep;
  }
  LORRY_CUDA(cuMemAllocFromPoolAsync(&memory, bytes, pool_, uploading_), "no device memory");
  return {};
}

// From pageable memory: CUDA has read it when the calls return, which may wait for what is in the
// stream. That is earlier uploads only, and never a step of the trainer's.
Outcome CudaDevice::Upload(const Plan& plan, CUdeviceptr memory) {
  const Layout layout(plan);
  const auto upload = [&](uint64_t at, const auto& table) -> Outcome {
    if (table.empty()) return {};
    LORRY_CUDA(
        cuMemcpyHtoDAsync(memory + at, table.data(), table.size() * sizeof(table[0]), uploading_),
        "upload");
    return {};
  };
  Outcome outcome = upload(layout.tables, plan.segments);
  if (outcome.ok()) outcome = upload(layout.tiles, plan.tiles);
  if (outcome.ok()) outcome = upload(layout.leaves, plan.leaves);
  return outcome;
}

Outcome CudaDevice::Run(CUfunction kernel, size_t blocks, unsigned threads, View view,
                        const char* what) {
  if (blocks == 0) return {};
  void* arguments[] = {&view};
  LORRY_CUDA(cuLaunchKernel(kernel, static_cast<unsigned>(blocks), 1, 1, threads, 1, 1, 0, packing_,
                            arguments, nullptr),
             what);
  return {};
}

Outcome CudaDevice::Launch(const Plan& plan, CUstream training, const Packed& packed) {
  const View view = View::Of(plan, packed.memory);
  LORRY_CUDA(cuEventRecord(uploaded_, uploading_), "upload");
  LORRY_CUDA(cuStreamWaitEvent(packing_, uploaded_, CU_EVENT_WAIT_DEFAULT), "upload");
  LORRY_CUDA(cuEventRecord(ready_, training), "the trainer's stream");
  LORRY_CUDA(cuStreamWaitEvent(packing_, ready_, CU_EVENT_WAIT_DEFAULT), "the trainer's stream");
  Outcome outcome = Run(pack_, plan.tiles.size(), kThreads, view, "the packing kernel");
  if (!outcome.ok()) return outcome;
  LORRY_CUDA(cuEventRecord(packed_, packing_), "the packing kernel");
  outcome = Run(finish_, plan.leaves.size(), kLeafThreads, view, "the hashing kernel");
  if (!outcome.ok()) return outcome;
  LORRY_CUDA(cuEventRecord(static_cast<CUevent>(packed.finished), packing_), "the hashing kernel");
  LORRY_CUDA(cuStreamWaitEvent(training, packed_, CU_EVENT_WAIT_DEFAULT), "the trainer's stream");
  return {};
}

Outcome CudaDevice::Await(const Packed& packed) {
  const Current current(driver_, context_);
  LORRY_CUDA(
      cuStreamWaitEvent(copying_, static_cast<CUevent>(packed.finished), CU_EVENT_WAIT_DEFAULT),
      "the kernels");
  return {};
}

void CudaDevice::Free(const Packed& packed) {
  if (packed.memory == nullptr) return;
  const Current current(driver_, context_);
  const auto finished = static_cast<CUevent>(packed.finished);
  // Where nobody has waited for it.
  driver_.cuStreamWaitEvent(copying_, finished, CU_EVENT_WAIT_DEFAULT);
  driver_.cuMemFreeAsync(Address(packed.memory), copying_);
  driver_.cuEventDestroy(finished);
}

Outcome CudaDevice::Copy(int buffer, const unsigned char* from, uint64_t bytes) {
  const Current current(driver_, context_);
  LORRY_CUDA(cuMemcpyDtoHAsync(buffers_[buffer], Address(from), bytes, copying_), "copy");
  LORRY_CUDA(cuEventRecord(copied_[buffer], copying_), "copy");
  return {};
}

Outcome CudaDevice::Wait(int buffer) {
  const Current current(driver_, context_);
  const auto give_up = std::chrono::steady_clock::now() + kWaitMax;
  while (true) {
    const CUresult state = driver_.cuEventQuery(copied_[buffer]);
    if (state == CUDA_SUCCESS) return {};
    if (state != CUDA_ERROR_NOT_READY) return Said("copy", state);
    if (std::chrono::steady_clock::now() > give_up)
      return {"the GPU did not finish in ten minutes"};
    std::this_thread::sleep_for(kLook);  // tidy: allow sleep: CUDA has no wait with a limit
  }
}

}  // namespace

Outcome OpenDevice(int ordinal, std::unique_ptr<Device>& device) {
  std::string missing;
  const Driver* driver = Driver::Find(missing);
  if (driver == nullptr) return {missing};
  auto opened = std::make_unique<CudaDevice>(*driver);
  Outcome outcome = opened->Open(ordinal);
  if (outcome.ok()) device = std::move(opened);
  return outcome;
}

const char* DeviceKind() { return "cuda"; }

}  // namespace lorry::gpu
