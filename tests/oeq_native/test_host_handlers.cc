// SPDX-License-Identifier: BSD-3-Clause
//
// The handlers for CPUs with kernels of the host's compiler, stage by stage as XLA calls them: from several threads,
// and what a call costs once its kernel is there.
#define CHECK_NO_MAIN
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "stand_in_xla.h"
#include "temporary_folder.h"

// ---- what a thread does while it counts ----------------------------------------------------------------------------

namespace {

thread_local bool counting = false;
thread_local int locks = 0, allocations = 0;

/// Counts this thread's locks and allocations while it lives.
class Counted {
 public:
  Counted() {
    locks = allocations = 0;
    counting = true;
  }
  ~Counted() { counting = false; }
};

}  // namespace

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // sanitizers replace the same functions
#define COUNTS_WORK
extern "C" int pthread_mutex_lock(pthread_mutex_t *mutex) {
  static const auto original = reinterpret_cast<int (*)(pthread_mutex_t *)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  locks += counting;
  return original(mutex);
}
void *operator new(size_t bytes) {
  allocations += counting;
  if (void *memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, size_t) noexcept { std::free(memory); }
#endif

// ---- a convolution of scalars --------------------------------------------------------------------------------------

namespace {

constexpr int64_t kNodes = 20, kEdges = 90;

/// L3[receiver, u] = sum over edges of W[edge, u] L1[sender, u] L2[edge], for `channels` channels u.
std::string scalar_payload(int64_t channels) {
  const std::string n = std::to_string(channels);
  return R"({"kernel_prop": {"L1_dim": )" + n + R"(, "L2_dim": 1, "L3_dim": )" + n + R"(, "weight_numel": )" + n +
         R"(, "workspace_size": 1, "shared_weights": 0, "deterministic": 0, "irrep_dtype": 2, "weight_dtype": 2, )" +
         R"("idx_dtype": 3}, "problem": {"irreps_in1": ")" + n + R"(x0e", "irreps_in2": "1x0e", "irreps_out": ")" + n +
         R"(x0e", "instructions": [[0, 0, 0, "uvu", true, 1.0]], "irrep_dtype": "float64", "weight_dtype": "float64", )" +
         R"("layout": "mul_ir", "shared_weights": false, "weight_order": "e3nn"}})";
}

/// Operands of a convolution of scalars, the right result, and a call site.
class Convolution {
 public:
  Convolution(int64_t channels, std::mt19937_64 &random)
      : channels_(channels), x_(kNodes * channels), y_(kEdges), w_(kEdges * channels), z_(kNodes * channels, NAN) {
    std::normal_distribution<double> normal;
    for (auto *numbers : {&x_, &y_, &w_})
      std::generate(numbers->begin(), numbers->end(), [&] { return normal(random); });
    std::uniform_int_distribution<int32_t> node(0, kNodes - 1);
    for (auto *indices : {&receivers_, &senders_}) {
      indices->resize(kEdges);
      std::generate(indices->begin(), indices->end(), [&] { return node(random); });
    }
    std::sort(receivers_.begin(), receivers_.end());
    const auto real = XLA_FFI_DataType_F64;
    const auto index = XLA_FFI_DataType_S32;
    std::vector<stand_in::Array> arguments = {{{kNodes, channels}, real, x_.data()},
                                              {{kEdges, 1}, real, y_.data()},
                                              {{kEdges, channels}, real, w_.data()},
                                              {{kEdges}, index, receivers_.data()},
                                              {{kEdges}, index, senders_.data()},
                                              {{1}, XLA_FFI_DataType_U8, &workspace_},
                                              {{1}, index, &dummy_}};
    call =
        std::make_unique<stand_in::CustomCall>("conv_forward", "Host", scalar_payload(channels), std::move(arguments),
                                               std::vector<stand_in::Array>{{{kNodes, channels}, real, z_.data()}});
  }

  bool is_right() const {
    std::vector<double> expected(z_.size(), 0);
    for (int64_t e = 0; e < kEdges; ++e) {
      for (int64_t u = 0; u < channels_; ++u) {
        expected[static_cast<size_t>(receivers_[e] * channels_ + u)] +=
            w_[static_cast<size_t>(e * channels_ + u)] * x_[static_cast<size_t>(senders_[e] * channels_ + u)] * y_[e];
      }
    }
    for (size_t i = 0; i < z_.size(); ++i) {
      if (!(std::abs(z_[i] - expected[i]) <= 1e-12)) return false;
    }
    return true;
  }

