// SPDX-License-Identifier: BSD-3-Clause
#include "heap.h"

#include <cstdlib>
#include <mutex>
#include <string>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace stablemd {

void keep_freed_memory() {
#ifdef __GLIBC__
  static std::once_flag done;
  std::call_once(done, [] {
    const char *choice = std::getenv("STABLEMD_MALLOC");
    if (choice && std::string(choice) == "default") return;
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, -1);
  });
#endif
}

}  // namespace stablemd
