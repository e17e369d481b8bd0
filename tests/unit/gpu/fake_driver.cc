#include "tests/unit/gpu/fake_driver.h"

#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "clients/gpu/kernels.h"

using lorry::gpu::View;

// The driver's handles are pointers to these.
struct CUstream_st {
  std::vector<std::function<void()>> queued;
  size_t done = 0;

  void RunTo(size_t end) {
    while (done < end) queued[done++]();
  }
};
struct CUevent_st {
  CUstream stream = nullptr;  // null: not recorded, which counts as done
  size_t end = 0;
  bool asked = false;
};
struct CUmemPoolHandle_st {
  std::vector<std::unique_ptr<unsigned char[]>>
      memory;  // kept, so that who uses it late reads rubbish
  cuuint64_t kept = 0;
  size_t largest = 0;
};
struct CUctx_st {};
struct CUmod_st {
  std::string_view image;
};
struct CUfunc_st {
  bool packs = false;
};

namespace lorry::gpu::fake_driver {
namespace {

CUctx_st context;
CUmod_st module;
CUfunc_st functions[2] = {{.packs = true}, {.packs = false}};
CUstream_st trainers;
std::set<CUdeviceptr> freed;
std::vector<std::unique_ptr<CUstream_st>>
    streams;  // all that ever were, as others may wait for them
int fail_after = -1, held = 0, wrong = 0;
bool capturing = false;
thread_local int depth = 0;
thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// What a call that may fail says before it does anything.
CUresult Begin(bool needs_context = true) {
  if (needs_context && depth == 0) ++wrong;
  return fail_after >= 0 && fail_after-- == 0 ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

// As Begin, of what ends a capture where the thread has not said that it is no part of one.
CUresult BeginUnsafe() {
  if (mode != CU_STREAM_CAPTURE_MODE_RELAXED) ++wrong;
  return Begin();
}

unsigned char* Memory(CUdeviceptr at) { return reinterpret_cast<unsigned char*>(at); }

// The stream that a handle names: null is the legacy default one, where torch trains.
CUstream Named(CUstream stream) { return stream != nullptr ? stream : &trainers; }

void Run(bool packs, const View& view, unsigned blocks) {
  if (freed.count(reinterpret_cast<CUdeviceptr>(view.image)) > 0) ++wrong;
  for (unsigned i = blocks; i-- > 0;) {  // the last first: no block may count on another
    if (packs) {
      auto shared = std::make_unique<TileMemory>();
      PackTile({kThreads}, view, i, *shared);
    } else {
      LeafMemory shared;
      FinishLeaf({kLeafThreads}, view, i, shared);
    }
  }
}

}  // namespace

CUstream TrainersStream() { return &trainers; }
void Queue(CUstream stream, unsigned char* memory, unsigned long long bytes, int value) {
  stream->queued.push_back([=] { std::memset(memory, value, bytes); });
}
void Finish(CUstream stream) { stream->RunTo(stream->queued.size()); }
void FailAfter(int calls) { fail_after = calls; }
void Capture(bool on) { capturing = on; }
int Held() { return held; }
int Depth() { return depth; }
int Wrong() { return wrong; }

}  // namespace lorry::gpu::fake_driver

using namespace lorry::gpu::fake_driver;

#define LORRY_BEGIN(begin) \
  if (const CUresult failed = (begin); failed != CUDA_SUCCESS) return failed

CUresult cuInit(unsigned) { return Begin(false); }

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = "the fake driver failed";
  return error == CUDA_ERROR_LAUNCH_FAILED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  LORRY_BEGIN(Begin(false));
  *device = ordinal;
  return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice) {
  LORRY_BEGIN(Begin(false));
  *out = &context;
  ++held;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice) {
  --held;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext pushed) {
  if (pushed != &context) return CUDA_ERROR_INVALID_CONTEXT;
  ++depth;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* out) {
  *out = &context;
  --depth;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* other) {
  std::swap(mode, *other);
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* out, const void* image) {
  LORRY_BEGIN(BeginUnsafe());
  const auto* head =
      static_cast<const unsigned char*>(image);  // magic, version, sizes of head and rest
  uint32_t magic = 0;
  uint64_t bytes = 0;
  std::memcpy(&magic, head, 4);
  std::memcpy(&bytes, head + 8, 8);
  if (magic != 0xba55ed50) return CUDA_ERROR_INVALID_IMAGE;
  module.image = {static_cast<const char*>(image), 16 + bytes};
  *out = &module;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* out, CUmodule, const char* name) {
  LORRY_BEGIN(Begin());
  if (module.image.find(name) == std::string_view::npos) return CUDA_ERROR_NOT_FOUND;
  *out = &functions[std::string_view(name) == "lorry_pack" ? 0 : 1];
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned y, unsigned z,
                        unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared,
                        CUstream stream, void** arguments, void** extra) {
  LORRY_BEGIN(Begin());
  const unsigned expected = function->packs ? lorry::gpu::kThreads : lorry::gpu::kLeafThreads;
  if (blocks == 0 || threads != expected || y * z * threads_y * threads_z != 1 || shared != 0 ||
      extra != nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  const View view = *static_cast<const View*>(arguments[0]);
  stream->queued.push_back([=, packs = function->packs] { Run(packs, view, blocks); });
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  LORRY_BEGIN(Begin());
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *stream = streams.emplace_back(new CUstream_st).get();
  ++held;
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
  Finish(stream);
  --held;
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  LORRY_BEGIN(Begin());
  *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  LORRY_BEGIN(Begin());
  if (flags != CU_EVENT_WAIT_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  if (event->stream != nullptr)
    Named(stream)->queued.push_back([of = event->stream, end = event->end] { of->RunTo(end); });
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  LORRY_BEGIN(Begin());
  if (flags != CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_VALUE;
  *event = new CUevent_st;
  ++held;
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  delete event;
  --held;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  LORRY_BEGIN(Begin());
  stream = Named(stream);
  *event = {.stream = stream, .end = stream->queued.size(), .asked = false};
  return CUDA_SUCCESS;
}

// Says once that it is not ready, as a GPU that works.
CUresult cuEventQuery(CUevent event) {
  LORRY_BEGIN(Begin());
  if (event->stream != nullptr && !std::exchange(event->asked, true)) return CUDA_ERROR_NOT_READY;
  if (event->stream != nullptr) event->stream->RunTo(event->end);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
  LORRY_BEGIN(BeginUnsafe());
  if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED || props->location.id != 0 ||
      props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  *pool = new CUmemPoolHandle_st;
  ++held;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  delete pool;
  --held;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute name, void* value) {
  LORRY_BEGIN(Begin());
  if (name != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) return CUDA_ERROR_INVALID_VALUE;
  pool->kept = *static_cast<cuuint64_t*>(value);
  return CUDA_SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* memory, size_t bytes, CUmemoryPool pool, CUstream) {
  LORRY_BEGIN(BeginUnsafe());
  // What one image took is kept, and not what all of them did.
  pool->largest = std::max(pool->largest, bytes);
  const bool keeps_one = pool->kept >= pool->largest && pool->kept - pool->largest <= 64 << 20;
  if (bytes == 0 || !keeps_one) return CUDA_ERROR_INVALID_VALUE;
  auto& taken = pool->memory.emplace_back(new unsigned char[bytes + 512]);
  std::memset(taken.get(), 0xa5, bytes + 512);
  const auto aligned = (reinterpret_cast<CUdeviceptr>(taken.get()) + 511) / 512 * 512;
  freed.erase(aligned);
  *memory = aligned;
  ++held;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr memory, CUstream stream) {
  --held;
  stream->queued.push_back([=] { freed.insert(memory); });
  return CUDA_SUCCESS;
}

CUresult cuMemAllocHost(void** memory, size_t bytes) {
  LORRY_BEGIN(BeginUnsafe());
  *memory = new unsigned char[bytes];
  ++held;
  return CUDA_SUCCESS;
}

// Waits for what may still use it, as the driver does.
CUresult cuMemFreeHost(void* memory) {
  for (const auto& stream : streams) Finish(stream.get());
  delete[] static_cast<unsigned char*>(memory);
  --held;
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  LORRY_BEGIN(Begin());
  const auto* begin = static_cast<const unsigned char*>(from);  // pageable: read at once
  stream->queued.push_back([to, read = std::vector<unsigned char>(begin, begin + bytes)] {
    std::memcpy(Memory(to), read.data(), read.size());
  });
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  LORRY_BEGIN(Begin());
  stream->queued.push_back([=] { std::memcpy(to, Memory(from), bytes); });
  return CUDA_SUCCESS;
}
