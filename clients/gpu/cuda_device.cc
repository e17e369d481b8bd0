// The CUDA implementation. The trainer's stream packs, and each image has a stream of its own for
// the rest, so that no image, and no stream of the trainer's, waits for the step of another:
//
//   training             … step … ─┬─ PackTile ─┬─ next step …
//   the image's own   memory, plan ┘            └─ FinishLeaf ─ copies ─ memory is freed
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

// What a copy of one buffer takes longer than hangs: all that is before it is done by then.
constexpr auto kCopyMax = std::chrono::minutes(1);
// More than the pieces in which a pool takes memory from the GPU: the one that ends an image is kept
// whole.
constexpr uint64_t kPieceBytes = 64 << 20;
// Between two looks. CUDA has no wait with a limit; a copy takes some 80 us, a training step seconds.
constexpr auto kLook = std::chrono::microseconds(20), kLookMax = std::chrono::microseconds(500);

// Looks until it is no longer CUDA_ERROR_NOT_READY, or the time is over; the last look.
template <typename Look>
CUresult LookUntil(std::chrono::nanoseconds limit, const Look& look) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (auto pause = kLook;; pause = std::min(2 * pause, kLookMax)) {
    const CUresult state = look();
    if (state != CUDA_ERROR_NOT_READY || std::chrono::steady_clock::now() >= end) return state;
    std::this_thread::sleep_for(pause);  // tidy: allow sleep: CUDA has no wait with a limit
  }
}

// Makes a context the calling thread's for a while.
class Pushed {
 public:
  Pushed(const Driver& driver, CUcontext context)
      : driver_(driver), pushed_(driver.cuCtxPushCurrent(context)) {}
  ~Pushed() {
    CUcontext own = nullptr;
    if (pushed_ == CUDA_SUCCESS) driver_.cuCtxPopCurrent(&own);
  }

 private:
  const Driver& driver_;
  const CUresult pushed_;
};

// As Pushed, and meanwhile no call of this thread spoils a graph that the trainer captures, here or
// in a thread of its own: by default CUDA ends a capture under way where any thread allocates or
// looks at an event.
class Current {
 public:
  Current(const Driver& driver, CUcontext context) : driver_(driver), pushed_(driver, context) {
    driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~Current() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }

 private:
  const Driver& driver_;
  const Pushed pushed_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(const Driver& driver) : driver_(driver) {}
  ~CudaDevice() override;
  Outcome Open(int ordinal);

  Outcome Pack(const Plan& plan, void* stream, Packed& packed) override;
  Outcome Await(const Packed& packed, std::chrono::milliseconds limit, bool& finished) override;
  void Free(const Packed& packed) override;
  Outcome Copy(const Packed& of, int buffer, const unsigned char* from, uint64_t bytes) override;
  Outcome Wait(int buffer) override;
  const unsigned char* buffer(int buffer) const override { return buffers_[buffer]; }

 private:
  Outcome Said(const char* what, CUresult error) const;
  Outcome Take(uint64_t bytes, CUstream own, CUdeviceptr& memory);
  Outcome Upload(const Plan& plan, CUdeviceptr memory, CUstream own);
  Outcome Run(CUfunction kernel, size_t blocks, unsigned threads, View view, CUstream stream,
              const char* what);
  Outcome Launch(const Plan& plan, CUstream training, const Packed& packed, CUstream& last);

