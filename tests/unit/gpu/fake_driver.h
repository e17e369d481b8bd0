// NVIDIA's driver without a GPU: a libcuda.so.1 that is as late as a driver may be. What is queued in
// a stream runs when somebody asks for an event behind it, and so does what it waits for in other
// streams, and nothing else: a wait that was forgotten shows as wrong bytes. Kernels run on the CPU.
#pragma once

#include <cuda.h>

namespace lorry::gpu::fake_driver {

// The trainer's stream, which is also the one that is named by null, and work in it: sets memory to
// a value.
CUstream TrainersStream();
void Queue(CUstream stream, unsigned char* memory, unsigned long long bytes, int value);
// Runs all that a stream holds, and what it waits for.
void Finish(CUstream stream);

// The call that comes after so many others fails; -1: none does. What gives back never fails.
void FailAfter(int calls);
// The trainer captures its stream into a graph.
void Capture(bool on);

// What was taken and not given back: contexts, pools, memory of any kind, streams and events.
int Held();
// How often the calling thread's context was made current less how often that was undone.
int Depth();
// Calls that came without a context, allocations that would end a capture of another thread, and
// kernels that ran in memory that was freed before.
int Wrong();

}  // namespace lorry::gpu::fake_driver
