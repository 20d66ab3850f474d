// SPDX-License-Identifier: BSD-3-Clause
//
// liboeq_native's core with toy kernels for Host in place of generated ones. What a kernel does follows from
// `problem.does`:
//   empty    nothing
//   count    L3[0] = work items run, L3[1] = sum of their numbers, L3[2] = threads offered; `problem.items` items
//   fail     compilation fails, until the file `problem.until` exists
//   throw    compilation succeeds, calls fail
// `problem.milliseconds` is how long compilation takes.
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "backend.h"

namespace oeq {
namespace {

using Json = nlohmann::json;

void count(const OeqCall &call, const Launch &launch, int64_t items) {
  struct Sums {
    std::atomic<int64_t> count{0}, sum{0};
  } sums;
  launch.executor->run(
      items,
      [](void *context, int64_t item) {
        ++static_cast<Sums *>(context)->count;
        static_cast<Sums *>(context)->sum += item;
      },
      &sums);
  auto *out = static_cast<float *>(call.L3);
  out[0] = static_cast<float>(sums.count);
  out[1] = static_cast<float>(sums.sum);
  out[2] = static_cast<float>(launch.executor->threads());
}

class ToyKernel final : public Kernel {
 public:
  explicit ToyKernel(const Json &problem) : does_(problem["does"]), items_(problem.value("items", 0)) {}
  void run(const OeqCall &call, const Launch &launch) const override {
    if (does_ == "count") count(call, launch, items_);
    if (does_ == "throw") throw KernelError("deliberate failure of a call");
  }

 private:
  const std::string does_;
  const int64_t items_;
};

class ToyBackend final : public Backend {
 public:
  const char *name() const override { return "Toy"; }
  bool one_image_for_all_orders() const override { return false; }
  std::string architecture(int32_t) const override { return "toy"; }
  std::string toolchain() const override { return "toy 1"; }
  Image compile(const Unit &unit, const std::string &, const StopFlag &) const override {
    const Json &problem = unit.payload->problem;
    std::this_thread::sleep_for(std::chrono::milliseconds(problem.value("milliseconds", 0)));
    if (problem["does"] == "fail" && ::access(problem["until"].get<std::string>().c_str(), F_OK) != 0) {
      throw KernelError("toy compiler failed\nline 1: deliberate error");
    }
    return {"toy image", true};
  }
  std::unique_ptr<Kernel> load(const Unit &unit, const Image &, int32_t) const override {
    return std::make_unique<ToyKernel>(unit.payload->problem);
  }
};

}  // namespace

std::unique_ptr<Backend> make_host_backend() { return std::make_unique<ToyBackend>(); }

}  // namespace oeq
