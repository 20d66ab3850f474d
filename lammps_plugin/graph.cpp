// SPDX-License-Identifier: GPL-2.0-or-later
#include "graph.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace stablemd {

void Graph::configure(int layers, double cutoff) {
  layers_ = layers;
  cutoff_squared_ = cutoff * cutoff;
}

void Graph::set_identities(std::vector<int> identities, int identity_count) {
  identities_ = std::move(identities);
  row_of_identity_.assign(identity_count, -1);
}

void Graph::build(const NeighbourLists &lists, const double *positions) {
  start_rows(lists);
  for (int hop = 0; hop < layers_; ++hop) {
    const int64_t end = row_begin_[hop + 1];
    for (int64_t centre = row_begin_[hop]; centre < end; ++centre) {
      const int64_t begin = first_edge_.back();
      add_edges(atom_of_row_[centre], lists, positions);
      find_rows(begin, first_edge_.back());
    }
    row_begin_[hop + 2] = row_count();
  }
}

void Graph::start_rows(const NeighbourLists &lists) {
  std::fill(row_of_identity_.begin(), row_of_identity_.end(), -1);
  atom_of_row_.assign(lists.owned, lists.owned + lists.owned_count);
  for (int row = 0; row < lists.owned_count; ++row) row_of_identity_[identities_[lists.owned[row]]] = row;
  row_begin_.assign(layers_ + 2, lists.owned_count);
  row_begin_[0] = 0;
  first_edge_.assign(1, 0);
}

// Without a branch in the loop: every candidate is written, only those within the cutoff are kept.
void Graph::add_edges(int atom, const NeighbourLists &lists, const double *positions) {
  const int count = lists.counts[atom];
  const int *list = lists.neighbours[atom];
  int64_t edge = first_edge_.back();
  make_room(edge + count);
  double *vectors = vectors_.data();
  int *neighbours = neighbours_.data();
  const double x = positions[3 * int64_t{atom}];
  const double y = positions[3 * int64_t{atom} + 1];
  const double z = positions[3 * int64_t{atom} + 2];
  for (int n = 0; n < count; ++n) {
    const int64_t neighbour = list[n] & lists.mask;
    const double dx = positions[3 * neighbour] - x;
    const double dy = positions[3 * neighbour + 1] - y;
    const double dz = positions[3 * neighbour + 2] - z;
    vectors[3 * edge] = dx;
    vectors[3 * edge + 1] = dy;
    vectors[3 * edge + 2] = dz;
    neighbours[edge] = static_cast<int>(neighbour);
    edge += dx * dx + dy * dy + dz * dz < cutoff_squared_ ? 1 : 0;
  }
  first_edge_.push_back(edge);
}

// Replaces the atoms of these edges by their rows; who has none begins one, in the next hop.
void Graph::find_rows(int64_t begin, int64_t end) {
  for (int64_t edge = begin; edge < end; ++edge) {
    const int atom = neighbours_[edge];
    int &row = row_of_identity_[identities_[atom]];
    if (row < 0) {
      row = static_cast<int>(row_count());
      atom_of_row_.push_back(atom);
    }
    neighbours_[edge] = row;
  }
}

void Graph::make_room(int64_t edges) {
  // one more, where the candidate after the last edge is written
  const auto needed = static_cast<std::size_t>(edges) + 1;
  if (neighbours_.size() >= needed) return;
  neighbours_.resize(needed + needed / 2);
  vectors_.resize(3 * neighbours_.size());
}

ShortestEdge Graph::shortest_edge() const {
  ShortestEdge shortest{-1, -1, std::numeric_limits<double>::max()};
  for (int64_t centre = 0; centre + 1 < static_cast<int64_t>(first_edge_.size()); ++centre)
    for (int64_t edge = first_edge_[centre]; edge < first_edge_[centre + 1]; ++edge) {
      const double *v = vector(edge);
      const double length = std::sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
      if (length < shortest.length) shortest = {atom_of_row(centre), atom_of_row(neighbour_row(edge)), length};
    }
  return shortest;
}

smd_graph_size Graph::size() const {
  smd_graph_size size{};
  size.struct_size = sizeof(size);
  for (int hop = 0; hop <= layers_; ++hop) size.nodes[hop] = row_begin_[hop + 1] - row_begin_[hop];
  for (int hop = 0; hop < layers_; ++hop) size.edges[hop] = edge_begin(hop + 1) - edge_begin(hop);
  return size;
}

void Graph::write(const smd_graph &target, smd_dtype dtype, const int *type, const std::vector<int> &species) {
  place_rows(target);
  write_species(target, type, species);
  if (dtype == SMD_FLOAT64)
    write_edges<double>(target);
  else
    write_edges<float>(target);
}

void Graph::place_rows(const smd_graph &target) {
  placed_.resize(atom_of_row_.size());
  for (int hop = 0; hop <= layers_; ++hop)
    for (int64_t row = row_begin_[hop]; row < row_begin_[hop + 1]; ++row)
      placed_[row] = static_cast<int32_t>(target.node_offset[hop] + row - row_begin_[hop]);
}

void Graph::write_species(const smd_graph &target, const int *type, const std::vector<int> &species) const {
  for (std::size_t row = 0; row < atom_of_row_.size(); ++row)
    target.species[placed_[row]] = species[type[atom_of_row_[row]]];
}

template <class Real>
void Graph::write_edges(const smd_graph &target) const {
  for (int hop = 0; hop < layers_; ++hop) {
    const int64_t begin = edge_begin(hop);
    const int64_t count = edge_begin(hop + 1) - begin;
    const int64_t offset = target.edge_offset[hop];
    auto *vectors = static_cast<Real *>(target.vectors) + 3 * offset;
    const double *source = vectors_.data() + 3 * begin;
    for (int64_t n = 0; n < 3 * count; ++n) vectors[n] = static_cast<Real>(source[n]);
    for (int64_t n = 0; n < count; ++n) target.neighbors[offset + n] = placed_[neighbours_[begin + n]];
    for (int64_t centre = row_begin_[hop]; centre < row_begin_[hop + 1]; ++centre)
      std::fill(target.centers + offset + first_edge_[centre] - begin,
                target.centers + offset + first_edge_[centre + 1] - begin, placed_[centre]);
  }
}

}  // namespace stablemd
