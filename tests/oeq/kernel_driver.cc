// SPDX-License-Identifier: BSD-3-Clause
//
// CPU kernels without XLA, for tests and benchmarks through ctypes: memory, poison and thread count are the caller's.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend.h"
#include "cpu/contraction.h"
#include "cpu/generator.h"
#include "cpu/host_compiler.h"
#include "cpu/host_kernel.h"
#include "cpu/problem.h"
#include "payload.h"

namespace {

class Threads final : public oeq::Executor {
 public:
  explicit Threads(int64_t count) : count_(count) {}
  int64_t threads() const override { return count_; }

  void run(int64_t count, void (*work)(void *, int64_t), void *context) override {
    std::atomic<int64_t> next{0};
    auto loop = [&] {
      for (int64_t item; (item = next.fetch_add(1)) < count;) work(context, item);
    };
    std::vector<std::thread> helpers;
    for (int64_t i = 1; i < count_; ++i) helpers.emplace_back(loop);
    loop();
    for (std::thread &helper : helpers) helper.join();
  }

 private:
  int64_t count_;
};

int report(const std::exception &error, char *text, int length) {
  std::snprintf(text, static_cast<size_t>(length), "%s", error.what());
  return 1;
}

}  // namespace

extern "C" {

/// Null on failure. `generic`: the kernel for machines without a compiler; of a contraction the loops, 0 the fastest.
__attribute__((visibility("default"))) void *driver_open(const char *payload, int family, int order, int generic,
                                                         char *error, int length) {
  try {
    const auto which = static_cast<oeq::Family>(family);
    const oeq::Payload parsed = oeq::parse_payload(which, payload);
    const auto degree = static_cast<oeq::Order>(order);
    if (which == oeq::Family::kContraction) {
      const auto loops = oeq::cpu::contraction_loops();
      if (generic >= static_cast<int>(loops.size())) throw oeq::KernelError("this CPU has no such vector unit");
      const auto contraction = oeq::cpu::parse_contraction(parsed.problem, parsed.properties);
      return static_cast<oeq::Kernel *>(
          new oeq::cpu::ContractionKernel(contraction, degree, *loops[static_cast<size_t>(generic)]));
    }
    const oeq::cpu::Problem problem = oeq::cpu::parse_problem(parsed.problem, parsed.properties, which);
    std::unique_ptr<oeq::cpu::SharedLibrary> library;
    if (!generic) {
      const oeq::cpu::HostCompiler compiler;
      const std::string source = oeq::cpu::generate(problem, which, degree, oeq::cpu::this_vector_unit());
      library = std::make_unique<oeq::cpu::SharedLibrary>(compiler.compile(source, oeq::StopFlag(false)));
    }
    return static_cast<oeq::Kernel *>(new oeq::cpu::HostKernel(problem, which, degree, std::move(library)));
  } catch (const std::exception &failure) {
    report(failure, error, length);
    return nullptr;
  }
}

__attribute__((visibility("default"))) int driver_run(const void *kernel, const OeqCall *call, int threads, char *error,
                                                      int length) {
  try {
    Threads executor(threads);
    static_cast<const oeq::Kernel *>(kernel)->run(*call, {&executor, nullptr});
    return 0;
  } catch (const std::exception &failure) {
    return report(failure, error, length);
  }
}

/// Compiles a source within `limit` ms; after `stop_after` ms (negative: never) as if the process ended. 0: it worked.
__attribute__((visibility("default"))) int driver_compile(const char *source, int stop_after, int limit, char *error,
                                                          int length) {
  oeq::StopFlag stop(false);
  std::atomic<bool> over{false};
  std::thread stopper([&] {
    const auto when = std::chrono::steady_clock::now() + std::chrono::milliseconds(stop_after);
    while (stop_after >= 0 && !over && std::chrono::steady_clock::now() < when)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stop = stop_after >= 0;
  });
  int result = 0;
  try {
    oeq::cpu::HostCompiler().compile(source, stop, std::chrono::milliseconds(limit));
  } catch (const std::exception &failure) {
    result = report(failure, error, length);
  }
  over = true;
  stopper.join();
  return result;
}

/// The generated source in `text`; returns its length, which may exceed `length`.
__attribute__((visibility("default"))) int driver_source(const char *payload, int family, int order, char *text,
                                                         int length) {
  try {
    const auto which = static_cast<oeq::Family>(family);
    const oeq::Payload parsed = oeq::parse_payload(which, payload);
    const oeq::cpu::Problem problem = oeq::cpu::parse_problem(parsed.problem, parsed.properties, which);
    const std::string source =
        oeq::cpu::generate(problem, which, static_cast<oeq::Order>(order), oeq::cpu::this_vector_unit());
    std::snprintf(text, static_cast<size_t>(length), "%s", source.c_str());
    return static_cast<int>(source.size());
  } catch (const std::exception &failure) {
    report(failure, text, length);
    return -1;
  }
}
}
