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

/// This thread's own memory for kernels, aligned to cache lines; grows, ends with the thread. Throws KernelError.
void *thread_work(int64_t bytes);

/// Memory of the last call that ended, for the next.
class SpareMemory {
 public:
  SpareMemory() = default;
  ~SpareMemory() { delete spare_.load(); }
  SpareMemory(const SpareMemory &) = delete;
  SpareMemory &operator=(const SpareMemory &) = delete;

  std::unique_ptr<AlignedMemory> take(size_t bytes);
  void give_back(std::unique_ptr<AlignedMemory> memory) { delete spare_.exchange(memory.release()); }

 private:
  std::atomic<AlignedMemory *> spare_{nullptr};
};

class HostKernel final : public Kernel {
 public:
  /// Without a library: the generic kernel.
  HostKernel(const Problem &problem, Family family, Order order, std::unique_ptr<SharedLibrary> library);

  void run(const OeqCall &call, const Launch &launch) const override;

 private:
  struct Memory;

  Memory plan_memory(const OeqCall &call) const;
  Task make_task(const OeqCall &call, const Memory &memory, char *base) const;
  void group(const OeqCall &call, const Memory &memory, char *base, Task &task) const;
  bool make_tiles(const OeqCall &call, const Memory &memory, char *base, Task &task) const;
  void run_phase(Phase phase, int64_t items, const Task &task, Executor *executor) const;
  int64_t item_count(const OeqCall &call) const;
  int64_t most_partials() const;
  int64_t most_tile_rows(const OeqCall &call) const { return call.products / 2; }

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
  mutable SpareMemory spare_, spare_tile_;
};

}  // namespace oeq::cpu
