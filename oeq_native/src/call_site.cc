// SPDX-License-Identifier: BSD-3-Clause
#include "call_site.h"

namespace oeq {

// A fixed number (ASCII "oeq", then a version): XLA would choose one itself, but a process may hold several XLAs
// (jaxlib's and a PJRT plugin's), each with numbers of its own, and there is one set of handlers for all of them.
XLA_FFI_TypeId CallSite::id{0x6f65710001};
const XLA_FFI_TypeInfo CallSite::info = xla::ffi::MakeTypeInfo<CallSite>();

CallSite::CallSite(const Target &target, Platform platform, int64_t hash, std::string_view payload)
    : target_(target), platform_(platform), record_(process_store().intern(target.family, hash, payload)) {}

KernelSlot &CallSite::slot(int32_t device) {
  const std::lock_guard lock(mutex_);
  KernelSlot *&slot = slots_[device];
  if (slot == nullptr) slot = &process_store().request(platform_, record_, target_.order, device);
  return *slot;
}

void CallSite::request(int32_t device) {
  if (!is_ready(device)) slot(device);
}

const Kernel &CallSite::wait_for_kernel(int32_t device) {
  const Kernel &kernel = process_store().wait(slot(device));
  if (static_cast<size_t>(device) < kDevices) kernels_[device].store(&kernel, std::memory_order_release);
  return kernel;
}

}  // namespace oeq
