// SPDX-License-Identifier: BSD-3-Clause
// A fast 128-bit hash that tells files and programs apart; not for secrets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stablemd {

struct Hash {
  uint64_t low;
  uint64_t high;

  bool operator==(const Hash &other) const { return low == other.low && high == other.high; }
  std::string hex() const;
};

Hash hash_bytes(std::string_view bytes);

/// Hash of a file's contents. Throws Error(SMD_ERROR_FILE).
Hash hash_file(const std::string &path);

}  // namespace stablemd
