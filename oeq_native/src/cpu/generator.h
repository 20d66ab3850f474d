// SPDX-License-Identifier: BSD-3-Clause
//
// C++ source of the CPU kernel of one problem.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "problem.h"

namespace oeq::cpu {

/// Increase with every change of the generated code: it is part of every image's key.
constexpr int kGeneratorVersion = 3;

/// The vector unit to generate for.
struct VectorUnit {
  int64_t bytes = 16;      // of one register
  int64_t registers = 16;  // architectural
};

/// The vector unit of the CPU that runs this process.
VectorUnit this_vector_unit();

/// The kernel's own arrangement of rows: channel-innermost, each component padded to whole vectors. Rows of nodes that
/// already have it are used in place.
struct KernelLayout {
  int64_t lanes = 4;                           // numbers in one vector
  int64_t edge_lanes = 1;                      // edges whose couplings are made together
  std::vector<int64_t> padded1, padded3;       // channels of each block, padded
  std::vector<int64_t> offset1, offset3;       // of each block in a packed row
  std::vector<int64_t> weight_offset;          // of each path in a packed row of weights
  std::vector<int64_t> coupling_offset;        // of each path among the couplings of one edge
  int64_t row1 = 0, row3 = 0, weight_row = 0;  // packed lengths
  int64_t couplings = 0;
  int64_t uvw_scratch = 0;
  bool direct1 = false, direct3 = false, direct_weights = false;  // packed layout = operand's layout
  int64_t together = 1;                                           // products that share one pass over their sum
  bool tiles = false;  // convolution: gradients by tiles where the graph allows it
  int64_t work = 0;    // numbers that each thread needs beside
};

KernelLayout kernel_layout(const Problem &problem, const VectorUnit &unit);

/// The whole source; exports `OEQ_KERNEL_SYMBOL` as a KernelFunction. The same input gives the same text.
std::string generate(const Problem &problem, Family family, Order order, const VectorUnit &unit);

}  // namespace oeq::cpu
