// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "backend.h"

/// What a ToyBackend did and shall do; outlives it.
struct ToyScript {
  std::atomic<int> compilations{0}, loads{0}, running{0}, most_running{0};
  std::atomic<int> failures_left{0};      // so many compilations fail
  std::atomic<int> unloadable_left{0};    // so many loads fail
  std::chrono::milliseconds duration{0};  // of a compilation
  bool one_image = false;
  std::string architecture = "toy";  // of device 0; device n > 0 is of architecture "other"
  std::function<void()> during_compilation;
};

class ToyKernel final : public oeq::Kernel {
 public:
  explicit ToyKernel(std::string image) : image(std::move(image)) {}
  void run(const OeqCall &, const oeq::Launch &) const override {}
  const std::string image;
};

/// "Compiles" a payload into its own text.
class ToyBackend final : public oeq::Backend {
 public:
  explicit ToyBackend(ToyScript &script) : script_(script) {}

  const char *name() const override { return "Toy"; }
  bool one_image_for_all_orders() const override { return script_.one_image; }
  std::string architecture(int32_t device) const override { return device == 0 ? script_.architecture : "other"; }
  std::string toolchain() const override { return "toy compiler 1"; }

  oeq::Image compile(const oeq::Unit &unit, const std::string &architecture, const oeq::StopFlag &stop) const override {
    ++script_.compilations;
    const int running = ++script_.running;
    for (int most = script_.most_running;
         running > most && !script_.most_running.compare_exchange_weak(most, running);) {
    }
    if (script_.during_compilation) script_.during_compilation();
    const auto end = std::chrono::steady_clock::now() + script_.duration;
    while (!stop && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --script_.running;
    if (script_.failures_left.fetch_sub(1) > 0) throw oeq::KernelError("toy compiler: line 1: deliberate error");
    return {architecture + "|" + std::to_string(static_cast<int>(unit.order)) + "|" + unit.payload->text, true};
  }

  std::unique_ptr<oeq::Kernel> load(const oeq::Unit &, const oeq::Image &image, int32_t) const override {
    ++script_.loads;
    if (script_.unloadable_left.fetch_sub(1) > 0) throw oeq::KernelError("toy loader: deliberate error");
    return std::make_unique<ToyKernel>(image.bytes);
  }

 private:
  ToyScript &script_;
};

/// A valid payload of a tensor product; `tag` makes it one of its own.
inline std::string toy_payload(const std::string &tag) {
  return R"({"problem": {"tag": ")" + tag +
         R"("}, "kernel_prop": {"L1_dim": 3, "L2_dim": 4, "L3_dim": 5, "weight_numel": 2, )" +
         R"("shared_weights": 0, "irrep_dtype": 1, "weight_dtype": 1, "workspace_size": 1, "deterministic": 0, "idx_dtype": 3}})";
}
