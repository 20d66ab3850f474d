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

/// Whether a capacity is so much larger than the need that a smaller program would pay.
bool is_wasteful(const HopCounts &need, const HopCounts &capacity);

/// How fast a graph changes: not known yet, outgrew its capacity before, outgrows one capacity soon after the other.
enum class Pace { unknown, moving, racing };

/// The need rounded up: closely at first, more generously the faster it changes. A hop of the last capacity (or empty)
/// that suffices and wastes little keeps it, so that counts which fluctuate settle after a few changes. Throws
/// Error(SMD_ERROR_ARGUMENT) beyond 2^31 - 1.
HopCounts grown(const HopCounts &need, const HopCounts &last, Pace pace);

/// Decides graph by graph whether the capacity stays. A program of another size costs a compilation, so one that is too
/// large is given up only when the padding has cost about as much: at once if it is hundreds of times too large, else
/// after some hundred graphs. Then a box that shrinks and grows again meets the capacities that it had.
class CapacityKeeper {
 public:
  enum class Verdict { keep, change, change_if_free };

  /// To be asked once for every graph.
  Verdict judge(const HopCounts &need);
  /// What to change to. Throws Error(SMD_ERROR_ARGUMENT) beyond 2^31 - 1.
  HopCounts next(const HopCounts &need) const;
  void changed(const HopCounts &need, const HopCounts &capacity);

  const HopCounts &capacity() const { return capacity_; }

 private:
  HopCounts capacity_;            // without rows at first
  int64_t graphs_ = 0;            // that this capacity has served
  double waste_ = 0;              // in evaluations
  bool made_for_growth_ = false;  // this one was chosen because the one before it was outgrown
};

/// Values of the program's symbols.
Sizes program_sizes(const HopCounts &capacity);

}  // namespace stablemd
