// SPDX-License-Identifier: BSD-3-Clause
//
// The vector peak of one core: independent fused multiply-adds in registers. Compile with -O3 -march=native.
#include <ctime>

#if defined(__AVX512F__)
enum { kLanes = 16 };
#elif defined(__AVX2__)
enum { kLanes = 8 };
#else
enum { kLanes = 4 };
#endif
enum { kChains = kLanes == 16 ? 24 : 12 };  // enough to cover the latency, few enough for the registers

typedef float V __attribute__((vector_size(sizeof(float) * kLanes)));

/// Time that this thread has run, so that other processes on a busy machine count less.
static double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// GFLOP/s; `sink` keeps the result alive.
extern "C" double fma_peak(long repeats, float *sink) {
  V chain[kChains];
  for (V &v : chain) v = V{} + 1.0f;
  const V factor = V{} + 0.999f, term = V{} + 1e-3f;
  const double start = cpu_seconds();
  for (long r = 0; r < repeats; ++r) {
#pragma GCC unroll 24
    for (V &v : chain) v = v * factor + term;
  }
  const double seconds = cpu_seconds() - start;
  for (const V &v : chain) *sink += v[0];
  return 2.0 * kLanes * kChains * static_cast<double>(repeats) / seconds / 1e9;
}
