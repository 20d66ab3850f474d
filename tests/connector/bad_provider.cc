// SPDX-License-Identifier: BSD-3-Clause
// Providers that do not work, by macro: THROWS, FAILS, or neither for a library that is no provider at all.
#include <stdexcept>

#include "xla/ffi/api/c_api.h"

extern "C" __attribute__((visibility("default"))) int
#if defined(THROWS)
RegisterFFi(const XLA_FFI_Api *, const char *) {
  throw std::runtime_error("thrown on purpose");
}
#elif defined(FAILS)
RegisterFFi(const XLA_FFI_Api *, const char *) {
  return 3;
}
#else
something_else() {
  return 0;
}
#endif
