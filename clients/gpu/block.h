// What a kernel is written in: steps that every thread of a block takes before any takes the next.
// The same code runs on a GPU and, thread by thread, on the CPU, where tests see all of it. No CUDA
// header is needed. Pure, any thread.
#pragma once

#ifdef __CUDACC__
#define LORRY_HD __host__ __device__
#else
#define LORRY_HD
#endif

namespace lorry::gpu {

struct Block {
  unsigned threads;
  // On the CPU, the i-th thread to take a step is i * stride mod threads. A step whose result
  // depends on the order is a race on a GPU. Coprime to `threads`.
  unsigned stride = 1;

  // `step` is called with each thread's number; what it wrote is seen by all in the next step.
  template <class Step>
  LORRY_HD void Each(const Step& step) const {
#ifdef __CUDA_ARCH__
    step(threadIdx.x);
    __syncthreads();
#else
    for (unsigned i = 0; i < threads; ++i) step(i * stride % threads);
#endif
  }
};

}  // namespace lorry::gpu
