// SPDX-License-Identifier: BSD-3-Clause
#include "contraction.h"

#include <algorithm>
#include <string>
#include <vector>

#include "host_kernel.h"

namespace oeq::cpu {
namespace {

constexpr int64_t kRowsPerItem = 128;  // enough that making coefficients, as long as a row or two, hardly counts

/// Rows of one element.
struct Chunk {
  int element;
  int64_t begin, end;  // in the order of the elements
};

/// Rows by element, in their order.
struct Grouped {
  std::vector<int> rows;
  std::vector<Chunk> chunks;
};

Grouped group_by_element(const int32_t *species, int64_t rows, int64_t elements) {
  std::vector<int64_t> start(static_cast<size_t>(elements) + 1);
  for (int64_t row = 0; row < rows; ++row) {
    if (species[row] < 0 || species[row] >= elements)
      throw KernelError("row " + std::to_string(row) + " has element " + std::to_string(species[row]) +
                        ", but there are weights of " + std::to_string(elements));
    ++start[static_cast<size_t>(species[row]) + 1];
  }
  for (size_t element = 0; element < static_cast<size_t>(elements); ++element) start[element + 1] += start[element];
  Grouped grouped;
  for (int element = 0; element < elements; ++element) {
    const int64_t end = start[static_cast<size_t>(element) + 1];
    for (int64_t begin = start[static_cast<size_t>(element)]; begin < end; begin += kRowsPerItem)
      grouped.chunks.push_back({element, begin, std::min(begin + kRowsPerItem, end)});
  }
  grouped.rows.resize(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row)
    grouped.rows[static_cast<size_t>(start[static_cast<size_t>(species[row])]++)] = static_cast<int>(row);
  return grouped;
}

/// Bytes that a loop needs as `work`.
int64_t contraction_work(const ContractionProgram &p, const ContractionLoops &loops) {
  const int64_t tiles = 2 * int64_t{p.features} + p.outputs;
  return (int64_t{p.coefficients} + p.paths + tiles * loops.rows_together) * loops.vector_bytes;
}

}  // namespace

std::vector<const ContractionLoops *> contraction_loops() {
  std::vector<const ContractionLoops *> loops;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd"))
    loops.push_back(&kAvx512Loops);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) loops.push_back(&kAvx2Loops);
#endif
  loops.push_back(&kBaselineLoops);
  return loops;
}

ContractionKernel::ContractionKernel(const ContractionProblem &problem, Order order, const ContractionLoops &loops)
    : trees_(problem, order),
      program_(trees_.program()),
      loops_(loops),
      backward_(order == Order::kBackward),
      size_(problem.double_precision ? 8 : 4) {
  if (order == Order::kDoubleBackward) throw KernelError("the symmetric contraction has no double backward");
  if (problem.double_precision) {
    loop_ = backward_ ? loops_.backward64 : loops_.forward64;
  } else {
    loop_ = backward_ ? loops_.backward32 : loops_.forward32;
  }
}

void ContractionKernel::run(const OeqCall &call, const Launch &launch) const {
  const int64_t lanes = loops_.vector_bytes / size_;
  const Grouped grouped = group_by_element(static_cast<const int32_t *>(call.receivers), call.products, call.nodes);
  struct Context {
    const ContractionKernel &kernel;
    const OeqCall &call;
    const Grouped &grouped;
    const int64_t blocks, lanes, work;
  } context{*this, call, grouped, (call.channels + lanes - 1) / lanes, lanes, contraction_work(program_, loops_)};
  auto piece = [](void *data, int64_t item) {
    const auto &[kernel, own_call, groups, blocks, width, work] = *static_cast<const Context *>(data);
    const Chunk &chunk = groups.chunks[static_cast<size_t>(item / blocks)];
    ContractionTask task{};
    task.program = &kernel.program_;
    task.x = own_call.L1;
    task.weights = static_cast<const char *>(own_call.W) +
                   chunk.element * kernel.program_.paths * own_call.channels * kernel.size_;
    task.z = own_call.L3_grad;
    task.result = kernel.backward_ ? own_call.L1_grad : own_call.L3;
    task.rows = groups.rows.data() + chunk.begin;
    task.count = chunk.end - chunk.begin;
    task.channels = own_call.channels;
    task.first_channel = item % blocks * width;
    task.work = thread_work(work);
    kernel.loop_(task);
  };
  const int64_t items = static_cast<int64_t>(grouped.chunks.size()) * context.blocks;
  if (items <= 1 || !launch.executor) {
    for (int64_t item = 0; item < items; ++item) piece(&context, item);
    return;
  }
  launch.executor->run(items, piece, &context);
}

}  // namespace oeq::cpu
