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
///
/// Where energies are functions of the edges of their own atom alone (one layer), an atom has an exact centroid virial
/// too, -v_a g_b summed over the edges that end at it: the force on it times its distance from the atom whose energy it
/// is. So the heat flux of LAMMPS' formula is the derivative of sum_i r_i E_i (Surblys et al., Phys. Rev. E 99, 051301
/// (2019), eq. 24; Fan et al., Phys. Rev. B 92, 094301 (2015), eq. 21).
class EdgeForces {
 public:
  using Virial = std::array<double, 6>;          ///< xx, yy, zz, xy, xz, yz
  using CentroidVirial = std::array<double, 9>;  ///< xx, yy, zz, xy, xz, yz, yx, zx, zy: first the distance

  /// What is to be computed beside the forces.
  struct Wanted {
    bool virial;
    bool row_virials;
    bool centroid_virials;
  };

  /// `gradient` is smd_result.edge_gradient of the arrays `layout`.
  void compute(const Graph &graph, const smd_graph &layout, smd_dtype dtype, const void *gradient,
               const Wanted &wanted);

  const double *force(int64_t row) const { return &forces_[3 * row]; }
  const double *row_virial(int64_t row) const { return row_virials_[row].data(); }
  const double *centroid_virial(int64_t row) const { return centroid_virials_[row].data(); }
  const Virial &virial() const { return virial_; }

 private:
  template <class Real>
  void sum_forces(const Graph &graph, const smd_graph &layout, const Real *gradient);
  template <class Real>
  void sum_virials(const Graph &graph, const smd_graph &layout, const Real *gradient, bool with_rows);
  template <class Real>
  void sum_centroid_virials(const Graph &graph, const smd_graph &layout, const Real *gradient);

  std::vector<double> forces_;
  std::vector<Virial> row_virials_;
  std::vector<CentroidVirial> centroid_virials_;
  Virial virial_{};
};

}  // namespace stablemd
