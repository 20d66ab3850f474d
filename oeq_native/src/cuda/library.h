// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

namespace oeq::cuda {

/// A shared library opened at run time. Never closed: drivers and compilers keep threads and exit handlers.
class Library {
 public:
  /// Opens the first that can be. Throws KernelError that says what was looked for, and `advice`.
  Library(const std::vector<std::string> &candidates, const std::string &advice);

  /// Throws KernelError for a missing symbol.
  template <typename Function>
  void resolve(Function *&function, const char *symbol) const {
    function = reinterpret_cast<Function *>(find(symbol));
    if (function == nullptr) fail_missing(symbol);
  }

  /// Null where there is none.
  void *find(const char *symbol) const;

  const std::string &path() const { return path_; }

 private:
  [[noreturn]] void fail_missing(const char *symbol) const;

  std::string path_;
  void *handle_ = nullptr;
};

}  // namespace oeq::cuda
