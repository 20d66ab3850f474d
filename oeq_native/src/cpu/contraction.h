// SPDX-License-Identifier: BSD-3-Clause
//
// MACE's symmetric contraction (Batatia et al., NeurIPS 2022, eq. 10): polynomials of the features of one channel of
// one atom, with weights of its element. The polynomials are tables, read by loops that the library holds for each
// vector unit; nothing is compiled at run time.
#pragma once

#include <vector>

#include "contraction_problem.h"

namespace oeq::cpu {

/// The loops that this CPU can run, the fastest first.
std::vector<const ContractionLoops *> contraction_loops();

class ContractionKernel final : public Kernel {
 public:
  ContractionKernel(const ContractionProblem &problem, Order order,
                    const ContractionLoops &loops = *contraction_loops().front());

  /// Throws KernelError where an atom's element is none of the weights'.
  void run(const OeqCall &call, const Launch &launch) const override;

 private:
  const ContractionTrees trees_;
  const ContractionProgram program_;
  const ContractionLoops &loops_;
  const bool backward_;
  const int64_t size_;  // bytes of a number
  ContractionLoop *loop_;
};

}  // namespace oeq::cpu
