// SPDX-License-Identifier: BSD-3-Clause
// FFI providers: libraries that register their own custom-call targets with XLA. This library knows no target by name.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "pjrt.h"
#include "stablemd.h"
#include "xla/ffi/api/c_api.h"

namespace stablemd {

/// The plugin's XLA FFI interface; nullptr where it has none.
const XLA_FFI_Api *ffi_api(const Plugin &plugin);

struct Providers {
  int count = 0;
  std::string searched;  // for messages: where providers were looked for
};

/// Loads every provider on $STABLEMD_FFI_PATH and in ffi/ beside this library, each once per process and plugin.
/// Throws Error(SMD_ERROR_PROVIDER).
Providers load_providers(const Plugin &plugin, const std::string &device,
                         const std::function<void(const std::string &)> &log_info);

/// Whether a provider has registered this target with the plugin.
bool is_registered(const Plugin &plugin, const std::string &target);

}  // namespace stablemd
