// SPDX-License-Identifier: BSD-3-Clause
#include "graph_arrays.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "error.h"

namespace stablemd {
namespace {

constexpr size_t kAlignment = 64;

/// A number is finite unless all bits of its exponent are set; in integers the compiler can look at many at once.
template <class Bits, Bits kExponent>
bool all_finite(const char *numbers, int64_t count) {
  Bits broken = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, numbers + i * sizeof bits, sizeof bits);
    broken |= static_cast<Bits>((bits & kExponent) == kExponent);
  }
  return broken == 0;
}

bool all_finite(const char *numbers, const ElementType &real, int64_t count) {
  return real.bytes == 8 ? all_finite<uint64_t, 0x7ff0000000000000>(numbers, count)
                         : all_finite<uint32_t, 0x7f800000>(numbers, count);
}

template <class Real>
void fill_beyond_cutoff(Real *vectors, int64_t begin, int64_t end, double cutoff) {
  for (int64_t edge = begin; edge < end; ++edge) {
    vectors[3 * edge] = static_cast<Real>(1.01 * cutoff);
    vectors[3 * edge + 1] = 0;
    vectors[3 * edge + 2] = 0;
  }
}

}  // namespace

int64_t first_not_finite(const void *numbers, const ElementType &real, int64_t count) {
  constexpr int64_t kBlock = 1024;
  const auto *bytes = static_cast<const char *>(numbers);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    if (all_finite(bytes + begin * real.bytes, real, length)) continue;
    for (int64_t i = begin;; ++i) {
      if (!all_finite(bytes + i * real.bytes, real, 1)) return i;
    }
  }
  return -1;
}

AlignedMemory::AlignedMemory(size_t bytes) {
  const size_t rounded = std::max<size_t>(1, (bytes + kAlignment - 1) / kAlignment) * kAlignment;
  data_.reset(std::aligned_alloc(kAlignment, rounded));
  if (!data_) throw std::bad_alloc();
}

GraphArrays::GraphArrays(const HopCounts &capacity, const ElementType *real, double cutoff)
    : capacity_(capacity),
      graph_(capacity),
      real_(real),
      cutoff_(cutoff),
      species_(capacity.all_rows() * sizeof(int32_t)),
      centers_(capacity.all_edges() * sizeof(int32_t)),
      neighbors_(capacity.all_edges() * sizeof(int32_t)),
      vectors_(capacity.all_edges() * 3 * real->bytes),
      owned_(sizeof(int32_t)) {}

void GraphArrays::set_graph(const HopCounts &graph) {
  // The engine may have written everything up to the counts of the last graph; behind them the padding is intact.
  for (int hop = 0; hop <= graph.layers; ++hop) {
    pad_rows(hop, graph.rows[hop], graph_.rows[hop]);
    if (hop < graph.layers) pad_edges(hop, graph.edges[hop], graph_.edges[hop]);
  }
  graph_ = graph;
  *owned_.as<int32_t>() = static_cast<int32_t>(graph.rows[0]);
}

void GraphArrays::pad_rows(int hop, int64_t begin, int64_t end) {
  const int64_t offset = capacity_.row_offset(hop);
  for (int64_t row = offset + begin; row < offset + end; ++row) species_.as<int32_t>()[row] = 0;
}

void GraphArrays::pad_edges(int hop, int64_t begin, int64_t end) {
  if (begin >= end) return;
  const int64_t offset = capacity_.edge_offset(hop);
  const auto dummy = static_cast<int32_t>(capacity_.row_offset(hop + 1) - 1);
  std::fill(centers_.as<int32_t>() + offset + begin, centers_.as<int32_t>() + offset + end, dummy);
  std::fill(neighbors_.as<int32_t>() + offset + begin, neighbors_.as<int32_t>() + offset + end, dummy);
  if (real_->bytes == 8) {
    fill_beyond_cutoff(vectors_.as<double>(), offset + begin, offset + end, cutoff_);
  } else {
    fill_beyond_cutoff(vectors_.as<float>(), offset + begin, offset + end, cutoff_);
  }
}

void GraphArrays::describe(smd_graph &description) const {
  description.species = species_.as<int32_t>();
  description.centers = centers_.as<int32_t>();
  description.neighbors = neighbors_.as<int32_t>();
  description.vectors = vectors_.data();
  for (int hop = 0; hop <= capacity_.layers; ++hop) description.node_offset[hop] = capacity_.row_offset(hop);
  for (int hop = 0; hop < capacity_.layers; ++hop) description.edge_offset[hop] = capacity_.edge_offset(hop);
  description.node_capacity = capacity_.all_rows();
  description.edge_capacity = capacity_.all_edges();
}

const void *GraphArrays::data(Role role) const {
  switch (role) {
    case Role::species:
      return species_.data();
    case Role::centers:
      return centers_.data();
    case Role::neighbors:
      return neighbors_.data();
    case Role::vectors:
      return vectors_.data();
    case Role::owned:
      return owned_.data();
    default:
      fail(SMD_ERROR_INTERNAL, "role `", role_name(role), "` has no array");
  }
}

void GraphArrays::check_values(int elements) const {
  const auto *species = species_.as<const int32_t>();
  for (int hop = 0; hop <= graph_.layers; ++hop) {
    const int64_t begin = capacity_.row_offset(hop);
    const int64_t end = begin + graph_.rows[hop];
    const auto bad =
        std::find_if(species + begin, species + end, [elements](int32_t s) { return s < 0 || s >= elements; });
    if (bad != species + end) {
      fail(SMD_ERROR_ARGUMENT, "species of row ", bad - species, " is ", *bad, ", the model has ", elements,
           " elements");
    }
  }
  for (int hop = 0; hop < graph_.layers; ++hop) {
    const int64_t begin = capacity_.edge_offset(hop);
    const char *vectors = vectors_.as<const char>() + 3 * begin * real_->bytes;
    const int64_t bad = first_not_finite(vectors, *real_, 3 * graph_.edges[hop]);
    if (bad < 0) continue;
    const int64_t edge = begin + bad / 3;
    fail(SMD_ERROR_ARGUMENT, "vector of edge ", edge, " (rows ", centers_.as<int32_t>()[edge], " and ",
         neighbors_.as<int32_t>()[edge], ") is not finite: check the positions");
  }
}

void GraphArrays::check_edges() const {
  const auto *centers = centers_.as<const int32_t>();
  const auto *neighbors = neighbors_.as<const int32_t>();
  for (int hop = 0; hop < graph_.layers; ++hop) {
    const int64_t first_row = capacity_.row_offset(hop);
    const int64_t rows_end = first_row + graph_.rows[hop];
    const int64_t begin = capacity_.edge_offset(hop);
    for (int64_t edge = begin; edge < begin + graph_.edges[hop]; ++edge) {
      if (centers[edge] < first_row || centers[edge] >= rows_end) {
        fail(SMD_ERROR_ARGUMENT, "centre of edge ", edge, " is row ", centers[edge], ", not in hop ", hop);
      }
      if (edge > begin && centers[edge] < centers[edge - 1]) {
        fail(SMD_ERROR_ARGUMENT, "edges are not sorted by centre at edge ", edge);
      }
      bool real = false;
      for (int other = 0; other <= hop + 1; ++other) {
        const int64_t row = neighbors[edge] - capacity_.row_offset(other);
        real = real || (row >= 0 && row < graph_.rows[other]);
      }
      if (!real)
        fail(SMD_ERROR_ARGUMENT, "neighbour of edge ", edge, " is row ", neighbors[edge], ", not in hops 0 to ",
             hop + 1);
    }
  }
}

}  // namespace stablemd
