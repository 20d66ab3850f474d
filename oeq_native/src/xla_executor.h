// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "backend.h"
#include "xla/ffi/api/c_api.h"

namespace oeq {

/// Runs work on the thread pool of XLA's CPU client. The caller works too, and waits only for work that has begun: a
/// task that the pool starts late (or never, when all its threads are waiting like this one) finds nothing left to do.
class XlaExecutor final : public Executor {
 public:
  explicit XlaExecutor(const XLA_FFI_CallFrame &frame) : api_(*frame.api), context_(frame.ctx) {}

  int64_t threads() const override {
    int64_t threads = 1;
    XLA_FFI_ThreadPool_NumThreads_Args args{};
    args.struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE;
    args.ctx = context_;
    args.num_threads = &threads;
    if (XLA_FFI_Error *error = api_.XLA_FFI_ThreadPool_NumThreads(&args)) destroy(error);  // no pool: the caller alone
    return std::max<int64_t>(1, threads);
  }

  void run(int64_t count, void (*work)(void *, int64_t), void *context) override {
    const int64_t helpers = std::min(threads(), count) - 1;
    if (helpers <= 0) {
      for (int64_t item = 0; item < count; ++item) work(context, item);
      return;
    }
    auto batch = std::make_shared<Batch>(count, work, context);
    for (int64_t helper = 0; helper < helpers; ++helper) schedule(batch);
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

  /// Asks XLA for a thread that helps; the batch lives until it has looked.
  void schedule(const std::shared_ptr<Batch> &batch) {
    auto shared = std::make_unique<std::shared_ptr<Batch>>(batch);
    XLA_FFI_ThreadPool_Schedule_Args args{};
    args.struct_size = XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE;
    args.ctx = context_;
    args.task = [](void *data) {
      const std::unique_ptr<std::shared_ptr<Batch>> owned(static_cast<std::shared_ptr<Batch> *>(data));
      (*owned)->help();
    };
    args.data = shared.get();
    if (XLA_FFI_Error *error = api_.XLA_FFI_ThreadPool_Schedule(&args)) {
      destroy(error);  // no pool: the caller does the work
    } else {
      shared.release();
    }
  }

  void destroy(XLA_FFI_Error *error) const {
    XLA_FFI_Error_Destroy_Args args{};
    args.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
    args.error = error;
    api_.XLA_FFI_Error_Destroy(&args);
  }

  const XLA_FFI_Api &api_;
  XLA_FFI_ExecutionContext *const context_;
};

}  // namespace oeq
