// SPDX-License-Identifier: BSD-3-Clause
//
// The kernels of a process: each payload is kept once, each kernel compiled once, whatever the number of call sites.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "backend.h"
#include "image_cache.h"
#include "oeq_native.h"
#include "settings.h"
#include "worker_pool.h"

namespace oeq {

/// OeqStats as it is counted.
struct Counters {
  std::atomic<int64_t> records{0}, requests{0}, compilations{0}, memory_hits{0}, disk_hits{0}, failures{0}, waits{0};
  std::atomic<int64_t> compile_nanoseconds{0}, wait_nanoseconds{0};
};

/// Copies as much as to.struct_size allows.
void copy_stats(OeqStats from, OeqStats &to);

/// One kernel on its way: in work, ready, or failed.
class KernelSlot {
 public:
  KernelSlot(const Backend &backend, Unit unit, std::string architecture, int32_t device)
      : backend(backend), unit(unit), architecture(std::move(architecture)), device(device) {}

  /// The kernel if it is ready, else null. Lock-free.
  const Kernel *ready() const { return kernel_.load(std::memory_order_acquire); }

  const Backend &backend;
  const Unit unit;
  const std::string architecture;
  const int32_t device;

 private:
  friend class KernelStore;

  /// One try at compiling; who waits for it learns how it ended.
  struct Attempt {
    WorkerPool::TicketPointer ticket;
    std::string error;  // written by the job, read after it is done; "" for success
    std::atomic<bool> failed{false};
  };

  std::mutex mutex_;
  std::shared_ptr<Attempt> attempt_;
  std::unique_ptr<const Kernel> owned_;
  std::atomic<const Kernel *> kernel_{nullptr};
};

/// One payload and the kernels made of it.
class KernelRecord {
 public:
  explicit KernelRecord(Payload payload) : payload(std::move(payload)) {}

  const Payload payload;

 private:
  friend class KernelStore;
  using SlotKey = std::tuple<Platform, Order, std::string>;

  std::mutex mutex_;
  std::map<SlotKey, std::unique_ptr<KernelSlot>> slots_;
};

class KernelStore {
 public:
  using BackendFactory = std::function<std::unique_ptr<Backend>(Platform)>;

  KernelStore(const Settings &settings, BackendFactory make_backend);

  /// The record of this family and payload: `hash` only finds candidates, equality of the texts decides. The record
  /// lives as long as the store. Throws KernelError for a payload that is no good.
  KernelRecord &intern(Family family, int64_t hash, std::string_view payload);

  /// The kernel of a record for a device; compilation starts unless an equal one is in work or ready. One that failed
  /// is tried again. Throws KernelError.
  KernelSlot &request(Platform platform, KernelRecord &record, Order order, int32_t device);

  /// Waits for a requested kernel. Throws KernelError with the compiler's log where the try failed that was last begun.
  const Kernel &wait(KernelSlot &slot);

  /// Kernels in work are finished, queued ones dropped (who waits for them gets an error). For the end of the process.
  void stop() { pool_.stop(); }

  void fill(OeqStats &stats) const;

 private:
  const Backend &backend(Platform platform);
  KernelSlot &slot(const Backend &backend, Platform platform, KernelRecord &record, Order order, int32_t device);
  void build(KernelSlot &slot, KernelSlot::Attempt &attempt, const StopFlag &stop);
  std::unique_ptr<const Kernel> make_kernel(const KernelSlot &slot, const StopFlag &stop);
  std::shared_ptr<const Image> compile(const KernelSlot &slot, const std::string &key, const StopFlag &stop);
  void notice(const KernelSlot &slot, const std::string &what) const;

  const bool verbose_;
  const BackendFactory make_backend_;
  Counters counters_;
  ImageCache cache_;

  std::mutex backends_mutex_;
  std::map<Platform, std::unique_ptr<Backend>> backends_;

  std::mutex records_mutex_;
  std::unordered_map<int64_t, std::vector<std::unique_ptr<KernelRecord>>> records_;

  WorkerPool pool_;  // last: stops before what its jobs use goes
};

/// The store of this process, made at first use with the environment's settings and never destroyed. Throws
/// KernelError.
KernelStore &process_store();

/// Makes sure that no worker runs when the process's libraries are taken down. To be called again after loading a
/// library that workers use, because exit handlers run in reverse order.
void stop_workers_at_exit();

}  // namespace oeq