  std::unique_ptr<stand_in::CustomCall> call;

 private:
  const int64_t channels_;
  std::vector<double> x_, y_, w_, z_;
  std::vector<int32_t> receivers_, senders_;
  char workspace_ = 0;
  int32_t dummy_ = 0;
};

OeqStats stats() {
  OeqStats s{};
  s.struct_size = sizeof(s);
  oeq_get_stats(&s);
  return s;
}

std::mt19937_64 fresh_random() {
  const unsigned seed = std::random_device{}();
  std::printf("        seed %u\n", seed);
  return std::mt19937_64(seed);
}

}  // namespace

TEST(distinct_kernels_of_many_call_sites_compile_once_each_and_run_at_once) {
  std::mt19937_64 random = fresh_random();
  constexpr int kKernels = 8, kSites = 3;  // of each kernel
  const OeqStats before = stats();
  std::vector<std::unique_ptr<Convolution>> convolutions;
  for (int i = 0; i < kKernels * kSites; ++i) {
    convolutions.push_back(std::make_unique<Convolution>(1 + i % kKernels, random));
  }
  std::vector<std::thread> threads;  // as two executables that are compiled and run side by side
  std::atomic<int> right{0};
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = static_cast<size_t>(t); i < convolutions.size(); i += 2) convolutions[i]->call->instantiate();
      for (size_t i = static_cast<size_t>(t); i < convolutions.size(); i += 2) {
        for (int repeat = 0; repeat < 3; ++repeat) convolutions[i]->call->execute();
        right += convolutions[i]->is_right();
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  CHECK(right == kKernels * kSites);
  const OeqStats after = stats();
  CHECK(after.requests - before.requests == kKernels * kSites);
  CHECK(after.compilations - before.compilations == kKernels);
  CHECK(after.failures == before.failures);
}

TEST(one_call_site_may_be_executed_by_several_threads) {
  std::mt19937_64 random = fresh_random();
  std::vector<std::unique_ptr<Convolution>> convolutions;  // of one kernel
  for (int i = 0; i < 4; ++i) convolutions.push_back(std::make_unique<Convolution>(9, random));
  for (const auto &convolution : convolutions) convolution->call->instantiate();
  // All executions go through the first one's state, as concurrent runs of one executable do.
  std::vector<std::thread> threads;
  for (const auto &convolution : convolutions) {
    threads.emplace_back([&] {
      stand_in::Context shared = convolutions[0]->call->context;
      stand_in::CustomCall::Stage execution(*convolution->call, stand_in::handler("conv_forward", "Host").execute,
                                            XLA_FFI_ExecutionStage_EXECUTE, shared);
      for (int repeat = 0; repeat < 100; ++repeat) execution.run();
    });
  }
  for (std::thread &thread : threads) thread.join();
  for (const auto &convolution : convolutions) CHECK(convolution->is_right());
}

TEST(settings_that_change_after_the_first_kernel_change_nothing) {
  std::mt19937_64 random = fresh_random();
  Convolution first(10, random), second(11, random);
  first.call->instantiate();
  first.call->execute();  // no compiler is being started while the environment changes
  const TemporaryFolder folder;
  const check::Environment cache("OEQ_CACHE", folder.path().c_str()), threads("OEQ_COMPILE_THREADS", "none"),
      compiler("CXX", "/none/c++");
  const OeqStats before = stats();
  second.call->instantiate();
  second.call->execute();
  CHECK(second.is_right());
  CHECK(stats().failures == before.failures);
  CHECK(std::filesystem::is_empty(folder.path()));
}

#if defined(COUNTS_WORK)
TEST(a_warm_call_takes_no_lock_and_no_memory) {
  std::mt19937_64 random = fresh_random();
  Convolution convolution(13, random);  // of no other test: its kernel is cold
  convolution.call->instantiate();
  const auto execution = convolution.call->execution();
  int cold_locks = 0;
  {
    const Counted counted;
    execution->run();
    cold_locks = locks;
    CHECK(allocations > 0);
  }
  CHECK(cold_locks > 0);  // the counters work
  const Counted counted;
  for (int repeat = 0; repeat < 10; ++repeat) execution->run();
  CHECK(locks == 0);
  CHECK(allocations == 0);
}
#endif

int main(int argc, char **argv) {
  const check::Environment cache("OEQ_CACHE", "off"), threads("OEQ_COMPILE_THREADS", "4");
  return check::run(argc > 1 ? argv[1] : nullptr);
}
