// SPDX-License-Identifier: BSD-3-Clause
#include "segments.h"

#include <algorithm>
#include <string>

#include "../backend.h"

namespace oeq::cpu {
namespace {

template <class Index>
void check_range(const Index *node, int64_t edges, int64_t nodes, const char *what) {
  bool inside = true;
  for (int64_t e = 0; e < edges; ++e) inside &= node[e] >= 0 && node[e] < nodes;
  if (inside) return;
  for (int64_t e = 0; e < edges; ++e)
    if (node[e] < 0 || node[e] >= nodes)
      throw KernelError(std::string(what) + " of edge " + std::to_string(e) + " is " + std::to_string(node[e]) +
                        ", but there are " + std::to_string(nodes) + " nodes");
}

template <class Index>
bool is_sorted(const Index *node, int64_t edges) {
  bool sorted = true;
  for (int64_t e = 1; e < edges; ++e) sorted &= node[e - 1] <= node[e];
  return sorted;
}

/// True if `order` names edges that exist and visits their nodes in ascending order.
template <class Index>
bool sorts(const Index *order, const Index *node, int64_t edges) {
  bool good = true;
  Index previous = 0;
  for (int64_t k = 0; k < edges; ++k) {
    const Index e = order[k];
    if (e < 0 || e >= edges) return false;
    good &= node[e] >= previous;
    previous = node[e];
  }
  return good;
}

template <class Index>
void count(const Index *node, int64_t edges, int64_t nodes, long long *start) {
  for (int64_t n = 0; n <= nodes; ++n) start[n] = 0;
  for (int64_t e = 0; e < edges; ++e) ++start[node[e] + 1];
  for (int64_t n = 0; n < nodes; ++n) start[n + 1] += start[n];
}

/// Stable counting sort. Leaves `start` as it was.
template <class Index>
void sort_by_node(const Index *node, int64_t edges, int64_t nodes, long long *start, Index *order) {
  for (int64_t e = 0; e < edges; ++e) order[start[node[e]]++] = static_cast<Index>(e);
  for (int64_t n = nodes; n > 0; --n) start[n] = start[n - 1];
  start[0] = 0;
}

template <class Index>
Segments group(const Index *node, int64_t edges, int64_t nodes, const Index *given, Index *order, long long *start,
               const char *what) {
  check_range(node, edges, nodes, what);
  count(node, edges, nodes, start);
  if (is_sorted(node, edges)) return {nullptr, start};
  if (given && sorts(given, node, edges)) return {given, start};
  sort_by_node(node, edges, nodes, start, order);
  return {order, start};
}

constexpr int kTermsOfRow = 128;

template <class Index>
bool assign_rows(const Index *sender, const Index *order, int64_t nodes, const long long *cut, int64_t items,
                 int64_t most_rows, int *seen, int *terms, int *owner, Tiles &tiles) {
  std::fill_n(seen, nodes, -1);
  int64_t rows = 0;
  for (int64_t item = 0; item < items; ++item) {
    tiles.start[item] = rows;
    for (int64_t k = cut[item]; k < cut[item + 1]; ++k) {
      const Index n = sender[order ? order[k] : k];
      if (seen[n] < tiles.start[item] || terms[n] == kTermsOfRow) {
        if (rows == most_rows) return false;
        owner[rows] = static_cast<int>(n);
        seen[n] = static_cast<int>(rows++);
        terms[n] = 0;
      }
      ++terms[n];
      tiles.row[k] = seen[n];
    }
  }
  tiles.start[items] = tiles.rows = rows;
  return true;
}

}  // namespace

bool plan_tiles(const void *sender, const void *order, bool wide, int64_t nodes, const long long *cut, int64_t items,
                int64_t most_rows, int *seen, int *terms, int *owner, Tiles &tiles) {
  const bool fits = wide ? assign_rows(static_cast<const int64_t *>(sender), static_cast<const int64_t *>(order), nodes,
                                       cut, items, most_rows, seen, terms, owner, tiles)
                         : assign_rows(static_cast<const int32_t *>(sender), static_cast<const int32_t *>(order), nodes,
                                       cut, items, most_rows, seen, terms, owner, tiles);
  if (!fits) return false;
  count(owner, tiles.rows, nodes, tiles.sender_start);
  sort_by_node(owner, tiles.rows, nodes, tiles.sender_start, tiles.sender_rows);
  return true;
}

Segments group_edges(const void *node, bool wide, int64_t edges, int64_t nodes, const void *given_order,
                     void *order_memory, long long *start_memory, const char *what) {
  if (wide)
    return group(static_cast<const int64_t *>(node), edges, nodes, static_cast<const int64_t *>(given_order),
                 static_cast<int64_t *>(order_memory), start_memory, what);
  return group(static_cast<const int32_t *>(node), edges, nodes, static_cast<const int32_t *>(given_order),
               static_cast<int32_t *>(order_memory), start_memory, what);
}

void cut_evenly(const long long *start, int64_t nodes, int64_t items, long long *cut) {
  const int64_t total = start[nodes] + nodes;
  int64_t node = 0;
  for (int64_t item = 0; item < items; ++item) {
    const int64_t target = total / items * item + total % items * item / items;
    while (node < nodes && start[node] + node < target) ++node;
    cut[item] = node;
  }
  cut[items] = nodes;
}

}  // namespace oeq::cpu
