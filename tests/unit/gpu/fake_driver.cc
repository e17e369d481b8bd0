#include "tests/unit/gpu/fake_driver.h"

#include <algorithm>
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
struct CUctx_st {
  CUdevice device = 0;
};
struct CUstream_st {
  CUcontext context = nullptr;
  std::vector<std::function<bool()>> queued = {};  // each false while it cannot be done yet
  size_t done = 0;
  bool asked = false, stopped = false, destroyed = false;

  bool RunTo(size_t end) {
    while (done < end && !stopped && queued[done]()) ++done;
    return done >= end;
  }
  void Queue(std::function<void()> work) {
    queued.push_back([work = std::move(work)] { return work(), true; });
    asked = false;
  }
};
struct CUevent_st {
  CUcontext context = nullptr;
  CUstream stream = nullptr;  // null: not recorded, which counts as done
  size_t end = 0;
  bool asked = false;
};
struct CUmemPoolHandle_st {
  CUcontext context = nullptr;
  cuuint64_t kept = 0;
  size_t largest = 0;
  bool waits_for_others = true;  // a stream may be made to wait for another to have its memory
};
struct CUmod_st {
  std::string_view image;
};
struct CUfunc_st {
  bool packs = false;
};

namespace lorry::gpu::fake_driver {
namespace {

// Device memory, which is handed out again once it is free, as a pool does. What is not held has
// rubbish in it. Never given back, as somebody may still use it late.
struct Block {
  std::unique_ptr<unsigned char[]> memory;
  CUdeviceptr begin;
  size_t bytes;
  CUmemoryPool pool;
  bool is_free;
};

CUctx_st contexts[kDevices] = {{0}, {1}};
CUmod_st module;
CUfunc_st functions[2] = {{.packs = true}, {.packs = false}};
CUstream_st trainers[kDevices][2] = {{{&contexts[0]}, {&contexts[0]}},
                                     {{&contexts[1]}, {&contexts[1]}}};
std::vector<Block> blocks;
std::vector<std::unique_ptr<CUstream_st>>
    streams;  // all that ever were, as others may wait for them
int fail_after = -1, held = 0, wrong = 0;
Failure failure;
bool has_failed = false, capturing = false;
thread_local std::vector<CUcontext> current;
thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// What a call that may fail says before it does anything.
CUresult Begin(bool needs_context = true) {
  if (needs_context && current.empty()) ++wrong;
  if (fail_after >= 0 && fail_after-- == 0) {
    has_failed = failure.for_good;
    return failure.error;
  }
  return has_failed ? failure.error : CUDA_SUCCESS;
}

// The call ends a capture where the thread has not said that it is no part of one.
void EndsCaptures() {
  if (mode != CU_STREAM_CAPTURE_MODE_RELAXED) ++wrong;
}
CUresult BeginUnsafe() {
  EndsCaptures();
  return Begin();
}

// Handles are of the context that is current.
template <typename Handle>
Handle Mine(Handle handle) {
  if (current.empty() || handle->context != current.back()) ++wrong;
  return handle;
}

unsigned char* Memory(CUdeviceptr at) { return reinterpret_cast<unsigned char*>(at); }

// Device memory that is held, all of it.
unsigned char* Held(CUdeviceptr at, size_t bytes) {
  for (const Block& block : blocks)
    if (at >= block.begin && at + bytes <= block.begin + block.bytes && !block.is_free)
      return Memory(at);
  ++wrong;
  return Memory(at);
}

// The stream that a handle names: null is the legacy default one, where torch trains.
CUstream Named(CUstream stream) {
  return Mine(stream != nullptr ? stream : TrainersStream(current.back()->device));
}

void Run(bool packs, const View& view, unsigned count) {
  Held(reinterpret_cast<CUdeviceptr>(view.image), 1);
  for (unsigned i = count; i-- > 0;) {  // the last first: no block may count on another
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

CUstream TrainersStream(int device, int number) { return &trainers[device][number]; }
void Queue(CUstream stream, unsigned char* memory, unsigned long long bytes, int value) {
  stream->Queue([=] { std::memset(memory, value, bytes); });
}
void Finish(CUstream stream) { stream->RunTo(stream->queued.size()); }
void Stop(CUstream stream, bool on) { stream->stopped = on; }
bool IsDone(CUstream stream) { return stream->done == stream->queued.size(); }
void FailAfter(int calls, Failure how) {
  fail_after = calls;
  failure = how;
  has_failed = false;
}
void Capture(bool on) { capturing = on; }
int Held() { return held; }
int Depth() { return static_cast<int>(current.size()); }
int Wrong() { return wrong; }

}  // namespace lorry::gpu::fake_driver

using namespace lorry::gpu::fake_driver;

#define LORRY_BEGIN(begin) \
  if (const CUresult failed = (begin); failed != CUDA_SUCCESS) return failed

CUresult cuInit(unsigned) { return Begin(false); }

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = "the fake driver failed";
  return error == failure.error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  LORRY_BEGIN(Begin(false));
  *device = ordinal;
  return ordinal >= 0 && ordinal < kDevices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  LORRY_BEGIN(Begin(false));
  *out = &contexts[device];
  ++held;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice) {
  --held;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext pushed) {
  if (pushed != &contexts[0] && pushed != &contexts[1]) return CUDA_ERROR_INVALID_CONTEXT;
  current.push_back(pushed);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* out) {
  *out = current.back();
  current.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* other) {
  if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
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

CUresult cuLaunchKernel(CUfunction function, unsigned count, unsigned y, unsigned z,
                        unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared,
                        CUstream stream, void** arguments, void** extra) {
  LORRY_BEGIN(Begin());
  const unsigned expected = function->packs ? lorry::gpu::kThreads : lorry::gpu::kLeafThreads;
  if (count == 0 || threads != expected || y * z * threads_y * threads_z != 1 || shared != 0 ||
      extra != nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  const View view = *static_cast<const View*>(arguments[0]);
  Named(stream)->Queue([=, packs = function->packs] { Run(packs, view, count); });
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  LORRY_BEGIN(Begin());
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *stream = streams.emplace_back(new CUstream_st{.context = current.back()}).get();
  ++held;
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
  Mine(stream)->destroyed = true;
  EndsCaptures();
  --held;
  return CUDA_SUCCESS;  // what it holds is done some time
}

// Says once that it is not ready, as a GPU that works.
CUresult cuStreamQuery(CUstream stream) {
  LORRY_BEGIN(BeginUnsafe());
  Mine(stream);
  if (!IsDone(stream) && !std::exchange(stream->asked, true)) return CUDA_ERROR_NOT_READY;
  Finish(stream);
  return IsDone(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  LORRY_BEGIN(Begin());
  Named(stream);
  *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  LORRY_BEGIN(Begin());
  if (flags != CU_EVENT_WAIT_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  if (Mine(event)->stream != nullptr)
    Named(stream)->queued.push_back(
        [of = event->stream, end = event->end] { return of->RunTo(end); });
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  LORRY_BEGIN(Begin());
  if (flags != CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_VALUE;
  *event = new CUevent_st{.context = current.back()};
  ++held;
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  EndsCaptures();
  delete Mine(event);
  --held;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  LORRY_BEGIN(Begin());
  stream = Named(stream);
  *event = {.context = Mine(event)->context,
            .stream = stream,
            .end = stream->queued.size(),
            .asked = false};
  return CUDA_SUCCESS;
}

// Says once that it is not ready, as a GPU that works.
CUresult cuEventQuery(CUevent event) {
  LORRY_BEGIN(BeginUnsafe());
  if (Mine(event)->stream == nullptr) return CUDA_SUCCESS;
  if (!std::exchange(event->asked, true)) return CUDA_ERROR_NOT_READY;
  if (!event->stream->RunTo(event->end)) return CUDA_ERROR_NOT_READY;
  for (const auto& stream : streams)  // what is left of one that is gone comes when it harms most
    if (stream->destroyed) Finish(stream.get());
  return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
  LORRY_BEGIN(BeginUnsafe());
  if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      props->location.id != current.back()->device ||
      props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  *pool = new CUmemPoolHandle_st{.context = current.back()};
  ++held;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  for (Block& block : blocks)
    if (block.pool == pool) block.pool = nullptr;
  delete Mine(pool);
  --held;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute name, void* value) {
  LORRY_BEGIN(Begin());
  if (name == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
    Mine(pool)->waits_for_others = *static_cast<int*>(value) != 0;
    return CUDA_SUCCESS;
  }
  if (name != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) return CUDA_ERROR_INVALID_VALUE;
  Mine(pool)->kept = *static_cast<cuuint64_t*>(value);
  return CUDA_SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* memory, size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
  LORRY_BEGIN(BeginUnsafe());
  Mine(stream);
  // What one image took is kept, and not what all of them did.
  pool->largest = std::max(Mine(pool)->largest, bytes);
  const bool keeps_one = pool->kept >= pool->largest && pool->kept - pool->largest <= 64 << 20;
  if (bytes == 0 || !keeps_one || pool->waits_for_others) return CUDA_ERROR_INVALID_VALUE;
  auto block = std::find_if(blocks.begin(), blocks.end(), [&](const Block& b) {
    return b.is_free && b.pool == pool && b.bytes >= bytes;
  });
  if (block == blocks.end()) {
    auto taken = std::make_unique<unsigned char[]>(bytes + 512);
    const CUdeviceptr aligned = (reinterpret_cast<CUdeviceptr>(taken.get()) + 511) / 512 * 512;
    block = blocks.insert(blocks.end(), {std::move(taken), aligned, bytes, pool, false});
  }
  block->is_free = false;
  std::memset(Memory(block->begin), 0xa5, block->bytes);
  *memory = block->begin;
  ++held;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr memory, CUstream stream) {
  --held;
  Named(stream)->Queue([=] {
    for (Block& block : blocks) {
      if (block.begin != memory) continue;
      block.is_free = true;
      std::memset(Memory(memory), 0xdd, block.bytes);
    }
  });
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
  EndsCaptures();
  for (const auto& stream : streams) Finish(stream.get());
  delete[] static_cast<unsigned char*>(memory);
  --held;
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  LORRY_BEGIN(Begin());
  const auto* begin = static_cast<const unsigned char*>(from);  // pageable: staged at once
  Mine(stream)->Queue([to, read = std::vector<unsigned char>(begin, begin + bytes)] {
    std::memcpy(Held(to, read.size()), read.data(), read.size());
  });
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  LORRY_BEGIN(Begin());
  Mine(stream)->Queue([=] { std::memcpy(to, Held(from, bytes), bytes); });
  return CUDA_SUCCESS;
}
