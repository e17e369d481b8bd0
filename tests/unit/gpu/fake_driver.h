// NVIDIA's driver without a GPU: a libcuda.so.1 that is as late as a driver may be. What is queued in
// a stream runs when somebody asks for an event behind it, and so does what it waits for in other
// streams, and nothing else: a wait that was forgotten shows as wrong bytes. Kernels run on the CPU.
#pragma once

#include <cuda.h>

namespace lorry::gpu::fake_driver {

inline constexpr int kDevices = 2;

// A trainer's stream on a device, of two; the first is also the one that is named by null. And work
// in it: sets memory to a value.
CUstream TrainersStream(int device = 0, int number = 0);
void Queue(CUstream stream, unsigned char* memory, unsigned long long bytes, int value);
// Runs all that a stream holds, and what it waits for.
void Finish(CUstream stream);
// Nothing in the stream is done until it is let go on.
void Stop(CUstream stream, bool on);
bool IsDone(CUstream stream);

struct Failure {
  CUresult error = CUDA_ERROR_OUT_OF_MEMORY;
  bool for_good = false;  // as after a kernel that failed: every later call does, too
};
// The call that comes after so many others fails; -1: none does. What gives back never fails.
void FailAfter(int calls, Failure how = {});
// The trainer captures its stream into a graph.
void Capture(bool on);

// What was taken and not given back: contexts, pools, memory of any kind, streams and events.
int Held();
// How often a context was made the calling thread's less how often that was undone.
int Depth();
// Calls without a context or with another's handles, those that would end a capture of another
// thread, and what ran in device memory that was free.
int Wrong();

}  // namespace lorry::gpu::fake_driver
