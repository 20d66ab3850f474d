// SPDX-License-Identifier: BSD-3-Clause
// The one exception of the library: a status of the C interface and one line for the user.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "stablemd.h"

namespace stablemd {

class Error : public std::runtime_error {
 public:
  Error(smd_status status, const std::string &line) : std::runtime_error(line), status(status) {}
  const smd_status status;
};

/// Its arguments, one after the other, as text.
template <class... Parts>
std::string text(const Parts &...parts) {
  std::ostringstream stream;
  stream.precision(17);
  (stream << ... << parts);
  return stream.str();
}

template <class... Parts>
[[noreturn]] void fail(smd_status status, const Parts &...parts) {
  throw Error(status, text(parts...));
}

}  // namespace stablemd
