// SPDX-License-Identifier: BSD-3-Clause
#include "contraction_problem.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace oeq::cpu {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostFeatures = 1 << 12;  // more than any spherical harmonics, few enough for the work memory
constexpr int64_t kMostPaths = 1 << 20;
constexpr size_t kHighestDegree = 16;

[[noreturn]] void fail(const std::string &what) { throw KernelError("payload key `problem`: " + what); }

int whole(const Json &value, int64_t most, const std::string &what) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > most)
    fail(what + " must be a whole number up to " + std::to_string(most));
  return value.get<int>();
}

int member(const Json &problem, const char *key, int64_t most) {
  return whole(problem.value(key, Json()), most, std::string("`") + key + "`");
}

/// [coefficient, index, index, ...]
void add_term(const Json &value, const std::string &where, ContractionTerm term, ContractionProblem &problem) {
  if (!value.is_array() || value.size() < 2 || value.size() > kHighestDegree + 1 || !value[0].is_number())
    fail(where + " must hold terms [coefficient, feature, ...] of at most 16 features");
  term.coefficient = value[0].get<double>();
  for (size_t i = 1; i < value.size(); ++i) term.indices.push_back(whole(value[i], problem.features - 1, where));
  std::sort(term.indices.begin(), term.indices.end());
  problem.terms.push_back(std::move(term));
}

/// [output, path, [term, ...]]
void add_polynomial(const Json &value, const std::string &where, ContractionProblem &problem) {
  if (!value.is_array() || value.size() != 3 || !value[2].is_array()) fail(where + " must be [output, path, terms]");
  ContractionTerm term;
  term.output = whole(value[0], problem.outputs - 1, where);
  term.path = whole(value[1], problem.paths - 1, where);
  for (const Json &entry : value[2]) add_term(entry, where, term, problem);
}

void check_properties(const ContractionProblem &problem, const KernelProperties &p) {
  auto expect = [](bool equal, const char *key) {
    if (!equal) fail(std::string("disagrees with `kernel_prop` about ") + key);
  };
  expect(problem.features == p.l1_dim, "L1_dim");
  expect(problem.outputs == p.l3_dim, "L3_dim");
  expect(problem.paths == p.weight_numel, "weight_numel");
  const DType dtype = problem.double_precision ? DType::kFloat64 : DType::kFloat32;
  expect(p.irrep_dtype == dtype && p.weight_dtype == dtype, "the dtype");
  expect(p.idx_dtype == DType::kInt32, "idx_dtype");
}

/// What a monomial is multiplied by: scales of weights.
using Scales = std::map<int, double>;

}  // namespace

/// Monomials of one tree, in its order, and their coefficients by output.
struct ContractionTrees::Monomials {
  std::vector<std::vector<int>> indices;
  std::vector<std::map<int, Scales>> coefficients;

  /// Of the terms of output `only`, or of all if it is negative.
  Monomials(const ContractionProblem &problem, int only) {
    std::map<std::vector<int>, std::map<int, Scales>> sorted;
    for (const ContractionTerm &term : problem.terms)
      if (only < 0 || term.output == only) sorted[term.indices][term.output][term.path] += term.coefficient;
    for (auto &[monomial, by_output] : sorted) {
      indices.push_back(monomial);
      coefficients.push_back(std::move(by_output));
    }
  }
};

ContractionProblem parse_contraction(const Json &json, const KernelProperties &properties) {
  if (!json.is_object()) fail("must be an object");
  ContractionProblem problem;
  problem.features = member(json, "features", kMostFeatures);
  problem.outputs = member(json, "outputs", kMostFeatures);
  problem.paths = member(json, "paths", kMostPaths);
  const Json dtype = json.value("dtype", Json());
  if (dtype != "float32" && dtype != "float64") fail("`dtype` must be float32 or float64");
  problem.double_precision = dtype == "float64";
  const Json polynomials = json.value("polynomials", Json());
  if (!polynomials.is_array()) fail("`polynomials` must be a list");
  for (size_t i = 0; i < polynomials.size(); ++i)
    add_polynomial(polynomials[i], "polynomial " + std::to_string(i), problem);
  check_properties(problem, properties);
  return problem;
}

ContractionTrees::ContractionTrees(const ContractionProblem &problem, Order order)
    : features_(problem.features),
      outputs_(problem.outputs),
      paths_(problem.paths),
      double_precision_(problem.double_precision),
      backward_(order == Order::kBackward) {
  if (backward_) {
    add_tree(Monomials(problem, -1));
  } else {
    for (int output = 0; output < outputs_; ++output) add_tree(Monomials(problem, output));
  }
  if (!double_precision_) scales32_.assign(scales64_.begin(), scales64_.end());
}

void ContractionTrees::add_tree(const Monomials &monomials) { add_node(monomials, 0, monomials.indices.size(), 0, 0); }

/// The node of monomials [begin, end), which share their first `depth` features.
void ContractionTrees::add_node(const Monomials &monomials, size_t begin, size_t end, size_t depth, int variable) {
  const size_t place = nodes_.size();
  nodes_.push_back({variable, 0, 0, 0});
  if (begin < end && monomials.indices[begin].size() == depth) {
    nodes_[place].own = 1;
    add_monomial(monomials, begin++);
  }
  std::vector<std::pair<size_t, size_t>> inner;
  for (size_t first = begin; first < end;) {
    const int next = monomials.indices[first][depth];
    size_t last = first;
    while (last < end && monomials.indices[last][depth] == next) ++last;
    if (last == first + 1 && monomials.indices[first].size() == depth + 1) {
      ++nodes_[place].leaves;
      leaf_variables_.push_back(next);
      add_monomial(monomials, first);
    } else {
      inner.emplace_back(first, last);
    }
    first = last;
  }
  nodes_[place].inner = static_cast<int>(inner.size());
  for (const auto &[first, last] : inner) add_node(monomials, first, last, depth + 1, monomials.indices[first][depth]);
}

void ContractionTrees::add_monomial(const Monomials &monomials, size_t place) {
  const std::map<int, Scales> &by_output = monomials.coefficients[place];
  output_counts_.push_back(static_cast<int>(by_output.size()));
  for (const auto &[output, scales] : by_output) {
    outputs_of_.push_back(output);
    for (const auto &[path, scale] : scales) {
      scale_paths_.push_back(path);
      scales64_.push_back(scale);
    }
    coefficient_start_.push_back(static_cast<int>(scale_paths_.size()));
  }
}

ContractionProgram ContractionTrees::program() const {
  ContractionProgram p{};
  p.features = features_, p.outputs = outputs_, p.paths = paths_;
  p.coefficients = static_cast<int>(coefficient_start_.size()) - 1;
  p.nodes = nodes_.data();
  p.leaf_variables = leaf_variables_.data();
  p.output_counts = output_counts_.data();
  p.outputs_of = outputs_of_.data();
  p.coefficient_start = coefficient_start_.data();
  p.scale_paths = scale_paths_.data();
  p.scales = double_precision_ ? static_cast<const void *>(scales64_.data()) : scales32_.data();
  return p;
}

}  // namespace oeq::cpu
