// SPDX-License-Identifier: BSD-3-Clause
// Executables on disk, so that a program is compiled once per host and not once per process.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "log.h"

namespace stablemd {

/// $STABLEMD_CACHE, else $XDG_CACHE_HOME/stablemd, else ~/.cache/stablemd; "" where there is none or it is "off".
std::string default_cache_directory();

class ExecutableCache {
 public:
  /// No directory: nothing is kept.
  ExecutableCache(std::string directory, const Log &log) : directory_(std::move(directory)), log_(log) {}

  bool enabled() const { return !directory_.empty(); }

  /// Uses the stored blob of this key, or makes one and stores it. `load` returns false for a blob that it cannot use.
  /// Of many processes that ask for one key, one makes it and the others wait. Returns whether `load` took a stored
  /// one.
  bool obtain(const std::string &key, const std::function<bool(std::string_view blob)> &load,
              const std::function<std::string()> &make) const;

 private:
  std::string directory_;
  Log log_;
  mutable std::atomic<bool> warned_{false};

  std::optional<std::string> read(const std::string &path, const std::string &key) const;
  void write(const std::string &path, const std::string &key, std::string_view blob) const;
  void warn_once(const std::string &why) const;
};

}  // namespace stablemd
