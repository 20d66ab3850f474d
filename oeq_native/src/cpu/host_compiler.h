// SPDX-License-Identifier: BSD-3-Clause
//
// The host's C++ compiler.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "../backend.h"

namespace oeq::cpu {

class HostCompiler {
 public:
  /// `$CXX` (a command with optional arguments), else c++. The environment is read here, once: compilations run on
  /// threads, and the host process may change it meanwhile.
  HostCompiler();

  const std::string &name() const { return command_[0]; }

  /// "": it cannot be run. Else the command, the first line of its --version, and the options.
  const std::string &identity() const { return identity_; }

  /// Why it cannot be run.
  const std::string &failure() const { return failure_; }

  /// Compiles one source to the bytes of a shared library. Throws KernelError with the compiler's log; also when `stop`
  /// was set or the time is over, after ending the compiler with all that it started.
  std::string compile(const std::string &source, const StopFlag &stop,
                      std::chrono::milliseconds limit = std::chrono::minutes(10)) const;

 private:
  std::filesystem::path temporary_;  // where compilations make their folders
  std::vector<std::string> environment_;
  std::vector<std::string> command_;
  std::string identity_;
  std::string failure_;
};

/// A loaded shared library; unloaded at the end.
class SharedLibrary {
 public:
  explicit SharedLibrary(const std::string &bytes);
  ~SharedLibrary();
  SharedLibrary(const SharedLibrary &) = delete;
  SharedLibrary &operator=(const SharedLibrary &) = delete;

  /// Throws KernelError if there is no such symbol.
  void *symbol(const char *name) const;

 private:
  int file_ = -1;
  void *handle_ = nullptr;
};

}  // namespace oeq::cpu
