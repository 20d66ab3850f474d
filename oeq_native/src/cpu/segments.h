// SPDX-License-Identifier: BSD-3-Clause
//
// Edges of a graph grouped by node.
#pragma once

#include <cstdint>

namespace oeq::cpu {

/// The edges of each node: `order[start[n]] .. order[start[n + 1] - 1]`, ascending where this library sorts; a null
/// `order` stands for 0, 1, 2, ...
struct Segments {
  const void *order = nullptr;
  const long long *start = nullptr;
};

/// Groups `edges` edges by `node` (int32 or int64, by `wide`). Uses the edges' own order if it is sorted already, else
/// `given_order` (null: none) if it sorts them, else sorts into `order_memory` [edges]. `start_memory` is [nodes + 1].
/// Throws KernelError if a node is outside 0..nodes-1; `what` names the operand.
Segments group_edges(const void *node, bool wide, int64_t edges, int64_t nodes, const void *given_order,
                     void *order_memory, long long *start_memory, const char *what);

/// Cuts nodes into `items` runs of about equal work (edges + nodes): cut[items + 1].
void cut_evenly(const long long *start, int64_t nodes, int64_t items, long long *cut);

/// Rows of partial gradients: one for each sender that occurs in an item, more for one that occurs so often that a sum
/// of as many terms would round too much; an item's rows together.
struct Tiles {
  int64_t rows = 0;
  int *row = nullptr;                 // [edges]: the row of the edge at each position
  int *sender_rows = nullptr;         // [rows]: sorted by sender, ascending within one
  long long *start = nullptr;         // [items + 1]: the first row of each item
  long long *sender_start = nullptr;  // [nodes + 1]: where a sender's rows begin in sender_rows
};

/// Assigns rows to the edges at positions cut[i] .. cut[i + 1] of `order` (see Segments) for each item i. The memory is
/// the caller's: `tiles` with its arrays, sender_rows [most_rows]; `seen` [nodes], `terms` [nodes] and `owner`
/// [most_rows] are scratch. False, with nothing to be used, if more than `most_rows` were needed.
bool plan_tiles(const void *sender, const void *order, bool wide, int64_t nodes, const long long *cut, int64_t items,
                int64_t most_rows, int *seen, int *terms, int *owner, Tiles &tiles);

}  // namespace oeq::cpu
