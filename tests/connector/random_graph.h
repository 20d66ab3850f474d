// SPDX-License-Identifier: BSD-3-Clause
// Random graphs, and the energies that make_bundles.py's potentials give for them, computed here in double.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "c_api.h"
#include "check.h"

namespace test {

constexpr double kCutoff = 2.5;

/// Rows are numbered without padding, hop after hop.
struct Edge {
  int64_t center, neighbor;
  std::array<double, 3> vector;
};

struct RandomGraph {
  int layers;
  std::vector<int64_t> nodes;            // per hop
  std::vector<std::vector<Edge>> edges;  // per hop of the centre
  std::vector<int> species;

  smd_graph_size size() const {
    auto result = sized<smd_graph_size>();
    for (size_t hop = 0; hop < nodes.size(); ++hop) result.nodes[hop] = nodes[hop];
    for (size_t hop = 0; hop < edges.size(); ++hop) result.edges[hop] = edges[hop].size();
    return result;
  }
};

/// `edges_per_hop` edges between random rows; some of them beyond the cutoff.
inline RandomGraph random_graph(std::mt19937_64 &random, const std::vector<int64_t> &nodes,
                                const std::vector<int64_t> &edges_per_hop) {
  RandomGraph graph{static_cast<int>(edges_per_hop.size()), nodes, {}, {}};
  std::uniform_real_distribution<double> component(-1.7, 1.7);
  std::vector<int64_t> ends;
  for (const int64_t count : nodes) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + count);
    for (int64_t i = 0; i < count; ++i) graph.species.push_back(static_cast<int>(random() % 2));
  }
  for (size_t hop = 0; hop < edges_per_hop.size(); ++hop) {
    std::vector<Edge> edges;
    for (int64_t i = 0; i < edges_per_hop[hop]; ++i) {
      const auto center = static_cast<int64_t>(ends[hop] - nodes[hop] + random() % nodes[hop]);
      const auto neighbor = static_cast<int64_t>(random() % ends[hop + 1]);
      edges.push_back({center, neighbor, {component(random), component(random), component(random)}});
    }
    std::stable_sort(edges.begin(), edges.end(), [](const Edge &a, const Edge &b) { return a.center < b.center; });
    graph.edges.push_back(std::move(edges));
  }
  return graph;
}

/// Where the library put row `row` of the graph.
inline int32_t placed_row(const RandomGraph &graph, const smd_graph &arrays, int64_t row) {
  size_t hop = 0;
  while (row >= graph.nodes[hop]) row -= graph.nodes[hop++];
  return static_cast<int32_t>(arrays.node_offset[hop] + row);
}

template <class Real>
void fill(const RandomGraph &graph, const smd_graph &arrays) {
  for (size_t row = 0; row < graph.species.size(); ++row) {
    arrays.species[placed_row(graph, arrays, row)] = graph.species[row];
  }
  for (size_t hop = 0; hop < graph.edges.size(); ++hop) {
    int64_t at = arrays.edge_offset[hop];
    for (const Edge &edge : graph.edges[hop]) {
      arrays.centers[at] = placed_row(graph, arrays, edge.center);
      arrays.neighbors[at] = placed_row(graph, arrays, edge.neighbor);
      for (int k = 0; k < 3; ++k) static_cast<Real *>(arrays.vectors)[3 * at + k] = static_cast<Real>(edge.vector[k]);
      ++at;
    }
  }
}

struct Reference {
  std::vector<double> node_energy;                                // of owned rows
  std::vector<std::vector<std::array<double, 3>>> edge_gradient;  // per hop
};

