// SPDX-License-Identifier: BSD-3-Clause
//
// The part of the CUDA driver API that is used here, bound at run time: no CUDA header is needed to build, no driver to
// load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "library.h"

namespace oeq::cuda {

// The driver's types, by layout: enums are int, handles are pointers.
using Result = int;
using DeviceHandle = int;
using Context = void *;
using Module = void *;    // CUlibrary: belongs to no context
using Function = void *;  // CUkernel, also accepted where a CUfunction is asked for
using Stream = void *;

enum Attribute { kComputeCapabilityMajor = 75, kComputeCapabilityMinor = 76, kMostSharedMemoryPerBlock = 97 };

class Driver {
 public:
  /// Opens libcuda and initialises it. Throws KernelError where there is no driver or no device.
  Driver();

  int device_count() const;
  int attribute(Attribute attribute, int32_t device) const;
  /// E.g. 90 for compute capability 9.0.
  int compute_capability(int32_t device) const;

  Module load(const std::string &cubin) const;
  void unload(Module module) const noexcept;
  Function kernel(Module module, const std::string &name) const;
  /// Lets a kernel use `bytes` of dynamic shared memory per block on a device.
  void allow_shared_memory(Function kernel, int32_t device, uint32_t bytes) const;
  /// Loads a kernel into the device's primary context now, not at its first launch (which may be under stream capture).
  void load_now(Function kernel, int32_t device) const;

  /// Makes the device's primary context current where the thread has none.
  void ensure_context(int32_t device) const;
  void zero(void *memory, size_t bytes, Stream stream) const;
  void launch(Function kernel, uint32_t blocks, uint32_t threads, uint32_t shared_memory, Stream stream,
              void **arguments) const;

 private:
  void check(Result result, const char *what) const;
  DeviceHandle handle(int32_t device) const;

  Library library_;
  Result (*init_)(unsigned);
  Result (*get_error_name_)(Result, const char **);
  Result (*get_error_string_)(Result, const char **);
  Result (*device_get_count_)(int *);
  Result (*device_get_)(DeviceHandle *, int);
  Result (*device_get_attribute_)(int *, int, DeviceHandle);
  Result (*primary_context_retain_)(Context *, DeviceHandle);
  Result (*primary_context_release_)(DeviceHandle);
  Result (*context_get_current_)(Context *);
  Result (*context_set_current_)(Context);
  Result (*context_push_)(Context);
  Result (*context_pop_)(Context *);
  Result (*library_load_data_)(Module *, const void *, int *, void **, unsigned, int *, void **, unsigned);
  Result (*library_unload_)(Module);
  Result (*library_get_kernel_)(Function *, Module, const char *);
  Result (*kernel_set_attribute_)(int, int, Function, DeviceHandle);
  Result (*kernel_get_function_)(void **, Function);
  Result (*memset_async_)(uint64_t, unsigned char, size_t, Stream);
  Result (*launch_kernel_)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,
                           void **, void **);
};

/// The driver of this process, opened at first use. Throws KernelError.
const Driver &driver();

}  // namespace oeq::cuda
