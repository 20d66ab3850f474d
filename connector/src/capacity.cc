// SPDX-License-Identifier: BSD-3-Clause
#include "capacity.h"

#include <algorithm>
#include <numeric>

#include "error.h"

namespace stablemd {
namespace {

constexpr int64_t kMost = INT32_MAX;  // rows and edges are numbered in int32
constexpr int64_t kGranularity = 8;

/// Capacities grow by `ratio` and leave `headroom` above the need; (1 + headroom) * ratio bounds the waste.
struct Grid {
  double ratio;
  double headroom;
};
/// A padding row costs as much as a real one, a padding edge less.
constexpr Grid kRowGrid{1.024, 0.005};       // 3 %
constexpr Grid kMovingRowGrid{1.024, 0.03};  // 5.5 %, of atoms that ranks exchange
constexpr Grid kEdgeGrid{1.09, 0.02};        // 12 %
/// For a graph that has outgrown its capacity before, whose counts all tend to move, and for few edges, whose number
/// fluctuates most: one compilation costs as much as many evaluations of padding.
constexpr Grid kMovingGrid{1.09, 0.20};  // 31 %
constexpr int64_t kFewEdges = 4096;

constexpr Grid kRacingGrid{1.09, 0.40};  // 53 %
/// A graph races if its edges outgrow, after fewer graphs than this, a capacity that had been made for more edges.
constexpr int64_t kSoon = 100;
constexpr double kAlmost = 0.9;  // of the edges in all, where those of one hop outgrow their part

/// A capacity is too large when the need falls below this part of it, unless it is small anyway.
constexpr double kLeastUse = 0.6;
constexpr int64_t kSmall = 512;
/// Padding that any capacity may have; what is beyond may cost as much as a compilation does, in evaluations.
constexpr double kFreePadding = 0.31;
constexpr double kMostWaste = 100;

int64_t round_up(int64_t need, const Grid &grid) {
  const double wanted = static_cast<double>(need) * (1 + grid.headroom);
  int64_t capacity = kGranularity;
  while (capacity < wanted) {
    const auto scaled = static_cast<int64_t>(static_cast<double>(capacity) * grid.ratio) / kGranularity * kGranularity;
    capacity = std::max(capacity + kGranularity, scaled);
  }
  return std::max(need, std::min(capacity, kMost));
}

bool too_large(int64_t need, int64_t capacity) {
  return static_cast<double>(need) < kLeastUse * static_cast<double>(capacity) && capacity > kSmall;
}

int64_t rounded_up(int64_t need, int64_t last, const Grid &grid) {
  if (need == 0) return 0;
  const int64_t rounded = round_up(need, grid);
  const bool keep = last >= need && !too_large(need, last);
  return keep ? std::max(last, rounded) : rounded;
}

const Grid &row_grid(int hop, Pace pace) {
  if (pace == Pace::unknown) return kRowGrid;
  // The number of owned atoms changes little, on one rank never.
  if (hop == 0) return kMovingRowGrid;
  return pace == Pace::racing ? kRacingGrid : kMovingGrid;
}

const Grid &edge_grid(int64_t edges, Pace pace) {
  if (pace == Pace::racing) return kRacingGrid;
  return pace == Pace::moving || edges < kFewEdges ? kMovingGrid : kEdgeGrid;
}

HopCounts rounded_up(const HopCounts &need, const HopCounts &last, Pace pace) {
  HopCounts capacity = need;
  for (int hop = 0; hop <= need.layers; ++hop) {
    capacity.rows[hop] = rounded_up(need.rows[hop], last.rows[hop], row_grid(hop, pace));
    if (hop == need.layers) continue;
    capacity.edges[hop] = rounded_up(need.edges[hop], last.edges[hop], edge_grid(need.edges[hop], pace));
  }
  return capacity;
}

bool edges_outgrow(const HopCounts &need, const HopCounts &capacity) {
  return static_cast<double>(need.all_edges()) > kAlmost * static_cast<double>(capacity.all_edges());
}

/// Capacity beyond the free padding, in parts of the need.
double excess(int64_t need, int64_t capacity) {
  if (capacity <= kSmall) return 0;
  return std::max(0.0,
                  static_cast<double>(capacity) / static_cast<double>(std::max<int64_t>(need, 1)) - 1 - kFreePadding);
}

void check_count(int64_t count, const char *what, int hop) {
  if (count < 0) fail(SMD_ERROR_ARGUMENT, "graph size: ", what, "[", hop, "] is negative (", count, ")");
  if (count > kMost) {
    fail(SMD_ERROR_ARGUMENT, "graph size: ", what, "[", hop, "] is ", count, ", more than 2^31 - 1: use more ranks");
  }
}

void check_total(int64_t total, const char *what) {
  if (total > kMost) {
    fail(SMD_ERROR_ARGUMENT, "graph size: ", total, " ", what, " with padding are more than 2^31 - 1: use more ranks");
  }
}

}  // namespace

int64_t HopCounts::row_offset(int hop) const { return std::accumulate(rows.begin(), rows.begin() + hop, int64_t{0}); }

int64_t HopCounts::edge_offset(int hop) const {
  return std::accumulate(edges.begin(), edges.begin() + hop, int64_t{0});
}

HopCounts checked_counts(const smd_graph_size &size, int layers) {
  HopCounts counts;
  counts.layers = layers;
  for (int hop = 0; hop <= layers; ++hop) {
    check_count(size.nodes[hop], "nodes", hop);
    counts.rows[hop] = size.nodes[hop];
    if (hop == layers) continue;
    check_count(size.edges[hop], "edges", hop);
    counts.edges[hop] = size.edges[hop];
    if (size.edges[hop] > 0 && size.nodes[hop] == 0) {
      fail(SMD_ERROR_ARGUMENT, "graph size: hop ", hop, " has ", size.edges[hop],
           " edges but no nodes as their centres");
    }
  }
  return counts;
}

HopCounts with_padding(const HopCounts &graph) {
  HopCounts need = graph;
  for (int hop = 0; hop <= graph.layers; ++hop) {
    const bool exists = hop == 0 || graph.rows[hop] > 0;
    need.rows[hop] = exists ? graph.rows[hop] + 1 : 0;
    if (hop < graph.layers) need.edges[hop] = exists ? graph.edges[hop] + 1 : 0;
  }
  return need;
}

bool fits(const HopCounts &need, const HopCounts &capacity) {
  for (int hop = 0; hop <= need.layers; ++hop) {
    if (need.rows[hop] > capacity.rows[hop]) return false;
    if (hop < need.layers && need.edges[hop] > capacity.edges[hop]) return false;
  }
  return need.layers == capacity.layers;
}

bool is_wasteful(const HopCounts &need, const HopCounts &capacity) {
  return too_large(need.all_rows(), capacity.all_rows()) || too_large(need.all_edges(), capacity.all_edges());
}

HopCounts grown(const HopCounts &need, const HopCounts &last, Pace pace) {
  HopCounts capacity = rounded_up(need, last, pace);
  if (is_wasteful(need, capacity)) capacity = rounded_up(need, {}, Pace::unknown);
  check_total(capacity.all_rows(), "rows");
  check_total(capacity.all_edges(), "edges");
  return capacity;
}

CapacityKeeper::Verdict CapacityKeeper::judge(const HopCounts &need) {
  ++graphs_;
  if (!fits(need, capacity_)) return Verdict::change;
  waste_ += std::max(excess(need.all_rows(), capacity_.all_rows()), excess(need.all_edges(), capacity_.all_edges()));
  if (waste_ > kMostWaste) return Verdict::change;
  return is_wasteful(need, capacity_) ? Verdict::change_if_free : Verdict::keep;
}

HopCounts CapacityKeeper::next(const HopCounts &need) const {
  if (capacity_.all_rows() == 0) return grown(need, {}, Pace::unknown);
  if (fits(need, capacity_)) return grown(need, {}, Pace::moving);
  const bool races = made_for_growth_ && graphs_ <= kSoon && edges_outgrow(need, capacity_);
  return grown(need, capacity_, races ? Pace::racing : Pace::moving);
}

void CapacityKeeper::changed(const HopCounts &need, const HopCounts &capacity) {
  made_for_growth_ = capacity_.all_rows() > 0 && !fits(need, capacity_) && edges_outgrow(need, capacity_);
  capacity_ = capacity;
  graphs_ = 0;
  waste_ = 0;
}

Sizes program_sizes(const HopCounts &capacity) {
  Sizes sizes;
  sizes.rows_in_all() = capacity.all_rows();
  for (int layer = 1; layer <= capacity.layers; ++layer) {
    sizes.rows(layer) = capacity.row_offset(capacity.layers - layer + 1);
    sizes.edges(layer) = capacity.edge_offset(capacity.layers - layer + 1);
  }
  return sizes;
}

}  // namespace stablemd
