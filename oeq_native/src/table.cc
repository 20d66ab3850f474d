// SPDX-License-Identifier: BSD-3-Clause
#include <array>

#include "call_site.h"
#include "handlers.h"
#include "oeq_native.h"

namespace oeq {
namespace {

using Handlers = std::array<OeqFfiHandler, 2 * kTargetCount>;

OeqFfiHandler entry(size_t index, Platform platform) {
  const Stages s = stages(index, platform);
  return {kTargets[index].name,
          platform == Platform::kHost ? "Host" : "CUDA",
          reinterpret_cast<void *>(s.instantiate),
          reinterpret_cast<void *>(s.prepare),
          reinterpret_cast<void *>(s.initialize),
          reinterpret_cast<void *>(s.execute),
          OEQ_FFI_TRAIT_COMMAND_BUFFER_COMPATIBLE};
}

Handlers all_handlers() {
  Handlers handlers;
  for (size_t index = 0; index < kTargetCount; ++index) {
    handlers[index] = entry(index, Platform::kHost);
    handlers[kTargetCount + index] = entry(index, Platform::kCuda);
  }
  return handlers;
}

}  // namespace
}  // namespace oeq

extern "C" OEQ_API const OeqFfiHandlerTable *oeq_ffi_handler_table(void) {
  static const oeq::Handlers handlers = oeq::all_handlers();
  static const OeqFfiType types[] = {{"oeq_native.CallSite", &oeq::CallSite::id, &oeq::CallSite::info}};
  static const OeqFfiHandlerTable table = {OEQ_FFI_ABI_VERSION, static_cast<uint32_t>(handlers.size()), handlers.data(),
                                           1, types};
  return &table;
}
