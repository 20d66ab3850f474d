// SPDX-License-Identifier: BSD-3-Clause
//
// What the environment says, read once where something is made, never half-way through.
#pragma once

#include <cstddef>
#include <string>

namespace oeq {

struct Settings {
  int threads = 1;              // OEQ_COMPILE_THREADS
  size_t queue_limit = 1024;    // OEQ_COMPILE_QUEUE
  std::string cache_directory;  // OEQ_CACHE; "" for none
  bool verbose = false;         // OEQ_VERBOSE
};

/// Reads the environment. Throws KernelError that names the variable with a value that is no good.
Settings read_settings();

/// Cores that this process may use (its affinity mask), at least 1.
int available_cores();

}  // namespace oeq
