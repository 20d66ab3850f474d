// SPDX-License-Identifier: BSD-3-Clause
// FFI providers: libraries that register their own custom-call targets with XLA. This library knows no target by name.
#pragma once

#include <functional>
#include <mutex>
#include <string>

#include "pjrt.h"
#include "stablemd.h"
#include "xla/ffi/api/c_api.h"

namespace stablemd {

/// The plugin's XLA FFI interface; nullptr where it has none.
const XLA_FFI_Api *ffi_api(const Plugin &plugin);

/// The providers that one client can use.
class Providers {
 public:
  using LogInfo = std::function<void(const std::string &)>;

  /// Loads every provider on $STABLEMD_FFI_PATH, each once per process and plugin. Throws Error(SMD_ERROR_PROVIDER).
  Providers(const Plugin &plugin, const std::string &device, LogInfo log_info);

  /// Whether a provider has registered this target. Those in ffi/ beside this library are loaded when a target is
  /// missed for the first time, so that programs without such targets never meet them; one that cannot be used is left
  /// out.
  bool provide(const std::string &target);

  int count() const;
  /// For messages: where providers were looked for.
  std::string searched() const;
  /// Why the last one beside this library that cannot be used was left out; "" if none was.
  std::string failure() const;

 private:
  void load_own();

  const Plugin &plugin_;
  const std::string device_;
  const LogInfo log_info_;
  mutable std::mutex mutex_;
  int count_ = 0;
  std::string searched_;
  std::string failure_;
  bool own_loaded_ = false;
};

}  // namespace stablemd
