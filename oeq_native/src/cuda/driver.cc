// SPDX-License-Identifier: BSD-3-Clause
#include "driver.h"

#include "../backend.h"

namespace oeq::cuda {
namespace {

constexpr int kMaxDynamicSharedMemory = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

}  // namespace

Driver::Driver() : library_({"libcuda.so.1", "libcuda.so"}, "kernels for CUDA need NVIDIA's driver") {
  library_.resolve(init_, "cuInit");
  library_.resolve(get_error_name_, "cuGetErrorName");
  library_.resolve(get_error_string_, "cuGetErrorString");
  library_.resolve(device_get_count_, "cuDeviceGetCount");
  library_.resolve(device_get_, "cuDeviceGet");
  library_.resolve(device_get_attribute_, "cuDeviceGetAttribute");
  library_.resolve(primary_context_retain_, "cuDevicePrimaryCtxRetain");
  library_.resolve(primary_context_release_, "cuDevicePrimaryCtxRelease_v2");
  library_.resolve(context_get_current_, "cuCtxGetCurrent");
  library_.resolve(context_set_current_, "cuCtxSetCurrent");
  library_.resolve(context_push_, "cuCtxPushCurrent_v2");
  library_.resolve(context_pop_, "cuCtxPopCurrent_v2");
  library_.resolve(library_load_data_, "cuLibraryLoadData");
  library_.resolve(library_unload_, "cuLibraryUnload");
  library_.resolve(library_get_kernel_, "cuLibraryGetKernel");
  library_.resolve(kernel_set_attribute_, "cuKernelSetAttribute");
  library_.resolve(kernel_get_function_, "cuKernelGetFunction");
  library_.resolve(memset_async_, "cuMemsetD8Async");
  library_.resolve(launch_kernel_, "cuLaunchKernel");
  check(init_(0), "cuInit");
}

void Driver::check(Result result, const char *what) const {
  if (result == 0) return;
  const char *name = nullptr;
  const char *text = nullptr;
  get_error_name_(result, &name);
  get_error_string_(result, &text);
  throw KernelError(std::string(what) + " failed: " + (name == nullptr ? std::to_string(result) : name) + " (" +
                    (text == nullptr ? "no description" : text) + ")");
}

int Driver::device_count() const {
  int count = 0;
  check(device_get_count_(&count), "cuDeviceGetCount");
  return count;
}

DeviceHandle Driver::handle(int32_t device) const {
  DeviceHandle handle = 0;
  check(device_get_(&handle, device), "cuDeviceGet");
  return handle;
}

int Driver::attribute(Attribute attribute, int32_t device) const {
  int value = 0;
  check(device_get_attribute_(&value, attribute, handle(device)), "cuDeviceGetAttribute");
  return value;
}

int Driver::compute_capability(int32_t device) const {
  return 10 * attribute(kComputeCapabilityMajor, device) + attribute(kComputeCapabilityMinor, device);
}

Module Driver::load(const std::string &cubin) const {
  Module module = nullptr;
  check(library_load_data_(&module, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData");
  return module;
}

void Driver::unload(Module module) const noexcept { library_unload_(module); }

Function Driver::kernel(Module module, const std::string &name) const {
  Function kernel = nullptr;
  check(library_get_kernel_(&kernel, module, name.c_str()), "cuLibraryGetKernel");
  return kernel;
}

void Driver::allow_shared_memory(Function kernel, int32_t device, uint32_t bytes) const {
  const int most = attribute(kMostSharedMemoryPerBlock, device);
  if (bytes > static_cast<uint32_t>(most)) {
    throw KernelError("the kernel needs " + std::to_string(bytes) + " bytes of shared memory per block, device " +
                      std::to_string(device) + " has " + std::to_string(most) + ": export it for this GPU");
  }
  check(kernel_set_attribute_(kMaxDynamicSharedMemory, static_cast<int>(bytes), kernel, handle(device)),
        "cuKernelSetAttribute");
}

void Driver::load_now(Function kernel, int32_t device) const {
  const DeviceHandle handle = this->handle(device);
  Context context = nullptr;
  check(primary_context_retain_(&context, handle), "cuDevicePrimaryCtxRetain");
  Result result = context_push_(context);
  if (result == 0) {
    void *function = nullptr;
    result = kernel_get_function_(&function, kernel);
    context_pop_(&context);
  }
  primary_context_release_(handle);  // XLA holds it too
  check(result, "cuKernelGetFunction");
}

void Driver::ensure_context(int32_t device) const {
  Context context = nullptr;
  check(context_get_current_(&context), "cuCtxGetCurrent");
  if (context != nullptr) return;
  check(primary_context_retain_(&context, handle(device)), "cuDevicePrimaryCtxRetain");
  check(context_set_current_(context), "cuCtxSetCurrent");
}

void Driver::zero(void *memory, size_t bytes, Stream stream) const {
  if (bytes == 0) return;
  check(memset_async_(reinterpret_cast<uint64_t>(memory), 0, bytes, stream), "cuMemsetD8Async");
}

void Driver::launch(Function kernel, uint32_t blocks, uint32_t threads, uint32_t shared_memory, Stream stream,
                    void **arguments) const {
  check(launch_kernel_(kernel, blocks, 1, 1, threads, 1, 1, shared_memory, stream, arguments, nullptr),
        "cuLaunchKernel");
}

const Driver &driver() {
  static const Driver *const instance = new Driver;  // never closed
  return *instance;
}

}  // namespace oeq::cuda
