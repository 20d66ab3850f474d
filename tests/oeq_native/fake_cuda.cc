// SPDX-License-Identifier: BSD-3-Clause
#include "fake_cuda.h"

#include <cstring>
#include <deque>
#include <mutex>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace fake_cuda {

__attribute__((visibility("default"))) Record &record() {
  static Record instance;
  return instance;
}

}  // namespace fake_cuda

using fake_cuda::record;

namespace {

constexpr int kDevices = 3;
constexpr int kInvalidValue = 1;

thread_local void *current_context = nullptr;

std::mutex mutex;  // guards the record and the kernels' names

/// Kernels by handle: a pointer to the name.
std::string *kernel_handle(const char *name) {
  static std::deque<std::string> names;
  return &names.emplace_back(name);
}

}  // namespace

EXPORTED int cuInit(unsigned) { return 0; }
// NVRTC asks for a private table where it finds a libcuda, and takes no for an answer.
EXPORTED int cuGetExportTable(const void **, const void *) { return kInvalidValue; }
EXPORTED int cuGetErrorName(int, const char **name) {
  *name = "CUDA_ERROR_FAKE";
  return 0;
}
EXPORTED int cuGetErrorString(int, const char **text) {
  *text = "a stand-in's error";
  return 0;
}
EXPORTED int cuDeviceGetCount(int *count) {
  *count = kDevices;
  return 0;
}
EXPORTED int cuDeviceGet(int *handle, int ordinal) {
  if (ordinal < 0 || ordinal >= kDevices) return kInvalidValue;
  *handle = 100 + ordinal;
  return 0;
}
EXPORTED int cuDeviceGetAttribute(int *value, int attribute, int handle) {
  const bool hopper = handle != 102;
  switch (attribute) {
    case 75:  // compute capability, major
      *value = hopper ? 9 : 8;
      return 0;
    case 76:  // minor
      *value = 0;
      return 0;
    case 97:  // shared memory per block, opt-in
      *value = hopper ? 232448 : 166912;
      return 0;
    default:
      return kInvalidValue;
  }
}
EXPORTED int cuDevicePrimaryCtxRetain(void **context, int handle) {
  const std::lock_guard lock(mutex);
  ++record().contexts_retained;
  *context = reinterpret_cast<void *>(static_cast<intptr_t>(handle));
  return 0;
}
EXPORTED int cuDevicePrimaryCtxRelease_v2(int) {
  const std::lock_guard lock(mutex);
  ++record().contexts_released;
  return 0;
}
EXPORTED int cuCtxGetCurrent(void **context) {
  *context = current_context;
  return 0;
}
EXPORTED int cuCtxSetCurrent(void *context) {
  current_context = context;
  return 0;
}
EXPORTED int cuCtxPushCurrent_v2(void *context) {
  current_context = context;
  return 0;
}
EXPORTED int cuCtxPopCurrent_v2(void **context) {
  *context = current_context;
  current_context = nullptr;
  return 0;
}
EXPORTED int cuLibraryLoadData(void **library, const void *cubin, int *, void **, unsigned, int *, void **, unsigned) {
  const std::lock_guard lock(mutex);
  ++record().libraries_loaded;
  record().cubin.assign(static_cast<const char *>(cubin), 4);
  *library = &record();
  return 0;
}
EXPORTED int cuLibraryUnload(void *) {
  const std::lock_guard lock(mutex);
  ++record().libraries_unloaded;
  return 0;
}
EXPORTED int cuLibraryGetKernel(void **kernel, void *, const char *name) {
  const std::lock_guard lock(mutex);
  *kernel = kernel_handle(name);
  return 0;
}
EXPORTED int cuKernelSetAttribute(int attribute, int value, void *kernel, int handle) {
  const std::lock_guard lock(mutex);
  if (attribute != 8) return kInvalidValue;  // most dynamic shared memory
  record().shared_memory.push_back({*static_cast<std::string *>(kernel), handle - 100, value});
  return 0;
}
EXPORTED int cuKernelGetFunction(void **function, void *kernel) {
  const std::lock_guard lock(mutex);
  if (current_context == nullptr) return kInvalidValue;
  record().loaded_kernels.push_back(*static_cast<std::string *>(kernel));
  *function = kernel;
  return 0;
}
EXPORTED int cuMemsetD8Async(uint64_t memory, unsigned char value, size_t bytes, void *stream) {
  const std::lock_guard lock(mutex);
  if (value != 0 || current_context == nullptr) return kInvalidValue;
  record().memsets.push_back({reinterpret_cast<const void *>(memory), bytes, stream});
  record().order.push_back("memset");
  return 0;
}
EXPORTED int cuLaunchKernel(void *kernel, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                            unsigned shared_memory, void *stream, void **arguments, void **) {
  const std::lock_guard lock(mutex);
  if (record().fail_launch != 0) return record().fail_launch;
  if (current_context == nullptr) return kInvalidValue;
  const std::string &name = *static_cast<std::string *>(kernel);
  record().order.push_back(name);
  if (record().on_launch != nullptr) record().on_launch({name, blocks, threads, shared_memory, stream, arguments});
  return 0;
}
