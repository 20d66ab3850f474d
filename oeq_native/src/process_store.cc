// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>

#include "kernel_store.h"

namespace oeq {
namespace {

std::unique_ptr<Backend> make_backend(Platform platform) {
  return platform == Platform::kHost ? make_host_backend() : make_cuda_backend();
}

std::atomic<KernelStore *> store_to_stop{nullptr};

void stop_workers() {
  if (KernelStore *store = store_to_stop) store->stop();
}

}  // namespace

KernelStore &process_store() {
  // Never destroyed: XLA's threads may still be in a kernel while the process ends.
  static KernelStore *const store = [] {
    auto *made = new KernelStore(read_settings(), make_backend);
    store_to_stop = made;
    stop_workers_at_exit();
    return made;
  }();
  return *store;
}

void stop_workers_at_exit() { std::atexit(stop_workers); }

}  // namespace oeq

extern "C" OEQ_API void oeq_get_stats(OeqStats *stats) {
  if (stats == nullptr) return;
  try {
    oeq::process_store().fill(*stats);
  } catch (const std::exception &) {
    // Settings that are no good: nothing has happened yet, and the first kernel will say so.
    oeq::copy_stats(OeqStats{}, *stats);
  }
}
