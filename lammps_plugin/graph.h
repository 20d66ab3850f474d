// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <cstdint>
#include <vector>

#include "stablemd.h"

namespace stablemd {

/// Full neighbour lists, as the engine stores them: by atom, owned atoms first, then ghosts.
struct NeighbourLists {
  int owned_count;               ///< atoms whose energies count; each has a list
  const int *owned;              ///< [owned_count] their indices
  const int *counts;             ///< [atom] length of the list of each atom that has one
  const int *const *neighbours;  ///< [atom][count] indices of neighbours, within the cutoff and more
  int mask;                      ///< to be applied to an index, whose upper bits may hold flags
};

/// Two atoms (indices of the engine, -1: there are no edges) and their distance.
struct ShortestEdge {
  int centre;
  int neighbour;
  double length;
};

/// Turns neighbour lists into the graph of one step: rows by hop and edges by centre, as `smd_graph_size` describes
/// them.
///
/// Atoms that are periodic images of each other have the same *identity* and share one row. Hop 0 are the owned atoms;
/// an image of an owned atom is in its row. A ghost of another identity gets a row in the hop where the search from the
/// owned atoms, along edges of this step, meets it first. Its edges come from the list of that very image: the engine
/// holds all atoms within `layers` cutoffs of the owned ones, so this list is complete, which that of a farther image
/// may not be.
class Graph {
 public:
  void configure(int layers, double cutoff);

  /// Once per rebuild of the lists: identities[atom], in 0 .. identity_count - 1.
  void set_identities(std::vector<int> identities, int identity_count);

  /// Finds the rows and edges for these positions [atom][3]. Vectors are subtracted in double.
  void build(const NeighbourLists &lists, const double *positions);

  smd_graph_size size() const;

  /// Writes the graph into the library's arrays. `species` is indexed by `type[atom]`.
  void write(const smd_graph &target, smd_dtype dtype, const int *type, const std::vector<int> &species);

  int layers() const { return layers_; }
  int64_t row_count() const { return static_cast<int64_t>(atom_of_row_.size()); }
  int64_t owned_rows() const { return row_begin_[1]; }
  int64_t edge_count() const { return first_edge_.back(); }
  int64_t centre_count() const { return static_cast<int64_t>(first_edge_.size()) - 1; }

  /// Rows here are counted without padding: row 0 .. row_count() - 1, hop after hop; edges likewise.
  int atom_of_row(int64_t row) const { return atom_of_row_[row]; }
  int64_t first_edge(int64_t centre) const { return first_edge_[centre]; }
  int neighbour_row(int64_t edge) const { return neighbours_[edge]; }
  const double *vector(int64_t edge) const { return &vectors_[3 * edge]; }
  int64_t row_begin(int hop) const { return row_begin_[hop]; }
  int64_t edge_begin(int hop) const { return first_edge_[row_begin_[hop]]; }
  ShortestEdge shortest_edge() const;

 private:
  void start_rows(const NeighbourLists &lists);
  void add_edges(int atom, const NeighbourLists &lists, const double *positions);
  void find_rows(int64_t begin, int64_t end);
  void make_room(int64_t edges);
  void place_rows(const smd_graph &target);
  void write_species(const smd_graph &target, const int *type, const std::vector<int> &species) const;
  template <class Real>
  void write_edges(const smd_graph &target) const;

  int layers_ = 1;
  double cutoff_squared_ = 0.0;
  std::vector<int> identities_;  // [atom]

  std::vector<int> row_of_identity_;  // -1: not reached in this step
  std::vector<int> atom_of_row_;
  std::vector<int64_t> row_begin_{0, 0};  // [hop], and the end
  std::vector<int64_t> first_edge_{0};    // [centre], and the end

  // Edges of this step, in final order; longer than edge_count() to spare reallocation.
  std::vector<double> vectors_;
  std::vector<int> neighbours_;  // atoms while a centre is searched, then rows

  std::vector<int32_t> placed_;  // [row] the row in the library's arrays, where hops end with padding
};

}  // namespace stablemd
