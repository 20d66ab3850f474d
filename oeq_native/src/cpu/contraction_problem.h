// SPDX-License-Identifier: BSD-3-Clause
//
// The payload of a symmetric contraction: which polynomials it evaluates, independent of any device.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "../backend.h"
#include "contraction_program.h"

namespace oeq::cpu {

/// `coefficient` times the weight of `path` times the features `indices`, added to `output`.
struct ContractionTerm {
  int output = 0, path = 0;
  std::vector<int> indices;
  double coefficient = 0;
};

struct ContractionProblem {
  int features = 0, outputs = 0, paths = 0;
  bool double_precision = false;
  std::vector<ContractionTerm> terms;
};

/// Reads and checks `problem`, also against `kernel_prop`. Throws KernelError with one line.
ContractionProblem parse_contraction(const nlohmann::json &problem, const KernelProperties &properties);

/// A ContractionProgram and the memory that it points into.
class ContractionTrees {
 public:
  ContractionTrees(const ContractionProblem &problem, Order order);

  ContractionProgram program() const;

 private:
  struct Monomials;

  void add_tree(const Monomials &monomials);
  void add_node(const Monomials &monomials, size_t begin, size_t end, size_t depth, int variable);
  void add_monomial(const Monomials &monomials, size_t place);

  const int features_, outputs_, paths_;
  const bool double_precision_, backward_;
  std::vector<MonomialNode> nodes_;
  std::vector<int> leaf_variables_, output_counts_, outputs_of_, coefficient_start_{0}, scale_paths_;
  std::vector<double> scales64_;
  std::vector<float> scales32_;
};

}  // namespace oeq::cpu
