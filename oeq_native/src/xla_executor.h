// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "backend.h"
#include "xla/ffi/api/ffi.h"

namespace oeq {

/// Runs work on the thread pool of XLA's CPU client. The caller works too, and waits only for work that has begun: a
/// task that the pool starts late (or never, when all its threads are waiting like this one) finds nothing left to do.
class XlaExecutor final : public Executor {
 public:
  explicit XlaExecutor(xla::ffi::ThreadPool &pool) : pool_(pool), threads_(std::max<int64_t>(1, pool.num_threads())) {}

  int64_t threads() const override { return threads_; }

  void run(int64_t count, void (*work)(void *, int64_t), void *context) override {
    const int64_t helpers = std::min(threads_, count) - 1;
    if (helpers <= 0) {
      for (int64_t item = 0; item < count; ++item) work(context, item);
      return;
    }
    auto batch = std::make_shared<Batch>(count, work, context);
    for (int64_t helper = 0; helper < helpers; ++helper) pool_.Schedule([batch] { batch->help(); });
    batch->help();
    batch->wait();
  }

 private:
  class Batch {
   public:
    Batch(int64_t count, void (*work)(void *, int64_t), void *context)
        : count_(count), work_(work), context_(context) {}

    /// Does what is left, one item after another.
    void help() {
      for (int64_t item = next_++; item < count_; item = next_++) {
        work_(context_, item);
        if (++done_ == count_) {
          const std::lock_guard lock(mutex_);
          all_done_.notify_one();
        }
      }
    }

    void wait() {
      std::unique_lock lock(mutex_);
      all_done_.wait(lock, [this] { return done_ == count_; });
    }

   private:
    const int64_t count_;
    void (*const work_)(void *, int64_t);
    void *const context_;
    std::atomic<int64_t> next_{0}, done_{0};
    std::mutex mutex_;
    std::condition_variable all_done_;
  };

  xla::ffi::ThreadPool &pool_;
  const int64_t threads_;
};

}  // namespace oeq
