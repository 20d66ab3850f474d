// SPDX-License-Identifier: BSD-3-Clause
//
// A bounded pool of threads that compile kernels.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backend.h"

namespace oeq {

class WorkerPool {
 public:
  /// One submitted job, to wait for.
  class Ticket;
  using TicketPointer = std::shared_ptr<Ticket>;

  /// A job is called exactly once, also when the pool stops before its turn: then with the flag set, and it should
  /// report failure to whoever waits and return at once. A job must not throw.
  using Job = std::function<void(const StopFlag &stop)>;

  /// Threads start when there is work for them. At most `queue_limit` jobs wait for a thread.
  WorkerPool(int threads, size_t queue_limit);

  /// Stops: see stop().
  ~WorkerPool();

  WorkerPool(const WorkerPool &) = delete;
  WorkerPool &operator=(const WorkerPool &) = delete;

  /// A job that may be waited for at once and must be submitted soon. `cost` is a guess of how long it takes, in any
  /// unit.
  static TicketPointer prepare(Job job, int64_t cost = 0);

  /// Queues a prepared job: long ones before short ones, so that none is left to run alone at the end. Where the queue
  /// is full the calling thread runs it before returning, so memory stays bounded and nothing is refused. Throws
  /// KernelError in a process forked after threads were started.
  void submit(const TicketPointer &ticket);

  /// Returns when the job has been run. A job that still waits for a thread goes to the queue's front; a worker that
  /// waits for a queued job runs it itself, so jobs may wait for jobs even in a pool of one thread. Throws KernelError
  /// in a forked process, and where a job waits for itself.
  void wait(const TicketPointer &ticket);

  /// Throws KernelError in a process forked from one whose pool had started threads: they do not exist here.
  void refuse_in_fork() const;

  /// Sets the stop flag, hands queued jobs that flag, and returns when no job runs any more. May be called twice.
  void stop();

  int threads() const { return most_threads_; }

 private:
  void work();
  void run(const TicketPointer &ticket);
  void start_thread_if_needed();
  void enqueue(const TicketPointer &ticket);

  const int most_threads_;
  const size_t queue_limit_;
  StopFlag stop_{false};
  std::atomic<pid_t> owner_{0};  // the process that started the threads; 0: none yet

  std::mutex mutex_;
  std::condition_variable work_available_;
  std::condition_variable ticket_changed_;
  std::deque<TicketPointer> queue_;
  std::vector<std::thread> workers_;
  size_t idle_ = 0;
};

}  // namespace oeq
