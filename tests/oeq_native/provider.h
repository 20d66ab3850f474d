// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "oeq_native.h"

/// An FFI provider opened as a connector does it.
class Provider {
 public:
  explicit Provider(const std::string &path) : handle_(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(::dlerror());
    register_ffi = symbol<decltype(register_ffi)>("RegisterFFi");
  }

  template <typename Pointer>
  Pointer symbol(const char *name) const {
    void *found = ::dlsym(handle_, name);
    if (found == nullptr) throw std::runtime_error(std::string("no symbol ") + name);
    return reinterpret_cast<Pointer>(found);
  }

  OeqStats stats() const {
    OeqStats stats{};
    stats.struct_size = sizeof(stats);
    symbol<void (*)(OeqStats *)>("oeq_get_stats")(&stats);
    return stats;
  }

  int (*register_ffi)(const XLA_FFI_Api *, const char *) = nullptr;

 private:
  void *handle_;
};