/// The closed forms of make_bundles.py for one or two layers; vectors are rounded to Real before.
template <class Real>
Reference reference(const RandomGraph &graph) {
  constexpr double kTable[2][2] = {{1.0, -0.5}, {-0.5, 0.25}};
  const auto u = [](const Edge &edge) {
    double r2 = 0;
    for (const double x : edge.vector) r2 += double(Real(x)) * double(Real(x));
    return std::max(0.0, 1 - r2 / (kCutoff * kCutoff));
  };
  const auto w = [&](const Edge &edge) { return kTable[graph.species[edge.center]][graph.species[edge.neighbor]]; };
  const int64_t owned = graph.nodes[0];
  std::vector<double> rho(graph.species.size()), adjoint(graph.species.size());
  for (const auto &edges : graph.edges) {
    for (const Edge &edge : edges) rho[edge.center] += w(edge) * std::pow(u(edge), 3);
  }
  Reference result;
  result.node_energy.assign(rho.begin(), rho.begin() + owned);
  if (graph.layers == 2) {
    for (int64_t i = 0; i < owned; ++i) result.node_energy[i] = rho[i] * rho[i];
    for (int64_t i = 0; i < owned; ++i) adjoint[i] = 2 * rho[i];
    for (const Edge &edge : graph.edges[0]) {
      result.node_energy[edge.center] += rho[edge.neighbor] * std::pow(u(edge), 3);
      adjoint[edge.neighbor] += std::pow(u(edge), 3);
    }
  } else {
    std::fill(adjoint.begin(), adjoint.begin() + owned, 1.0);
  }
  for (const auto &edges : graph.edges) {
    std::vector<std::array<double, 3>> gradients;
    for (const Edge &edge : edges) {
      double factor = adjoint[edge.center] * w(edge);
      if (graph.layers == 2 && edge.center < owned) factor += rho[edge.neighbor];
      factor *= -6 / (kCutoff * kCutoff) * u(edge) * u(edge);  // d(u^3)/dx = -6 x u^2 / cutoff^2
      gradients.push_back({});
      for (int k = 0; k < 3; ++k) gradients.back()[k] = factor * double(Real(edge.vector[k]));
    }
    result.edge_gradient.push_back(std::move(gradients));
  }
  return result;
}

/// Largest difference from the reference, relative to the largest number of its kind; infinite where padding has a
/// gradient.
template <class Real>
double difference(const RandomGraph &graph, const smd_graph &arrays, const smd_result &result) {
  const Reference expected = reference<Real>(graph);
  const auto *energy = static_cast<const Real *>(result.node_energy);
  const auto *gradient = static_cast<const Real *>(result.edge_gradient);
  double scale = 1, worst = 0;
  for (const double e : expected.node_energy) scale = std::max(scale, std::abs(e));
  for (size_t i = 0; i < expected.node_energy.size(); ++i) {
    worst = std::max(worst, std::abs(energy[i] - expected.node_energy[i]) / scale);
  }
  std::vector<bool> real(arrays.edge_capacity, false);
  for (size_t hop = 0; hop < graph.edges.size(); ++hop) {
    for (size_t i = 0; i < graph.edges[hop].size(); ++i) {
      const int64_t at = arrays.edge_offset[hop] + static_cast<int64_t>(i);
      real[at] = true;
      for (int k = 0; k < 3; ++k) {
        const double difference = std::abs(gradient[3 * at + k] - expected.edge_gradient[hop][i][k]) / scale;
        worst = std::isnan(difference) ? HUGE_VAL : std::max(worst, difference);
      }
    }
  }
  for (int64_t edge = 0; edge < arrays.edge_capacity; ++edge) {
    for (int k = 0; k < 3; ++k) {
      if (!real[edge] && gradient[3 * edge + k] != 0) worst = HUGE_VAL;
    }
  }
  return worst;
}

/// Reserves, fills and evaluates; returns the difference from the reference.
template <class Real>
double evaluate(Model &model, const RandomGraph &graph) {
  const smd_graph arrays = model.reserve(graph.size());
  fill<Real>(graph, arrays);
  return difference<Real>(graph, arrays, model.evaluate());
}

}  // namespace test
