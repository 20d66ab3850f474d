// SPDX-License-Identifier: BSD-3-Clause
//
// The handlers inside a real XLA (a PJRT plugin for CPUs), with toy kernels: life of states, sharing, errors, threads.
// Usage: test_xla <plugin> <toy provider>
#define CHECK_NO_MAIN
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>

#include "check.h"
#include "pjrt_host.h"
#include "programs.h"
#include "provider.h"
#include "temporary_folder.h"

namespace {

std::unique_ptr<pjrt::Plugin> plugin;
std::unique_ptr<pjrt::Client> client;
std::unique_ptr<Provider> provider;

constexpr char kProperties[] =
    R"("kernel_prop": {"L1_dim": 3, "L2_dim": 4, "L3_dim": 5, "weight_numel": 2, "shared_weights": 0, "irrep_dtype": 1, )"
    R"("weight_dtype": 1, "workspace_size": 1, "deterministic": 0, "idx_dtype": 3})";

std::string payload(const std::string &problem) { return "{\"problem\": {" + problem + "}, " + kProperties + "}"; }

const std::string kTypes = "(tensor<2x3xf32>, tensor<2x4xf32>, tensor<2x2xf32>) -> tensor<2x5xf32>";
const std::string kParameters = "%a: tensor<2x3xf32>, %b: tensor<2x4xf32>, %w: tensor<2x2xf32>";

/// A module of tp_forward calls with these payloads; its result is that of the last one.
std::string forward_module(const std::vector<std::string> &payloads, long hash = 7) {
  std::string body;
  for (size_t i = 0; i < payloads.size(); ++i) {
    body += programs::call("%" + std::to_string(i), "tp_forward", "%a, %b, %w", kTypes, payloads[i], hash);
  }
  return programs::module(kParameters, "tensor<2x5xf32>", body, "%" + std::to_string(payloads.size() - 1));
}

/// Runs an executable of forward_module on zeros.
std::vector<float> run(const pjrt::Executable &executable) {
  static const std::vector<float> zeros(16, 0.0f);
  const std::vector<PJRT_Buffer *> arguments = {client->upload({{2, 3}, zeros.data()}),
                                                client->upload({{2, 4}, zeros.data()}),
                                                client->upload({{2, 2}, zeros.data()})};
  std::vector<float> values;
  std::exception_ptr failure;
  try {
    for (PJRT_Buffer *result : executable.run(arguments)) {
      values = client->download(result, 10);
      client->free(result);
    }
  } catch (...) {
    failure = std::current_exception();
  }
  for (PJRT_Buffer *argument : arguments) client->free(argument);
  if (failure) std::rethrow_exception(failure);
  return values;
}

}  // namespace

TEST(work_items_run_once_each_on_xlas_threads) {
  for (const int items : {1, 2, 3, 1000}) {
    const pjrt::Executable executable(
        *client, forward_module({payload("\"does\": \"count\", \"items\": " + std::to_string(items))}), 1);
    for (int repeat = 0; repeat < 50; ++repeat) {
      const std::vector<float> out = run(executable);
      CHECK(out[0] == static_cast<float>(items));
      CHECK(out[1] == static_cast<float>(items) * static_cast<float>(items - 1) / 2);
      CHECK(out[2] >= 1);
    }
  }
}

TEST(call_sites_of_equal_kernels_share_one_compilation) {
  const OeqStats before = provider->stats();
  const std::string same = payload(R"("does": "empty", "tag": "shared")");
  const pjrt::Executable first(*client, forward_module({same, same, same}), 1);
  run(first);
  const pjrt::Executable second(*client, forward_module({same}), 1);
  run(second);
  const OeqStats after = provider->stats();
  CHECK(after.records - before.records == 1);
  CHECK(after.requests - before.requests == 4);
  CHECK(after.compilations - before.compilations == 1);
}

TEST(equal_hashes_do_not_alias_payloads) {
  const pjrt::Executable executable(
      *client, forward_module({payload(R"("does": "count", "items": 5)"), payload(R"("does": "count", "items": 6)")}),
      1);
  CHECK(run(executable)[0] == 6);
}

TEST(distinct_kernels_compile_while_xla_compiles_and_side_by_side) {
  std::vector<std::string> payloads;
  for (int i = 0; i < 8; ++i) {
    payloads.push_back(payload(R"("does": "empty", "milliseconds": 200, "tag": "slow)" + std::to_string(i) + "\""));
  }
  const auto start = std::chrono::steady_clock::now();
  const pjrt::Executable executable(*client, forward_module(payloads), 1);
  run(executable);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  CHECK(seconds > 0.39);  // four workers, two rounds
  CHECK(seconds < 1.2);   // 1.6 s one after another
}

