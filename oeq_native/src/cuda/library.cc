// SPDX-License-Identifier: BSD-3-Clause
#include "library.h"

#include <dlfcn.h>

#include "../backend.h"

namespace oeq::cuda {

Library::Library(const std::vector<std::string> &candidates, const std::string &advice) {
  std::string first_reason;
  for (const std::string &candidate : candidates) {
    handle_ = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      path_ = candidate;
      return;
    }
    const char *reason = ::dlerror();
    if (first_reason.empty()) first_reason = reason == nullptr ? candidate : reason;
  }
  throw KernelError("cannot open " + candidates.front() + " (" + first_reason + "): " + advice);
}

void *Library::find(const char *symbol) const { return ::dlsym(handle_, symbol); }

void Library::fail_missing(const char *symbol) const {
  throw KernelError(path_ + " has no " + symbol + ": a newer version is needed (CUDA 12 or later)");
}

}  // namespace oeq::cuda
