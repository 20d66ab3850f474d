// SPDX-License-Identifier: BSD-3-Clause
// Lines for the user, through the function that the caller gave.
#pragma once

#include <string>

#include "escape.h"
#include "stablemd.h"

namespace stablemd {

class Log {
 public:
  Log() = default;
  Log(smd_log_function function, void *user) : function_(function), user_(user) {}

  void info(const std::string &line) const { write(SMD_LOG_INFO, line); }
  void warning(const std::string &line) const { write(SMD_LOG_WARNING, line); }

 private:
  void write(smd_log_level level, const std::string &line) const {
    if (function_) function_(level, escaped(line).c_str(), user_);
  }

  smd_log_function function_ = nullptr;
  void *user_ = nullptr;
};

}  // namespace stablemd
