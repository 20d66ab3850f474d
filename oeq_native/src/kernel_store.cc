// SPDX-License-Identifier: BSD-3-Clause
#include "kernel_store.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "payload.h"

namespace oeq {
namespace {

class Stopwatch {
 public:
  int64_t nanoseconds() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

KernelRecord *find_record(const std::vector<std::unique_ptr<KernelRecord>> &bucket, Family family,
                          std::string_view payload) {
  const auto found = std::find_if(bucket.begin(), bucket.end(), [&](const auto &record) {
    return record->payload.family == family && record->payload.text == payload;
  });
  return found == bucket.end() ? nullptr : found->get();
}

/// Grows as the time that compilation takes: with the source or the number of paths, and with the derivative's order.
int64_t likely_cost(const Unit &unit) {
  return static_cast<int64_t>(unit.payload->text.size()) * (1 + static_cast<int64_t>(unit.order));
}

}  // namespace

KernelStore::KernelStore(const Settings &settings, BackendFactory make_backend)
    : verbose_(settings.verbose),
      make_backend_(std::move(make_backend)),
      cache_(settings.cache_directory),
      pool_(settings.threads, settings.queue_limit) {}

KernelRecord &KernelStore::intern(Family family, int64_t hash, std::string_view payload) {
  pool_.refuse_in_fork();  // before any lock
  {
    const std::lock_guard lock(records_mutex_);
    if (KernelRecord *record = find_record(records_[hash], family, payload)) return *record;
  }
  auto fresh = std::make_unique<KernelRecord>(parse_payload(family, payload));  // milliseconds: not under the lock
  const std::lock_guard lock(records_mutex_);
  auto &bucket = records_[hash];
  if (KernelRecord *record = find_record(bucket, family, payload)) return *record;
  ++counters_.records;
  return *bucket.emplace_back(std::move(fresh));
}

const Backend &KernelStore::backend(Platform platform) {
  const std::lock_guard lock(backends_mutex_);
  std::unique_ptr<Backend> &backend = backends_[platform];
  if (!backend) backend = make_backend_(platform);
  return *backend;
}

KernelSlot &KernelStore::slot(const Backend &backend, Platform platform, KernelRecord &record, Order order,
                              int32_t device) {
  if (backend.one_image_for_all_orders()) order = Order::kForward;
  std::string architecture = backend.architecture(device);
  const std::lock_guard lock(record.mutex_);
  std::unique_ptr<KernelSlot> &slot = record.slots_[{platform, order, architecture}];
  if (!slot) {
    slot = std::make_unique<KernelSlot>(backend, Unit{&record.payload, order}, std::move(architecture), device);
  }
  return *slot;
}

KernelSlot &KernelStore::request(Platform platform, KernelRecord &record, Order order, int32_t device) {
  pool_.refuse_in_fork();
  ++counters_.requests;
  KernelSlot &slot = this->slot(backend(platform), platform, record, order, device);
  auto attempt = std::make_shared<KernelSlot::Attempt>();
  attempt->ticket =
      WorkerPool::prepare([this, &slot, attempt = attempt.get()](const StopFlag &stop) { build(slot, *attempt, stop); },
                          likely_cost(slot.unit));
  {
    const std::lock_guard lock(slot.mutex_);
    if (slot.ready() != nullptr) return slot;
    if (slot.attempt_ && !slot.attempt_->failed) return slot;
    slot.attempt_ = attempt;
  }
  pool_.submit(attempt->ticket);
  return slot;
}

const Kernel &KernelStore::wait(KernelSlot &slot) {
  if (const Kernel *kernel = slot.ready()) return *kernel;
  pool_.refuse_in_fork();
  const Stopwatch stopwatch;
  std::shared_ptr<KernelSlot::Attempt> attempt;
  {
    const std::lock_guard lock(slot.mutex_);
    attempt = slot.attempt_;
  }
  pool_.wait(attempt->ticket);
  ++counters_.waits;
  counters_.wait_nanoseconds += stopwatch.nanoseconds();
  if (attempt->failed) throw KernelError(attempt->error);
  return *slot.ready();
}

/// The job of an attempt.
void KernelStore::build(KernelSlot &slot, KernelSlot::Attempt &attempt, const StopFlag &stop) {
  try {
    auto kernel = make_kernel(slot, stop);
    const std::lock_guard lock(slot.mutex_);
    slot.owned_ = std::move(kernel);
    slot.kernel_.store(slot.owned_.get(), std::memory_order_release);
  } catch (const std::exception &error) {
    ++counters_.failures;
    attempt.error = error.what();
    attempt.failed = true;
  }
}

std::unique_ptr<const Kernel> KernelStore::make_kernel(const KernelSlot &slot, const StopFlag &stop) {
  if (stop) throw KernelError("kernel not compiled: the process is about to end");
  const std::string key = ImageCache::key(slot.backend.name(), slot.backend.toolchain(), slot.architecture, slot.unit);
  const ImageCache::Found found = cache_.find(key);
  if (found.image) {
    try {
      auto kernel = slot.backend.load(slot.unit, *found.image, slot.device);
      ++(found.source == ImageCache::Source::kDisk ? counters_.disk_hits : counters_.memory_hits);
      notice(slot, "read from the cache");
      return kernel;
    } catch (const KernelError &) {
      cache_.erase(key);  // whole but useless here: make it anew
    }
  }
  const std::shared_ptr<const Image> image = compile(slot, key, stop);
  return slot.backend.load(slot.unit, *image, slot.device);
}

std::shared_ptr<const Image> KernelStore::compile(const KernelSlot &slot, const std::string &key,
                                                  const StopFlag &stop) {
  const Stopwatch stopwatch;
  auto image = std::make_shared<const Image>(slot.backend.compile(slot.unit, slot.architecture, stop));
  if (!image->cacheable) {  // code of this library: nothing was compiled, nothing is kept
    notice(slot, "built in");
    return image;
  }
  const int64_t spent = stopwatch.nanoseconds();
  ++counters_.compilations;
  counters_.compile_nanoseconds += spent;
  const bool kept = cache_.store(key, image);
  notice(slot, "compiled in " + std::to_string(spent / 1000000) + " ms" + (kept ? "" : " (cache not writable)"));
  return image;
}

void KernelStore::notice(const KernelSlot &slot, const std::string &what) const {
  if (!verbose_) return;
  static constexpr const char *kFamilies[] = {"tensor product", "convolution", "contraction"};
  static constexpr const char *kOrders[] = {"forward", "backward", "double backward"};
  const Unit &unit = slot.unit;
  const char *order = slot.backend.one_image_for_all_orders() ? "all orders" : kOrders[static_cast<int>(unit.order)];
  std::fprintf(stderr, "[oeq_native] %s, %s, %s: %s\n", kFamilies[static_cast<int>(unit.payload->family)], order,
               slot.architecture.c_str(), what.c_str());
}

void copy_stats(OeqStats from, OeqStats &to) {
  from.struct_size = to.struct_size;
  std::memcpy(&to, &from, std::min(to.struct_size, sizeof(from)));
}

void KernelStore::fill(OeqStats &stats) const {
  OeqStats now{};
  now.records = counters_.records;
  now.requests = counters_.requests;
  now.compilations = counters_.compilations;
  now.memory_hits = counters_.memory_hits;
  now.disk_hits = counters_.disk_hits;
  now.failures = counters_.failures;
  now.waits = counters_.waits;
  now.compile_seconds = static_cast<double>(counters_.compile_nanoseconds) * 1e-9;
  now.wait_seconds = static_cast<double>(counters_.wait_nanoseconds) * 1e-9;
  copy_stats(now, stats);
}

}  // namespace oeq
