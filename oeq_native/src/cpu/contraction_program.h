// SPDX-License-Identifier: BSD-3-Clause
//
// What the loops of the symmetric contraction read. Plain types and no other header: contraction_loops.inc is compiled
// once for each vector unit, and no function that others share may be compiled for a unit that a CPU lacks.
#pragma once

namespace oeq::cpu {

/// A node of a tree of monomials: the product of the features on the way to it. Nodes lie in depth-first order. Each
/// monomial has one coefficient, in the order: the node's own, those of its leaves, those of its inner children.
struct MonomialNode {
  int variable;  // the feature by which its parent is multiplied; of a root 0
  int inner;     // children that have children
  int leaves;    // children that have none
  int own;       // 1: the node itself is a monomial of the polynomial
};

/// Polynomials as trees. Forward: one tree for each output. Backward: one tree for all; a monomial has one coefficient
/// for each output in which it occurs.
struct ContractionProgram {
  int features, outputs, paths, coefficients;
  const MonomialNode *nodes;
  const int *leaf_variables;  // of all leaves, in order
  // Backward: of each monomial, in order.
  const int *output_counts;
  const int *outputs_of;
  // Coefficient c is the sum of `scales` times weights of `scale_paths`, over [coefficient_start[c], ...[c + 1]).
  const int *coefficient_start;
  const int *scale_paths;
  const void *scales;  // of the problem's dtype
};

/// Rows of one element, and as many channels as fit a vector.
struct ContractionTask {
  const ContractionProgram *program;
  const void *x;        // [rows, features, channels]
  const void *weights;  // [paths, channels] of the element
  const void *z;        // backward: [rows, outputs, channels]
  void *result;         // forward: as z; backward: as x
  const int *rows;
  long long count, channels, first_channel;
  void *work;
};

using ContractionLoop = void(const ContractionTask &task);

/// The loops for one vector unit.
struct ContractionLoops {
  int vector_bytes, rows_together;
  ContractionLoop *forward32, *backward32, *forward64, *backward64;
};

extern const ContractionLoops kBaselineLoops;
#ifdef __x86_64__
extern const ContractionLoops kAvx2Loops, kAvx512Loops;
#endif

}  // namespace oeq::cpu
