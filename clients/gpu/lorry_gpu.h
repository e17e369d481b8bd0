// The packer for other languages: what clients/python/src/lorry/gpu.py calls. Functions that return
// a text return NULL when all went well, else what went wrong, which lives until the same thread's
// next call. Of the jobs of a packer one is packed at a time, and one at a time is found or landed.
// Nothing here ends the process.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lorry_gpu lorry_gpu;
typedef struct lorry_gpu_job lorry_gpu_job;

// A tensor as a matrix on the GPU, strides in elements, and where its bytes go in the image. Formats:
// 0 fp32, 1 fp16, 2 bf16; `to` is `from` or 2.
typedef struct {
  uint64_t address, rows, columns;
  int64_t row_stride, column_stride;
  uint64_t begin;
  uint8_t from, to;
} lorry_gpu_source;

typedef struct {
  double sum_squares;
  uint8_t finite, zero;
} lorry_gpu_stats;

// What this library packs from, as torch names it: "cuda".
const char* lorry_gpu_kind(void);
const char* lorry_gpu_open(int device, lorry_gpu** out);
void lorry_gpu_close(lorry_gpu* gpu);  // after its jobs

// Queues the packing of `sources`, in the order of their bytes, after what is in `stream` by now,
// which goes on when they are packed. Returns at once.
const char* lorry_gpu_pack(lorry_gpu* gpu, const lorry_gpu_source* sources, uint64_t count,
                           uint64_t image_bytes, void* stream, lorry_gpu_job** out);
// Waits until the image is packed, which is when the stream has come so far, but at most so many
// milliseconds. Says whether it is.
const char* lorry_gpu_wait(lorry_gpu_job* job, uint64_t milliseconds, uint8_t* packed);
// Waits for what was found: of each source, and of each leaf of 1 MiB of the image whether `known`,
// and its XXH3-128 (16 bytes).
const char* lorry_gpu_find(lorry_gpu_job* job, lorry_gpu_stats* stats, uint8_t* known,
                           uint8_t* hashes);
// Lands the next bytes of the `count` spans (begin, bytes) of the image, the same at each call, and
// adds how many to `landed`; none when all have.
const char* lorry_gpu_land(lorry_gpu_job* job, unsigned char* image, const uint64_t* spans,
                           uint64_t count, uint64_t* landed);
void lorry_gpu_free(lorry_gpu_job* job);

#ifdef __cplusplus
}
#endif
