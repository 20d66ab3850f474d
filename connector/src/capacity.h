// SPDX-License-Identifier: BSD-3-Clause
// How many rows and edges a program is instantiated for: per hop what the graph needs, rounded up on a geometric grid.
#pragma once

#include <array>
#include <cstdint>

#include "sizes.h"
#include "stablemd.h"

namespace stablemd {

/// Rows and edges per hop: of a graph without padding, or of a program with it.
struct HopCounts {
  int layers = 0;
  std::array<int64_t, SMD_MAX_LAYERS + 1> rows{};
  std::array<int64_t, SMD_MAX_LAYERS> edges{};

  int64_t row_offset(int hop) const;
  int64_t edge_offset(int hop) const;
  int64_t all_rows() const { return row_offset(layers + 1); }
  int64_t all_edges() const { return edge_offset(layers); }

  bool operator==(const HopCounts &other) const {
    return layers == other.layers && rows == other.rows && edges == other.edges;
  }
};

/// The caller's sizes, checked. Throws Error(SMD_ERROR_ARGUMENT).
HopCounts checked_counts(const smd_graph_size &size, int layers);

/// The least capacity: each hop that is not empty with its dummy row, each that can be a centre with a padding edge.
HopCounts with_padding(const HopCounts &graph);

/// Whether a program of this capacity can take the graph.
bool fits(const HopCounts &need, const HopCounts &capacity);

/// Whether a capacity is so much larger than the need that a smaller program pays.
bool is_wasteful(const HopCounts &need, const HopCounts &capacity);

/// The need rounded up, closely at first, generously where there was a capacity before (`last`, else empty). A hop of
/// the last capacity that suffices and wastes little keeps it, so that counts which fluctuate settle after a few
/// changes. Throws Error(SMD_ERROR_ARGUMENT) beyond 2^31 - 1.
HopCounts grown(const HopCounts &need, const HopCounts &last);

/// Values of the program's symbols.
Sizes program_sizes(const HopCounts &capacity);

}  // namespace stablemd
