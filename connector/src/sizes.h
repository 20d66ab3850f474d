// SPDX-License-Identifier: BSD-3-Clause
// The sizes that a program depends on (N, C1..CL, E1..EL of docs/bundle.md) and sums of them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stablemd.h"

namespace stablemd {

/// Values of all symbols for one capacity.
struct Sizes {
  std::array<int64_t, 1 + 2 * SMD_MAX_LAYERS> values{};  // N, C1..C8, E1..E8

  int64_t &rows_in_all() { return values[0]; }
  int64_t &rows(int layer) { return values[layer]; }
  int64_t &edges(int layer) { return values[SMD_MAX_LAYERS + layer]; }
  int64_t rows_in_all() const { return values[0]; }
  int64_t rows(int layer) const { return values[layer]; }
  int64_t edges(int layer) const { return values[SMD_MAX_LAYERS + layer]; }
};

/// A sum such as `2*N-1` or `C1-C2`.
class SizeExpression {
 public:
  explicit SizeExpression(int64_t constant = 0) : constant_(constant) {}

  /// Throws Error(SMD_ERROR_FORMAT) where the text is not an expression in the symbols of `layers` layers.
  static SizeExpression parse(std::string_view expression, int layers);

  /// Throws Error(SMD_ERROR_FORMAT) where the value is negative or does not fit.
  int64_t value(const Sizes &sizes) const;

  bool operator==(const SizeExpression &other) const;

 private:
  int64_t constant_;
  std::vector<std::pair<int, int64_t>> terms_;  // index into Sizes::values, ascending; factor, never 0

  void add(int symbol, int64_t factor);
};

}  // namespace stablemd
