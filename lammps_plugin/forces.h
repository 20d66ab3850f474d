// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <array>
#include <vector>

#include "graph.h"
#include "stablemd.h"

namespace stablemd {

/// Forces and virials of a graph's rows from the gradient of the energy with respect to the edges' vectors, in double.
///
/// With v = r_neighbour - r_centre and g = dE/dv the edge pulls its centre with +g and its neighbour with -g, so
/// momentum is conserved exactly, and adds -(v_a g_b + v_b g_a) / 2 to the virial sum of r_a f_b. Half of it belongs to
/// each end.
class EdgeForces {
 public:
  using Virial = std::array<double, 6>;  ///< xx, yy, zz, xy, xz, yz

  /// `gradient` is smd_result.edge_gradient of the arrays `layout`.
  void compute(const Graph &graph, const smd_graph &layout, smd_dtype dtype, const void *gradient, bool with_virial,
               bool with_row_virials);

  const double *force(int64_t row) const { return &forces_[3 * row]; }
  const double *row_virial(int64_t row) const { return row_virials_[row].data(); }
  const Virial &virial() const { return virial_; }

 private:
  template <class Real>
  void sum_forces(const Graph &graph, const smd_graph &layout, const Real *gradient);
  template <class Real>
  void sum_virials(const Graph &graph, const smd_graph &layout, const Real *gradient, bool with_rows);

  std::vector<double> forces_;
  std::vector<Virial> row_virials_;
  Virial virial_{};
};

}  // namespace stablemd
