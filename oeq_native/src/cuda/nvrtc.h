// SPDX-License-Identifier: BSD-3-Clause
//
// NVIDIA's run-time compiler, bound at run time. It has no global lock: several threads compile at once.
#pragma once

#include <string>
#include <vector>

#include "../backend.h"
#include "library.h"

namespace oeq::cuda {

class Nvrtc {
 public:
  struct Compiled {
    std::string cubin;
    std::vector<std::string> symbols;  // of the kernels, in the order asked for
  };

  /// Opens libnvrtc: $OEQ_NVRTC, else the loader's own search, CUDA_HOME, /usr/local/cuda, PyPI's nvidia-cuda-nvrtc.
  /// Throws KernelError.
  Nvrtc();

  /// E.g. "13.0".
  std::string version() const;

  /// Compiles CUDA C++ that defines `kernels`. Throws KernelError with the compiler's log.
  Compiled compile(const std::string &source, const std::vector<std::string> &kernels,
                   const std::vector<std::string> &options, const StopFlag &stop) const;

  /// Architectures this version compiles for, e.g. 90.
  std::vector<int> architectures() const;

  const std::string &path() const { return library_.path(); }

 private:
  using Handle = void *;
  class Program;

  void check(int result, const char *what) const;

  Library library_;
  const char *(*get_error_string_)(int);
  int (*version_)(int *, int *);
  int (*get_num_supported_archs_)(int *);
  int (*get_supported_archs_)(int *);
  int (*create_program_)(Handle *, const char *, const char *, int, const char *const *, const char *const *);
  int (*destroy_program_)(Handle *);
  int (*add_name_expression_)(Handle, const char *);
  int (*compile_program_)(Handle, int, const char *const *);
  int (*get_lowered_name_)(Handle, const char *, const char **);
  int (*get_log_size_)(Handle, size_t *);
  int (*get_log_)(Handle, char *);
  int (*get_cubin_size_)(Handle, size_t *);
  int (*get_cubin_)(Handle, char *);
  int (*set_flow_callback_)(Handle, int (*)(void *, void *), void *);  // null in versions before 12.9
};

/// The compiler of this process, opened at first use. Throws KernelError.
const Nvrtc &nvrtc();

}  // namespace oeq::cuda
