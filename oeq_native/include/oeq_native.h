/* SPDX-License-Identifier: BSD-3-Clause
 *
 * oeq_native.h: OpenEquivariance's equivariant tensor products and convolutions as XLA FFI handlers, without Python.
 *
 * The library is an FFI provider: whoever owns an XLA client calls RegisterFFi(api, platform) once, and programs with
 * custom calls to tp_forward, tp_backward, tp_double_backward, conv_forward, conv_backward and conv_double_backward
 * run, and on the host contraction_forward and contraction_backward, MACE's symmetric contraction. JAX takes the same
 * handlers from the table below. A call's attribute `kernel` (JSON) says what to compute, its attribute `hash` finds
 * equal ones fast; kernels are compiled once per process and device architecture by a pool of workers.
 *
 * Settings, read when the first kernel is made (RegisterFFi refuses values that are no good):
 *   OEQ_COMPILE_THREADS  workers, 1..256; default: the cores available to the process, at most 16
 *   OEQ_COMPILE_QUEUE    kernels that may wait for a worker, 1..65536, default 1024; beyond, the caller compiles itself
 *   OEQ_CACHE            folder of compiled kernels, or "off"; default $XDG_CACHE_HOME/oeq_native, else
 * ~/.cache/oeq_native OEQ_NVRTC            path of libnvrtc; default: the usual places of CUDA toolkits and of PyPI's
 * nvidia-cuda-nvrtc OEQ_VERBOSE          1: tell on stderr what is registered, compiled and read from the cache
 */
#ifndef OEQ_NATIVE_H
#define OEQ_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define OEQ_API __attribute__((visibility("default")))
#else
#define OEQ_API
#endif

/* Version of the structs below. A consumer must refuse a table of any other version: entries would be misread, or state
 * types be missed. (OpenEquivariance 0.7 itself has version 2: no state types, no platforms.) */
#define OEQ_FFI_ABI_VERSION 3

/* Bits of OeqFfiHandler.traits, as XLA_FFI_Handler_TraitsBits. */
#define OEQ_FFI_TRAIT_COMMAND_BUFFER_COMPATIBLE (1u << 0)

/* One target on one platform. Stages are XLA_FFI_Handler*, null where a target has no such stage; `execute` never is.
 */
typedef struct OeqFfiHandler {
  const char *name;     /* the custom call's target */
  const char *platform; /* "Host" or "CUDA" */
  void *instantiate;
  void *prepare;
  void *initialize;
  void *execute;
  uint32_t traits;
} OeqFfiHandler;

/* A state type that handlers keep per call site; must be registered with XLA before any handler. */
typedef struct OeqFfiType {
  const char *name;
  void *id;         /* XLA_FFI_TypeId*, fixed by this library so that several XLAs in one process agree on it */
  const void *info; /* const XLA_FFI_TypeInfo* */
} OeqFfiType;

typedef struct OeqFfiHandlerTable {
  uint32_t abi_version; /* OEQ_FFI_ABI_VERSION */
  uint32_t handler_count;
  const OeqFfiHandler *handlers;
  uint32_t type_count;
  const OeqFfiType *types;
} OeqFfiHandlerTable;

/* The one inventory of this library. Valid for the life of the process. Thread-safe. */
OEQ_API const OeqFfiHandlerTable *oeq_ffi_handler_table(void);

/* Registers the table's types, then all of its handlers for `platform` ("Host", "cpu" or "CUDA", in any case) as whole
 * bundles. Returns 0, or non-zero after printing one line to stderr that names the target and XLA's reason. Touches no
 * device. */
struct XLA_FFI_Api;
OEQ_API int RegisterFFi(const struct XLA_FFI_Api *api, const char *platform);

/* The same for callers that report errors themselves: the line is written to `reason` [size], and not printed. */
OEQ_API int RegisterFFiWithReason(const struct XLA_FFI_Api *api, const char *platform, char *reason, size_t size);

/* The folder of compiled kernels, "" for none; null, with a line in `reason` [size], where OEQ_CACHE is no good.
 * Thread-safe; valid until the next call on this thread. */
OEQ_API const char *oeq_cache_directory(char *reason, size_t size);

/* What happened in this process so far. A kernel here is one compilation: a payload, an architecture and, on Host, one
 * of forward, backward and double backward. */
typedef struct OeqStats {
  size_t struct_size;     /* set by the caller to sizeof(OeqStats) */
  int64_t records;        /* distinct payloads seen */
  int64_t requests;       /* times that a call site asked for a kernel */
  int64_t compilations;   /* kernels compiled by a compiler in this process */
  int64_t memory_hits;    /* kernels made from an image that this process had in memory */
  int64_t disk_hits;      /* kernels made from an image on disk */
  int64_t failures;       /* kernels that could not be compiled or loaded */
  int64_t waits;          /* executions that had to wait for a kernel */
  double compile_seconds; /* in compilers, summed over the workers */
  double wait_seconds;    /* in executions that had to wait */
} OeqStats;

/* Fills as much of *stats as its struct_size allows. Thread-safe. */
OEQ_API void oeq_get_stats(OeqStats *stats);

#ifdef __cplusplus
}
#endif

#endif /* OEQ_NATIVE_H */
