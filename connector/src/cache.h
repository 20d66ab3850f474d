// SPDX-License-Identifier: BSD-3-Clause
// Executables on disk, so that a program is compiled once per host and not once per process.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "log.h"

namespace stablemd {

/// $STABLEMD_CACHE, else $XDG_CACHE_HOME/stablemd, else ~/.cache/stablemd; "" where there is none or it is "off".
std::string default_cache_directory();

/// Bytes that entries may take, 0 for any number: $STABLEMD_CACHE_LIMIT, else 4 GB. Throws Error(SMD_ERROR_ARGUMENT)
/// where the variable is no size.
uint64_t cache_limit();

class ExecutableCache {
 public:
  /// No directory: nothing is kept. `limit` as in cache_limit().
  ExecutableCache(std::string directory, const Log &log, uint64_t limit = 0)
      : directory_(std::move(directory)), log_(log), limit_(limit) {}

  bool enabled() const { return !directory_.empty(); }

  enum class Outcome { loaded, made, made_and_kept };

  /// Uses the stored blob of this key, or makes one and stores it. `load` returns false for a blob that it cannot use.
  /// Of many processes that ask for one key, one makes it and the others wait. Where the entries are too large
  /// afterwards, those go whose last use is longest ago, but never the new one.
  Outcome obtain(const std::string &key, const std::function<bool(std::string_view blob)> &load,
                 const std::function<std::string()> &make) const;

 private:
  std::string directory_;
  Log log_;
  uint64_t limit_;
  mutable std::atomic<bool> warned_{false};

  std::optional<std::string> read(const std::string &path, const std::string &key) const;
  void write(const std::string &path, const std::string &key, std::string_view blob) const;
  void keep_limit(const std::string &newest) const;
  void warn_once(const std::string &why) const;
};

}  // namespace stablemd
