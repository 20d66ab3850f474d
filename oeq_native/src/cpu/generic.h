// SPDX-License-Identifier: BSD-3-Clause
//
// The kernel for machines without a compiler: any problem, couplings in tables that it reads at run time. Slow and
// simple; takes the same Tasks as generated kernels and the operands' own layout.
#pragma once

#include <cstdint>
#include <vector>

#include "problem.h"
#include "task.h"

namespace oeq::cpu {

/// One non-zero coupling, times the path's weight.
struct TableEntry {
  int i, j, k;
  double value;
};

struct GenericTables {
  Problem problem;
  Family family = Family::kTensorProduct;
  Order order = Order::kForward;
  std::vector<std::vector<TableEntry>> couplings;  // by path
  std::vector<int64_t> weight_positions;           // of weight (path, u, v, w), paths one after the other
};

GenericTables make_generic_tables(const Problem &problem, Family family, Order order);

/// A KernelFunction; `task->tables` is a GenericTables.
void run_generic(const Task *task);

/// Numbers that each thread needs as `work`.
int64_t generic_work(const Problem &problem);

}  // namespace oeq::cpu
