// SPDX-License-Identifier: BSD-3-Clause
//
// A kernel of the CPU backend: prepares Tasks and runs their phases.
#pragma once

#include <atomic>
#include <memory>

#include "generator.h"
#include "generic.h"
#include "host_compiler.h"
#include "problem.h"
#include "task.h"

namespace oeq::cpu {

/// Memory aligned to cache lines.
class AlignedMemory {
 public:
  explicit AlignedMemory(size_t bytes);
  ~AlignedMemory();
  AlignedMemory(const AlignedMemory &) = delete;
  AlignedMemory &operator=(const AlignedMemory &) = delete;

  char *data() const { return data_; }
  size_t size() const { return size_; }

 private:
  char *data_;
  size_t size_;
};

class HostKernel final : public Kernel {
 public:
  /// Without a library: the generic kernel.
  HostKernel(const Problem &problem, Family family, Order order, std::unique_ptr<SharedLibrary> library);
  ~HostKernel() override;

  void run(const OeqCall &call, const Launch &launch) const override;

 private:
  struct Memory;

  Memory plan_memory(const OeqCall &call) const;
  Task make_task(const OeqCall &call, const Memory &memory, char *base) const;
  void group(const OeqCall &call, const Memory &memory, char *base, Task &task) const;
  void run_phase(Phase phase, int64_t items, const Task &task, Executor *executor) const;
  int64_t item_count(const OeqCall &call) const;

  bool needs_packing() const;
  bool has_partials() const { return problem_.shared_weights && order_ != Order::kForward; }
  bool convolves() const { return family_ == Family::kConvolution; }

  const Problem problem_;
  const Family family_;
  const Order order_;
  const KernelLayout layout_;
  const std::unique_ptr<SharedLibrary> library_;
  std::unique_ptr<GenericTables> tables_;
  KernelFunction *function_ = nullptr;
  int64_t work_bytes_ = 0;
  mutable std::atomic<AlignedMemory *> spare_{nullptr};  // memory of the last call that ended, for the next
};

}  // namespace oeq::cpu
