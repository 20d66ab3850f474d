// SPDX-License-Identifier: BSD-3-Clause
//
// A stand-in for libcuda that records: two devices of compute capability 9.0 and one of 8.0, no memory, no kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fake_cuda {

struct Launch {
  std::string kernel;
  unsigned blocks, threads, shared_memory;
  void *stream;
  void **arguments;  // valid during the call of `on_launch` only
};

struct Memset {
  const void *memory;
  size_t bytes;
  void *stream;
};

struct SharedMemory {
  std::string kernel;
  int device;
  int bytes;
};

struct Record {
  int libraries_loaded = 0, libraries_unloaded = 0, contexts_retained = 0, contexts_released = 0;
  std::string cubin;                        // the first bytes of the last one loaded
  std::vector<std::string> loaded_kernels;  // made ready in a context
  std::vector<Memset> memsets;
  std::vector<SharedMemory> shared_memory;
  std::vector<std::string> order;  // "memset" and names of kernels launched
  void (*on_launch)(const Launch &) = nullptr;
  int fail_launch = 0;  // error code of the next launches
};

/// What was recorded; exported by the stand-in.
Record &record();

}  // namespace fake_cuda
