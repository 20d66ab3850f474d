// SPDX-License-Identifier: BSD-3-Clause
//
// What one core can do at most: independent fused multiply-adds in registers, and streams from and to memory. Compile
// with -O3 -march=native.
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

/// Makes clang compute `v` at every turn. g++ does anyway, but would do it in memory.
static inline void keep(V &v) {
#if defined(__clang__) && defined(__x86_64__)
  asm volatile("" : "+v"(v));
#elif defined(__clang__)
  asm volatile("" : "+w"(v));
#endif
  (void)v;
}

/// GFLOP/s; `sink` keeps the result alive.
extern "C" double fma_peak(long repeats, float *sink) {
  V chain[kChains];
  for (V &v : chain) v = V{} + 1.0f;
  const V factor = V{} + 0.999f, term = V{} + 1e-3f;
  const double start = cpu_seconds();
  for (long r = 0; r < repeats; ++r) {
#pragma GCC unroll 24
    for (V &v : chain) {
      v = v * factor + term;
      keep(v);
    }
  }
  const double seconds = cpu_seconds() - start;
  for (const V &v : chain) *sink += v[0];
  return 2.0 * kLanes * kChains * static_cast<double>(repeats) / seconds / 1e9;
}

static void write(V *to, V value) {
#if defined(__AVX512F__)
  typedef long long Longs __attribute__((vector_size(64), may_alias));
#ifdef __clang__
  __builtin_nontemporal_store(reinterpret_cast<Longs>(value), reinterpret_cast<Longs *>(to));
#else
  __builtin_ia32_movntdq512(reinterpret_cast<Longs *>(to), reinterpret_cast<Longs>(value));
#endif
#else
  *to = value;
#endif
}

/// GB/s of reading `bytes` from an array, `to` null, or of reading them and writing as many, around the cache where
/// there is an instruction for it. Arrays aligned to 64 bytes, `bytes` a multiple of 1024.
extern "C" double stream(const void *from, void *to, long bytes, float *sink) {
  const V *source = static_cast<const V *>(from);
  V *target = static_cast<V *>(to);
  V sum[8] = {};
  const long count = bytes / static_cast<long>(sizeof(V));
  const double start = cpu_seconds();
  for (long i = 0; i < count; i += 8) {
#pragma GCC unroll 8
    for (long k = 0; k < 8; ++k) {
      sum[k] += source[i + k];
      if (target) write(target + i + k, source[i + k]);
    }
  }
  const double seconds = cpu_seconds() - start;
  for (const V &v : sum) *sink += v[0];
  return (target ? 2.0 : 1.0) * static_cast<double>(bytes) / seconds / 1e9;
}
