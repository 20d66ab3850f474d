// SPDX-License-Identifier: BSD-3-Clause
// Providers that do not work, by macro: THROWS, FAILS, REASONS (fails and says why), or none for a library that is no
// provider at all.
#include <cstdio>
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
#elif defined(REASONS)
RegisterFFi(const XLA_FFI_Api *, const char *) {
  std::fputs("printed\n", stderr);
  return 1;
}

extern "C" __attribute__((visibility("default"))) int RegisterFFiWithReason(const XLA_FFI_Api *, const char *platform,
                                                                            char *reason, size_t size) {
  std::snprintf(reason, size, "no good on %s", platform);
  return 1;
}
#else
something_else() {
  return 0;
}
#endif