  const Driver& driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUfunction pack_ = nullptr, finish_ = nullptr;
  CUevent uploaded_ = nullptr, packed_ = nullptr, copied_[kBuffers] = {};
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

// Whether the kernels are what does not suit.
bool IsOfTheKernels(CUresult error) {
  return error == CUDA_ERROR_NO_BINARY_FOR_GPU || error == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
         error == CUDA_ERROR_INVALID_PTX || error == CUDA_ERROR_INVALID_IMAGE ||
         error == CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
}

Outcome CudaDevice::Open(int ordinal) {
  LORRY_CUDA(cuInit(0), "no GPU");
  LORRY_CUDA(cuDeviceGet(&device_, ordinal), "no such device");
  LORRY_CUDA(cuDevicePrimaryCtxRetain(&context_, device_), "no context");
  const Current current(driver_, context_);
  CUmodule module = nullptr;  // stays in the context, as what runs may be of it
  if (const CUresult loaded = driver_.cuModuleLoadData(&module, lorry_kernels);
      loaded != CUDA_SUCCESS)
    return Said(IsOfTheKernels(loaded)
                    ? "the kernels do not suit this driver or GPU (580 or newer, of 2018 or later)"
                    : "cannot load the kernels",
                loaded);
  LORRY_CUDA(cuModuleGetFunction(&pack_, module, "lorry_pack"), "no kernel");
  LORRY_CUDA(cuModuleGetFunction(&finish_, module, "lorry_finish"), "no kernel");
  for (CUevent* event : {&uploaded_, &packed_, &copied_[0], &copied_[1]})
    LORRY_CUDA(cuEventCreate(event, CU_EVENT_DISABLE_TIMING), "no event");
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.location.id = device_;
  LORRY_CUDA(cuMemPoolCreate(&pool_, &props), "no memory pool");
  // By default CUDA may have a stream wait for another to have its memory: this image for the step
  // of one that was given up.
  int waits_for_others = 0;
  LORRY_CUDA(cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                                   &waits_for_others),
             "no memory pool");
  for (unsigned char*& buffer : buffers_)
    LORRY_CUDA(cuMemAllocHost(reinterpret_cast<void**>(&buffer), kBufferBytes), "no pinned memory");
  return {};
}

CudaDevice::~CudaDevice() {
  if (context_ == nullptr) return;
  {
    const Current current(driver_, context_);
    for (int buffer = 0; buffer < kBuffers; ++buffer) {
      if (buffers_[buffer] == nullptr) continue;
      const CUresult state =
          LookUntil(std::chrono::seconds(1), [&] { return driver_.cuEventQuery(copied_[buffer]); });
      // What a GPU that hangs may still write to is not given back.
      if (state != CUDA_ERROR_NOT_READY) driver_.cuMemFreeHost(buffers_[buffer]);
    }
    for (const CUevent event : {uploaded_, packed_, copied_[0], copied_[1]})
      if (event != nullptr) driver_.cuEventDestroy(event);
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
  CUstream own = nullptr;
  LORRY_CUDA(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING), "no stream");
  CUdeviceptr memory = 0;
  CUstream last = own;  // that uses the memory
  Outcome outcome = Take(Layout(plan).end, own, memory);
  const Packed taken = {reinterpret_cast<unsigned char*>(memory), own};
  if (outcome.ok()) outcome = Upload(plan, memory, own);
  if (outcome.ok()) outcome = Launch(plan, training, taken, last);
  if (outcome.ok()) {
    packed = taken;
    return {};
  }
  if (memory != 0) driver_.cuMemFreeAsync(memory, last);
  driver_.cuStreamDestroy(own);
  return outcome;
}

Outcome CudaDevice::Take(uint64_t bytes, CUstream own, CUdeviceptr& memory) {
  bytes = std::max<uint64_t>(bytes, 1);  // an image of nothing is packed, too
  if (cuuint64_t keep = bytes + kPieceBytes; keep > kept_) {
    LORRY_CUDA(cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep),
               "no memory pool");
    kept_ = keep;
  }
  LORRY_CUDA(cuMemAllocFromPoolAsync(&memory, bytes, pool_, own), "no device memory");
  return {};
}