TEST(kernels_are_ready_when_xla_has_compiled_a_module_that_takes_it_long) {
  // Sorts are slow to compile on CPU: one comparator function each.
  std::string body = programs::call("%0", "tp_forward", "%a, %b, %w", kTypes,
                                    payload(R"("does": "empty", "milliseconds": 50, "tag": "early")"), 7);
  constexpr int kSorts = 120;
  for (int i = 0; i < kSorts; ++i) {
    const std::string n = std::to_string(i + 1), before = std::to_string(i);
    body += "  %" + n + " = \"stablehlo.sort\"(%" + before + ") ({\n  ^bb0(%l: tensor<f32>, %r: tensor<f32>):\n" +
            "    %c = stablehlo.compare LT, %l, %r : (tensor<f32>, tensor<f32>) -> tensor<i1>\n" +
            "    stablehlo.return %c : tensor<i1>\n  }) {dimension = " + std::to_string(i % 2) +
            " : i64, is_stable = true} : (tensor<2x5xf32>) -> tensor<2x5xf32>\n";
  }
  const int64_t before = provider->stats().compilations;
  const auto start = std::chrono::steady_clock::now();
  const pjrt::Executable executable(
      *client, programs::module(kParameters, "tensor<2x5xf32>", body, "%" + std::to_string(kSorts)), 1);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const int64_t ready = provider->stats().compilations - before;
  std::printf("        XLA took %.2f s\n", seconds);
  if (seconds < 0.3) throw check::Skipped("XLA compiles too fast here to tell");
  CHECK(ready == 1);
}

TEST(a_failed_compilation_is_an_xla_error_with_the_log_and_is_retried_by_the_next_executable) {
  const TemporaryFolder folder;
  const std::string until = folder.path() + "/now";
  const std::string program = forward_module({payload(R"("does": "fail", "until": ")" + until + "\"")});
  const pjrt::Executable first(*client, program, 1);
  const std::string message = check::thrown(__FILE__, __LINE__, [&] { run(first); });
  CHECK_CONTAINS(message, "tp_forward: toy compiler failed");
  CHECK_CONTAINS(message, "line 1: deliberate error");
  CHECK_THROWS("toy compiler failed", run(first));
  std::ofstream(until) << "now";
  CHECK_THROWS("toy compiler failed", run(first));  // still the same executable
  const pjrt::Executable second(*client, program, 1);
  run(second);
  run(first);  // the kernel is there now
}

TEST(a_failing_call_is_an_xla_error_and_the_process_goes_on) {
  const pjrt::Executable executable(*client, forward_module({payload(R"("does": "throw")")}), 1);
  CHECK_THROWS("tp_forward: deliberate failure of a call", run(executable));
}

TEST(operands_that_do_not_fit_the_payload_are_named) {
  const std::string other_shape =
      R"({"problem": {"does": "empty"}, "kernel_prop": {"L1_dim": 3, "L2_dim": 9, "L3_dim": 5, )"
      R"("weight_numel": 2, "shared_weights": 0, "irrep_dtype": 1, "weight_dtype": 1}})";
  const pjrt::Executable shape(*client, forward_module({other_shape}), 1);
  CHECK_THROWS("tp_forward: L2_in must be f32[2, 9], is f32[2, 4]", run(shape));

  std::string other_dtype = payload(R"("does": "empty")");
  other_dtype.replace(other_dtype.find("\"weight_dtype\": 1"), 17, "\"weight_dtype\": 2");
  const pjrt::Executable dtype(*client, forward_module({other_dtype}), 1);
  CHECK_THROWS("tp_forward: W must be f64[2, 2], is f32[2, 2]", run(dtype));

  const std::string two_operands = programs::module(
      kParameters, "tensor<2x5xf32>",
      programs::call("%0", "tp_forward", "%a, %b", "(tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<2x5xf32>",
                     payload(R"("does": "empty")"), 7),
      "%0");
  const pjrt::Executable count(*client, two_operands, 1);
  CHECK_THROWS("tp_forward: called with 2 operands and 1 results, takes 3 and 1", run(count));
}

TEST(a_bad_payload_fails_when_xla_compiles) {
  CHECK_THROWS("tp_forward: kernel payload: not valid JSON", pjrt::Executable(*client, forward_module({"{"}), 1));
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  const check::Environment threads("OEQ_COMPILE_THREADS", "4"), cache("OEQ_CACHE", "off");
  plugin = std::make_unique<pjrt::Plugin>(argv[1]);
  provider = std::make_unique<Provider>(argv[2]);
  if (provider->register_ffi(plugin->ffi_api("Host"), "Host") != 0) return 1;
  client = std::make_unique<pjrt::Client>(*plugin);
  const int status = check::run(argc > 3 ? argv[3] : nullptr);
  client.reset();
  return status;
}
