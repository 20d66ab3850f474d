// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "kernel_store.h"
#include "targets.h"
#include "xla/ffi/api/ffi.h"

namespace oeq {

/// The state that XLA keeps for us per custom call of an executable. `instantiate` makes it; `execute` finds in it the
/// kernel of the device that it runs on, with one acquire load once that has been ready.
class alignas(64) CallSite {
 public:
  /// Throws KernelError for a payload that is no good.
  CallSite(const Target &target, Platform platform, int64_t hash, std::string_view payload);

  /// Starts the compilation for a device, once per call site. Throws KernelError.
  void request(int32_t device);

  /// The kernel for a device; waits for it where it must. Throws KernelError.
  const Kernel &kernel(int32_t device) {
    if (static_cast<size_t>(device) < kDevices) {
      if (const Kernel *ready = kernels_[device].load(std::memory_order_acquire)) return *ready;
    }
    return wait_for_kernel(device);
  }

  bool is_ready(int32_t device) const {
    return static_cast<size_t>(device) < kDevices && kernels_[device].load(std::memory_order_acquire) != nullptr;
  }

  const Target &target() const { return target_; }
  const Payload &payload() const { return record_.payload; }

  static XLA_FFI_TypeId id;
  static const XLA_FFI_TypeInfo info;

 private:
  static constexpr size_t kDevices = 64;

  KernelSlot &slot(int32_t device);
  const Kernel &wait_for_kernel(int32_t device);

  const Target &target_;
  const Platform platform_;
  KernelRecord &record_;
  std::array<std::atomic<const Kernel *>, kDevices> kernels_{};
  std::mutex mutex_;
  std::map<int32_t, KernelSlot *> slots_;  // by device, requested by this call site
};

}  // namespace oeq
