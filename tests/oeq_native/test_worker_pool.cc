// SPDX-License-Identifier: BSD-3-Clause
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"
#include "worker_pool.h"

using oeq::StopFlag;
using oeq::WorkerPool;

namespace {

/// Opens once; who passes waits until then.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void await_waiting(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int waiting_ = 0;
};

WorkerPool::TicketPointer submitted(WorkerPool &pool, WorkerPool::Job job) {
  auto ticket = WorkerPool::prepare(std::move(job));
  pool.submit(ticket);
  return ticket;
}

}  // namespace

TEST(runs_every_job_once) {
  WorkerPool pool(3, 1000);
  std::atomic<int> count{0};
  std::vector<WorkerPool::TicketPointer> tickets;
  for (int i = 0; i < 200; ++i) tickets.push_back(submitted(pool, [&](const StopFlag &) { ++count; }));
  for (const auto &ticket : tickets) pool.wait(ticket);
  CHECK(count == 200);
}

TEST(runs_as_many_at_once_as_it_has_threads_and_no_more) {
  WorkerPool pool(3, 1000);
  Gate gate;
  std::atomic<int> running{0}, most{0};
  std::vector<WorkerPool::TicketPointer> tickets;
  for (int i = 0; i < 9; ++i) {
    tickets.push_back(submitted(pool, [&](const StopFlag &) {
      const int now = ++running;
      for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
      }
      gate.pass();
      --running;
    }));
  }
  gate.await_waiting(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));  // a fourth would show up now
  CHECK(most == 3);
  gate.open();
  for (const auto &ticket : tickets) pool.wait(ticket);
  CHECK(most == 3);
}

TEST(a_full_queue_makes_the_caller_work) {
  WorkerPool pool(1, 2);
  Gate gate;
  const auto blocker = submitted(pool, [&](const StopFlag &) { gate.pass(); });
  gate.await_waiting(1);
  std::thread::id ran_on[3];
  std::vector<WorkerPool::TicketPointer> tickets;
  for (std::thread::id &id : ran_on) {
    tickets.push_back(submitted(pool, [&id](const StopFlag &) { id = std::this_thread::get_id(); }));
  }
  CHECK(ran_on[0] == std::thread::id());           // queued
  CHECK(ran_on[1] == std::thread::id());           // queued
  CHECK(ran_on[2] == std::this_thread::get_id());  // no room
  gate.open();
  for (const auto &ticket : tickets) pool.wait(ticket);
  CHECK(ran_on[0] != std::this_thread::get_id());
  CHECK(ran_on[0] == ran_on[1]);
  pool.wait(blocker);
}

