// SPDX-License-Identifier: GPL-2.0-or-later
#include "forces.h"

namespace stablemd {

namespace {

template <class Real>
EdgeForces::Virial edge_virial(const double *v, const Real *g) {
  const double gx = g[0], gy = g[1], gz = g[2];
  return {-v[0] * gx,
          -v[1] * gy,
          -v[2] * gz,
          -0.5 * (v[0] * gy + v[1] * gx),
          -0.5 * (v[0] * gz + v[2] * gx),
          -0.5 * (v[1] * gz + v[2] * gy)};
}

void add(EdgeForces::Virial &sum, const EdgeForces::Virial &term, double factor) {
  for (int k = 0; k < 6; ++k) sum[k] += factor * term[k];
}

}  // namespace

void EdgeForces::compute(const Graph &graph, const smd_graph &layout, smd_dtype dtype, const void *gradient,
                         const Wanted &wanted) {
  const auto dispatch = [&](const auto *typed) {
    sum_forces(graph, layout, typed);
    if (wanted.virial || wanted.row_virials) sum_virials(graph, layout, typed, wanted.row_virials);
    if (wanted.centroid_virials) sum_centroid_virials(graph, layout, typed);
  };
  if (dtype == SMD_FLOAT64)
    dispatch(static_cast<const double *>(gradient));
  else
    dispatch(static_cast<const float *>(gradient));
}

template <class Real>
void EdgeForces::sum_forces(const Graph &graph, const smd_graph &layout, const Real *gradient) {
  forces_.assign(3 * graph.row_count(), 0.0);
  double *forces = forces_.data();
  for (int hop = 0; hop < graph.layers(); ++hop) {
    const Real *g = gradient + 3 * layout.edge_offset[hop];
    for (int64_t centre = graph.row_begin(hop); centre < graph.row_begin(hop + 1); ++centre) {
      double fx = 0.0, fy = 0.0, fz = 0.0;
      for (int64_t edge = graph.first_edge(centre); edge < graph.first_edge(centre + 1); ++edge, g += 3) {
        double *neighbour = forces + 3 * int64_t{graph.neighbour_row(edge)};
        const double gx = g[0], gy = g[1], gz = g[2];
        fx += gx;
        fy += gy;
        fz += gz;
        neighbour[0] -= gx;
        neighbour[1] -= gy;
        neighbour[2] -= gz;
      }
      forces[3 * centre] += fx;
      forces[3 * centre + 1] += fy;
      forces[3 * centre + 2] += fz;
    }
  }
}

template <class Real>
void EdgeForces::sum_virials(const Graph &graph, const smd_graph &layout, const Real *gradient, bool with_rows) {
  virial_.fill(0.0);
  if (with_rows) row_virials_.assign(graph.row_count(), Virial{});
  for (int hop = 0; hop < graph.layers(); ++hop) {
    const Real *g = gradient + 3 * layout.edge_offset[hop];
    for (int64_t centre = graph.row_begin(hop); centre < graph.row_begin(hop + 1); ++centre) {
      Virial sum{};
      for (int64_t edge = graph.first_edge(centre); edge < graph.first_edge(centre + 1); ++edge, g += 3) {
        const Virial term = edge_virial(graph.vector(edge), g);
        add(sum, term, 1.0);
        if (with_rows) add(row_virials_[graph.neighbour_row(edge)], term, 0.5);
      }
      add(virial_, sum, 1.0);
      if (with_rows) add(row_virials_[centre], sum, 0.5);
    }
  }
}

template <class Real>
void EdgeForces::sum_centroid_virials(const Graph &graph, const smd_graph &layout, const Real *gradient) {
  centroid_virials_.assign(graph.row_count(), CentroidVirial{});
  for (int hop = 0; hop < graph.layers(); ++hop) {
    const Real *g = gradient + 3 * layout.edge_offset[hop];
    for (int64_t edge = graph.edge_begin(hop); edge < graph.edge_begin(hop + 1); ++edge, g += 3) {
      const double *v = graph.vector(edge);
      CentroidVirial &sum = centroid_virials_[graph.neighbour_row(edge)];
      constexpr int order[9][2] = {{0, 0}, {1, 1}, {2, 2}, {0, 1}, {0, 2}, {1, 2}, {1, 0}, {2, 0}, {2, 1}};
      for (int k = 0; k < 9; ++k) sum[k] -= v[order[k][0]] * g[order[k][1]];
    }
  }
}

}  // namespace stablemd
