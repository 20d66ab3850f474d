// SPDX-License-Identifier: BSD-3-Clause
// The arrays that the engine fills in place, and the padding between what it fills.
#pragma once

#include <cstdlib>
#include <memory>

#include "capacity.h"
#include "dtype.h"
#include "program.h"
#include "stablemd.h"

namespace stablemd {

/// Memory at the alignment that XLA needs to use it without a copy.
class AlignedMemory {
 public:
  explicit AlignedMemory(size_t bytes = 0);

  void *data() const { return data_.get(); }
  template <class T>
  T *as() const {
    return static_cast<T *>(data_.get());
  }

 private:
  struct Free {
    void operator()(void *data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
};

class GraphArrays {
 public:
  GraphArrays() = default;
  /// `capacity` holds at least with_padding(graph) for every graph that set_graph() is given.
  GraphArrays(const HopCounts &capacity, const ElementType *real, double cutoff);

  const HopCounts &capacity() const { return capacity_; }
  const HopCounts &graph() const { return graph_; }

  /// Says which entries the engine fills next, and restores the padding that earlier graphs overwrote.
  void set_graph(const HopCounts &graph);

  /// Offsets, capacities and pointers for the engine.
  void describe(smd_graph &description) const;

  const void *data(Role role) const;

  /// Throws Error(SMD_ERROR_ARGUMENT) for a species outside [0, elements) or a vector that is not finite.
  void check_values(int elements) const;

  /// Throws Error(SMD_ERROR_ARGUMENT) for centres out of order, or rows out of range.
  void check_edges() const;

 private:
  HopCounts capacity_;
  HopCounts graph_;
  const ElementType *real_ = nullptr;
  double cutoff_ = 0;
  AlignedMemory species_, centers_, neighbors_, vectors_, owned_;

  void pad_rows(int hop, int64_t begin, int64_t end);
  void pad_edges(int hop, int64_t begin, int64_t end);
};

/// Index of the first number that is not finite; -1 where all are.
int64_t first_not_finite(const void *numbers, const ElementType &real, int64_t count);

}  // namespace stablemd