// From pageable memory, which the driver stages before these calls return. They may wait for what is
// in the stream: the image's own, which holds nothing of the trainer's yet.
Outcome CudaDevice::Upload(const Plan& plan, CUdeviceptr memory, CUstream own) {
  const Layout layout(plan);
  const auto upload = [&](uint64_t at, const auto& table) -> Outcome {
    if (table.empty()) return {};
    LORRY_CUDA(cuMemcpyHtoDAsync(memory + at, table.data(), table.size() * sizeof(table[0]), own),
               "upload");
    return {};
  };
  Outcome outcome = upload(layout.tables, plan.segments);
  if (outcome.ok()) outcome = upload(layout.tiles, plan.tiles);
  if (outcome.ok()) outcome = upload(layout.leaves, plan.leaves);
  return outcome;
}

Outcome CudaDevice::Run(CUfunction kernel, size_t blocks, unsigned threads, View view,
                        CUstream stream, const char* what) {
  if (blocks == 0) return {};
  void* arguments[] = {&view};
  LORRY_CUDA(cuLaunchKernel(kernel, static_cast<unsigned>(blocks), 1, 1, threads, 1, 1, 0, stream,
                            arguments, nullptr),
             what);
  return {};
}

// The trainer's stream waits for the plan, which waits for nothing of anybody's, and then packs.
Outcome CudaDevice::Launch(const Plan& plan, CUstream training, const Packed& packed,
                           CUstream& last) {
  const View view = View::Of(plan, packed.memory);
  const auto own = static_cast<CUstream>(packed.stream);
  LORRY_CUDA(cuEventRecord(uploaded_, own), "upload");
  LORRY_CUDA(cuStreamWaitEvent(training, uploaded_, CU_EVENT_WAIT_DEFAULT), "the trainer's stream");
  last = training;
  Outcome outcome = Run(pack_, plan.tiles.size(), kThreads, view, training, "the packing kernel");
  if (!outcome.ok()) return outcome;
  LORRY_CUDA(cuEventRecord(packed_, training), "the packing kernel");
  LORRY_CUDA(cuStreamWaitEvent(own, packed_, CU_EVENT_WAIT_DEFAULT), "the packing kernel");
  return Run(finish_, plan.leaves.size(), kLeafThreads, view, own, "the hashing kernel");
}

Outcome CudaDevice::Await(const Packed& packed, std::chrono::milliseconds limit, bool& finished) {
  const Current current(driver_, context_);
  const auto own = static_cast<CUstream>(packed.stream);
  const CUresult state = LookUntil(limit, [&] { return driver_.cuStreamQuery(own); });
  finished = state == CUDA_SUCCESS;
  return finished || state == CUDA_ERROR_NOT_READY ? Outcome{} : Said("the kernels", state);
}

void CudaDevice::Free(const Packed& packed) {
  if (packed.memory == nullptr) return;
  const Current current(driver_, context_);
  const auto own = static_cast<CUstream>(packed.stream);
  driver_.cuMemFreeAsync(Address(packed.memory), own);
  driver_.cuStreamDestroy(own);  // does what it holds first, and does not wait for that
}

Outcome CudaDevice::Copy(const Packed& of, int buffer, const unsigned char* from, uint64_t bytes) {
  const Current current(driver_, context_);
  const auto own = static_cast<CUstream>(of.stream);
  // Of a drain that was given up, whose stream is another.
  LORRY_CUDA(cuStreamWaitEvent(own, copied_[buffer], CU_EVENT_WAIT_DEFAULT), "copy");
  LORRY_CUDA(cuMemcpyDtoHAsync(buffers_[buffer], Address(from), bytes, own), "copy");
  LORRY_CUDA(cuEventRecord(copied_[buffer], own), "copy");
  return {};
}

Outcome CudaDevice::Wait(int buffer) {
  const Current current(driver_, context_);
  const CUresult state = LookUntil(kCopyMax, [&] { return driver_.cuEventQuery(copied_[buffer]); });
  if (state == CUDA_ERROR_NOT_READY) return {"the GPU did not finish a copy in a minute"};
  return state == CUDA_SUCCESS ? Outcome{} : Said("copy", state);
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
