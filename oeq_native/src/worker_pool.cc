// SPDX-License-Identifier: BSD-3-Clause
#include "worker_pool.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <system_error>
#include <utility>

namespace oeq {

class WorkerPool::Ticket {
 public:
  Ticket(Job job, int64_t cost) : job(std::move(job)), cost(cost) {}

  enum class State { kPrepared, kQueued, kRunning, kDone };

  // What changes is guarded by the pool's mutex, but for `job`, which belongs to whoever set kRunning.
  Job job;
  int64_t cost;
  State state = State::kPrepared;
  std::thread::id runner;
};

namespace {

// The pool whose worker this thread is.
thread_local const WorkerPool *worker_of = nullptr;

/// Blocks every signal while it lives, so that threads started meanwhile leave signals to the host program's threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

WorkerPool::WorkerPool(int threads, size_t queue_limit) : most_threads_(threads), queue_limit_(queue_limit) {}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::refuse_in_fork() const {
  // Read before any lock: in a forked child the mutex may be held by a thread that no longer exists.
  if (owner_ != 0 && owner_ != getpid()) {
    throw KernelError(
        "oeq_native cannot compile kernels in a process forked from one that has begun to: start a new process instead "
        "(multiprocessing: start method \"spawn\")");
  }
}

WorkerPool::TicketPointer WorkerPool::prepare(Job job, int64_t cost) {
  return std::make_shared<Ticket>(std::move(job), cost);
}

void WorkerPool::submit(const TicketPointer &ticket) {
  refuse_in_fork();
  std::unique_lock lock(mutex_);
  if (!stop_ && queue_.size() < queue_limit_) {
    start_thread_if_needed();
    if (!workers_.empty()) {
      enqueue(ticket);
      ticket->state = Ticket::State::kQueued;
      work_available_.notify_one();
      ticket_changed_.notify_all();
      return;
    }
    // The system gave us no thread at all.
  }
  ticket->state = Ticket::State::kRunning;
  lock.unlock();
  run(ticket);
}

/// Call with the mutex held.
void WorkerPool::enqueue(const TicketPointer &ticket) {
  const auto shorter = [&](const TicketPointer &other) { return other->cost < ticket->cost; };
  queue_.insert(std::find_if(queue_.begin(), queue_.end(), shorter), ticket);
}

/// Call with the mutex held, before a job is queued.
void WorkerPool::start_thread_if_needed() {
  if (idle_ > queue_.size() || workers_.size() >= static_cast<size_t>(most_threads_)) return;
  owner_ = getpid();
  SignalsBlocked blocked;
  try {
    workers_.emplace_back([this] { work(); });
  } catch (const std::system_error &) {
    // No more threads to be had: the ones there are will do.
  }
}

void WorkerPool::wait(const TicketPointer &ticket) {
  refuse_in_fork();
  std::unique_lock lock(mutex_);
  bool promoted = false;
  while (ticket->state != Ticket::State::kDone) {
    if (ticket->state == Ticket::State::kQueued && !promoted) {
      queue_.erase(std::find(queue_.begin(), queue_.end(), ticket));
      if (worker_of == this) {
        ticket->state = Ticket::State::kRunning;
        lock.unlock();
        run(ticket);
        return;
      }
      ticket->cost = std::numeric_limits<int64_t>::max();
      enqueue(ticket);
      promoted = true;
    }
    if (ticket->state == Ticket::State::kRunning && ticket->runner == std::this_thread::get_id()) {
      throw KernelError("a job of oeq_native's worker pool waits for itself");
    }
    ticket_changed_.wait(lock);
  }
}

/// Runs a job that this thread has set to kRunning.
void WorkerPool::run(const TicketPointer &ticket) {
  {
    const std::lock_guard lock(mutex_);
    ticket->runner = std::this_thread::get_id();
  }
  ticket->job(stop_);
  ticket->job = nullptr;  // frees what the job holds before waiters go on
  {
    const std::lock_guard lock(mutex_);
    ticket->state = Ticket::State::kDone;
  }
  ticket_changed_.notify_all();
}

void WorkerPool::work() {
  worker_of = this;
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    work_available_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    --idle_;
    if (queue_.empty()) return;  // stopping, and nothing is left
    const TicketPointer ticket = queue_.front();
    queue_.pop_front();
    ticket->state = Ticket::State::kRunning;
    lock.unlock();
    run(ticket);
    lock.lock();
  }
}

void WorkerPool::stop() {
  if (owner_ != 0 && owner_ != getpid()) {
    for (std::thread &worker : workers_) worker.detach();  // they live in the parent only
    workers_.clear();
    return;
  }
  std::vector<std::thread> workers;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    workers.swap(workers_);
  }
  work_available_.notify_all();
  for (std::thread &worker : workers) {
    if (worker.get_id() == std::this_thread::get_id()) {
      worker.detach();  // a job that ends the process
    } else {
      worker.join();
    }
  }
}

}  // namespace oeq