TEST(what_is_waited_for_goes_first) {
  WorkerPool pool(1, 10);
  Gate gate;
  submitted(pool, [&](const StopFlag &) { gate.pass(); });
  gate.await_waiting(1);
  std::vector<int> order;  // written by the one worker only
  std::vector<WorkerPool::TicketPointer> tickets;
  for (int i = 0; i < 3; ++i) {
    tickets.push_back(submitted(pool, [&order, i](const StopFlag &) { order.push_back(i); }));
  }
  std::thread waiter([&] { pool.wait(tickets[2]); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  gate.open();
  waiter.join();
  for (const auto &ticket : tickets) pool.wait(ticket);
  CHECK(order == std::vector<int>({2, 0, 1}));
}

TEST(long_jobs_go_before_short_ones_and_equal_ones_in_turn) {
  WorkerPool pool(1, 10);
  Gate gate;
  submitted(pool, [&](const StopFlag &) { gate.pass(); });
  gate.await_waiting(1);
  std::vector<int> order;  // written by the one worker only
  std::atomic<int> done{0};
  const int64_t costs[] = {5, 1, 7, 5, 7};
  for (int i = 0; i < 5; ++i) {
    pool.submit(WorkerPool::prepare([&, i](const StopFlag &) { order.push_back(i), ++done; }, costs[i]));
  }
  gate.open();
  while (done < 5) std::this_thread::yield();  // waiting for a ticket would put it first
  CHECK(order == std::vector<int>({2, 4, 0, 3, 1}));
}

TEST(what_is_waited_for_stays_first) {
  WorkerPool pool(1, 10);
  Gate gate;
  submitted(pool, [&](const StopFlag &) { gate.pass(); });
  gate.await_waiting(1);
  std::vector<int> order;
  const auto short_job = WorkerPool::prepare([&](const StopFlag &) { order.push_back(0); }, 1);
  const auto long_job = WorkerPool::prepare([&](const StopFlag &) { order.push_back(1); }, 100);
  pool.submit(short_job);
  std::thread waiter([&] { pool.wait(short_job); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  pool.submit(long_job);
  gate.open();
  waiter.join();
  pool.wait(long_job);
  CHECK(order == std::vector<int>({0, 1}));
}

TEST(a_worker_may_wait_for_jobs_it_submits) {
  WorkerPool pool(1, 10);
  int depth_reached = 0;
  std::function<void(int)> nest = [&](int depth) {
    depth_reached = depth;
    if (depth == 5) return;
    pool.wait(submitted(pool, [&, depth](const StopFlag &) { nest(depth + 1); }));
  };
  pool.wait(submitted(pool, [&](const StopFlag &) { nest(0); }));
  CHECK(depth_reached == 5);
}

TEST(a_worker_may_wait_for_a_job_that_is_submitted_later) {
  WorkerPool pool(1, 10);
  Gate gate;
  bool ran = false;
  const auto late = WorkerPool::prepare([&](const StopFlag &) { ran = true; });
  const auto early = submitted(pool, [&](const StopFlag &) {
    gate.pass();
    pool.wait(late);
  });
  gate.await_waiting(1);
  gate.open();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  pool.submit(late);
  pool.wait(early);
  CHECK(ran);
}

TEST(a_job_cannot_wait_for_itself) {
  WorkerPool pool(1, 10);
  WorkerPool::TicketPointer self;
  std::string message;
  self = WorkerPool::prepare([&](const StopFlag &) {
    try {
      pool.wait(self);
    } catch (const oeq::KernelError &error) {
      message = error.what();
    }
  });
  pool.submit(self);
  pool.wait(self);
  CHECK_CONTAINS(message, "waits for itself");
}

TEST(stopping_finishes_running_jobs_and_flags_queued_ones) {
  std::atomic<int> flagged{0}, finished{0};
  Gate gate;
  WorkerPool pool(2, 100);
  for (int i = 0; i < 2; ++i) {
    submitted(pool, [&](const StopFlag &stop) {
      gate.pass();
      while (!stop) std::this_thread::yield();  // a compilation that looks at the flag
      ++finished;
    });
  }
  gate.await_waiting(2);
  std::vector<WorkerPool::TicketPointer> queued;
  for (int i = 0; i < 20; ++i) {
    queued.push_back(submitted(pool, [&](const StopFlag &stop) { flagged += stop ? 1 : 0; }));
  }
  std::thread waiter([&] { pool.wait(queued.back()); });  // must not hang
  gate.open();
  pool.stop();
  waiter.join();
  CHECK(finished == 2);
  CHECK(flagged == 20);
  const auto after = submitted(pool, [&](const StopFlag &stop) { flagged += stop ? 1 : 0; });
  pool.wait(after);
  CHECK(flagged == 21);
  pool.stop();
}

TEST(many_threads_submit_and_wait) {
  WorkerPool pool(2, 3);
  std::atomic<int> count{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) pool.wait(submitted(pool, [&](const StopFlag &) { ++count; }));
    });
  }
  for (std::thread &thread : threads) thread.join();
  CHECK(count == 400);
}

#if !defined(__SANITIZE_THREAD__)  // ThreadSanitizer does not follow threads across fork
TEST(a_forked_child_is_refused_plainly_and_can_end) {
  WorkerPool pool(1, 10);
  pool.wait(submitted(pool, [](const StopFlag &) {}));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);  // a hang must not outlive the test
    int status = 1;
    try {
      pool.submit(WorkerPool::prepare([](const StopFlag &) {}));
    } catch (const oeq::KernelError &error) {
      status = std::strstr(error.what(), "forked") != nullptr ? 0 : 2;
    }
    pool.stop();
    ::_exit(status);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(a_pool_that_has_not_started_works_in_a_forked_child) {
  WorkerPool pool(1, 10);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    bool ran = false;
    pool.wait(submitted(pool, [&](const StopFlag &) { ran = true; }));
    pool.stop();
    ::_exit(ran ? 0 : 1);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif
