// SPDX-License-Identifier: BSD-3-Clause
//
// Work items on a stand-in for XLA's thread pool, which may also run tasks late or not at all.
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"
#include "xla_executor.h"

namespace {

/// What a stand-in pool does with tasks.
struct Pool {
  enum class Mode { kThreads, kLater, kRefuse } mode = Mode::kThreads;
  int64_t threads = 4;
  std::vector<std::thread> running;
  std::vector<std::function<void()>> later;
  int errors_alive = 0;
} pool;

XLA_FFI_Error *schedule(XLA_FFI_ThreadPool_Schedule_Args *args) {
  auto *task = args->task;
  void *data = args->data;
  switch (pool.mode) {
    case Pool::Mode::kThreads:
      pool.running.emplace_back([task, data] { task(data); });
      return nullptr;
    case Pool::Mode::kLater:
      pool.later.push_back([task, data] { task(data); });
      return nullptr;
    case Pool::Mode::kRefuse:
      break;
  }
  ++pool.errors_alive;
  static int error;
  return reinterpret_cast<XLA_FFI_Error *>(&error);
}

XLA_FFI_Error *num_threads(XLA_FFI_ThreadPool_NumThreads_Args *args) {
  *args->num_threads = pool.threads;
  return nullptr;
}

void destroy_error(XLA_FFI_Error_Destroy_Args *) { --pool.errors_alive; }

/// Runs `count` items in a pool of this mode; checks that each was run once.
void run_items(Pool::Mode mode, int64_t count) {
  pool = {};
  pool.mode = mode;
  XLA_FFI_Api api{};
  api.XLA_FFI_ThreadPool_Schedule = schedule;
  api.XLA_FFI_ThreadPool_NumThreads = num_threads;
  api.XLA_FFI_Error_Destroy = destroy_error;
  XLA_FFI_CallFrame frame{};
  frame.api = &api;

  std::vector<int> runs(static_cast<size_t>(count), 0);  // not atomic: ThreadSanitizer sees whether the end is ordered
  oeq::XlaExecutor executor(frame);
  executor.run(
      count,
      [](void *context, int64_t item) { ++(*static_cast<std::vector<int> *>(context))[static_cast<size_t>(item)]; },
      &runs);
  for (const int n : runs) CHECK(n == 1);
  for (std::thread &thread : pool.running) thread.join();
  for (const auto &task : pool.later) task();  // finds nothing left, touches nothing of the call
  for (const int n : runs) CHECK(n == 1);
  CHECK(pool.errors_alive == 0);
}

}  // namespace

TEST(items_run_once_each_and_are_done_at_the_end) {
  for (const int64_t count : {0, 1, 2, 3, 5, 1000}) {
    for (int repeat = 0; repeat < 20; ++repeat) run_items(Pool::Mode::kThreads, count);
  }
}

TEST(a_pool_that_runs_tasks_too_late_does_not_hang_the_call) {
  for (const int64_t count : {1, 2, 7}) run_items(Pool::Mode::kLater, count);
}

TEST(a_pool_that_takes_no_tasks_leaves_the_work_to_the_caller) {
  for (const int64_t count : {1, 2, 7}) run_items(Pool::Mode::kRefuse, count);
}
