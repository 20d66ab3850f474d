// SPDX-License-Identifier: BSD-3-Clause
// Runtimes: plugins that are missing or wrong, options, several at once, threads; and null pointers everywhere.
#include <fstream>
#include <thread>

#include "c_api.h"
#include "check.h"
#include "random_graph.h"

namespace {

using test::Model;
using test::Runtime;

smd_runtime_options options_with_plugin(const std::string &plugin) {
  auto options = test::sized<smd_runtime_options>();
  options.cache_directory = "";
  options.plugin = plugin.empty() ? nullptr : plugin.c_str();
  return options;
}

std::string complaint(const smd_runtime_options &options, smd_status expected) {
  smd_runtime *runtime = nullptr;
  CHECK_EQUAL(smd_runtime_create(&options, &runtime), expected);
  CHECK(runtime == nullptr);
  smd_runtime_destroy(runtime);
  return smd_last_error();
}

std::string complaint_about_plugin(const std::string &plugin) {
  return complaint(options_with_plugin(plugin), SMD_ERROR_PLUGIN);
}

std::string fake_plugin(const std::string &name) {
  return test::environment("STABLEMD_TEST_PROVIDERS") + "/plugins/" + name;
}

int threads_of_this_process() {
  int count = 0;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "Threads:") status >> count;
  }
  return count;
}

}  // namespace

TEST(plugins_that_are_wrong) {
  CHECK_CONTAINS(complaint_about_plugin("/nonexistent/plugin.so"), "/nonexistent/plugin.so: no such PJRT plugin");
  CHECK_CONTAINS(complaint_about_plugin(test::bundle_path("toy_plain")), "cannot be loaded as a PJRT plugin");
  CHECK_CONTAINS(complaint_about_plugin("/tmp"), "cannot be loaded as a PJRT plugin");
  const std::string other = test::environment("STABLEMD_TEST_PROVIDERS") + "/none/no_provider.so";
  CHECK_CONTAINS(complaint_about_plugin(other), "not a PJRT plugin (it does not export GetPjrtApi)");
  CHECK_CONTAINS(complaint_about_plugin(fake_plugin("old_plugin.so")),
                 "of version 0.80, needed is 0.81 or newer: upgrade");
  CHECK_CONTAINS(complaint_about_plugin(fake_plugin("foreign_plugin.so")), "of version 1.90");
}

TEST(no_plugin) {
  const std::string before = test::environment("STABLEMD_PJRT_PLUGIN");
  unsetenv("STABLEMD_PJRT_PLUGIN");
  const std::string line = complaint_about_plugin("");
  CHECK_CONTAINS(line, "no PJRT plugin for device `cpu`: STABLEMD_PJRT_PLUGIN is not set");
  CHECK_CONTAINS(line, "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so, fastatomstruct_xla_cpu/libpjrt_cpu.so");
  CHECK_CONTAINS(line, "pip install lammps-jax-pjrt-cpu");
  auto options = options_with_plugin("");
  options.device = "cuda";
  CHECK_CONTAINS(complaint(options, SMD_ERROR_PLUGIN), "pip install jax-cuda13-pjrt");
  setenv("STABLEMD_PJRT_PLUGIN", before.c_str(), 1);
}

TEST(wrong_options) {
  auto options = options_with_plugin("");
  options.device = "tpu";
  CHECK_CONTAINS(complaint(options, SMD_ERROR_ARGUMENT), "device `tpu`: must be `cpu` or `cuda`");
  options = options_with_plugin("");
  options.threads = -1;
  CHECK_CONTAINS(complaint(options, SMD_ERROR_ARGUMENT), "threads: -1");
  options = options_with_plugin("");
  options.device_ordinal = -1;
  CHECK_CONTAINS(complaint(options, SMD_ERROR_ARGUMENT), "device_ordinal: -1");
  options = options_with_plugin("");
  options.struct_size = 0;
  CHECK_CONTAINS(complaint(options, SMD_ERROR_ARGUMENT), "struct_size is 0");
}

TEST(null_pointers) {
  auto options = options_with_plugin("");
  auto size = test::sized<smd_graph_size>();
  auto graph = test::sized<smd_graph>();
  auto result = test::sized<smd_result>();
  auto model_info = test::sized<smd_model_info>();
  auto runtime_info = test::sized<smd_runtime_info>();
  auto stats = test::sized<smd_model_stats>();
  smd_runtime *no_runtime = nullptr;
  smd_model *no_model = nullptr;
  CHECK_EQUAL(smd_runtime_create(nullptr, &no_runtime), SMD_ERROR_ARGUMENT);
  CHECK_CONTAINS(smd_last_error(), "options is NULL");
  CHECK_EQUAL(smd_runtime_create(&options, nullptr), SMD_ERROR_ARGUMENT);
  CHECK_EQUAL(smd_runtime_get_info(nullptr, &runtime_info), SMD_ERROR_ARGUMENT);
  CHECK_EQUAL(smd_model_load(nullptr, "x", &no_model), SMD_ERROR_ARGUMENT);
  CHECK_EQUAL(smd_model_get_info(nullptr, &model_info), SMD_ERROR_ARGUMENT);
  CHECK_EQUAL(smd_model_reserve(nullptr, &size, &graph), SMD_ERROR_ARGUMENT);
  CHECK_EQUAL(smd_model_evaluate(nullptr, &result), SMD_ERROR_ARGUMENT);
  CHECK_EQUAL(smd_model_get_stats(nullptr, &stats), SMD_ERROR_ARGUMENT);
  smd_runtime_destroy(nullptr);
  smd_model_destroy(nullptr);

  const Runtime runtime;
  CHECK_EQUAL(smd_runtime_get_info(runtime.handle, nullptr), SMD_ERROR_ARGUMENT);
  CHECK_EQUAL(smd_model_load(runtime.handle, nullptr, &no_model), SMD_ERROR_ARGUMENT);
  CHECK_EQUAL(smd_model_load(runtime.handle, "x", nullptr), SMD_ERROR_ARGUMENT);
  const Model model(runtime, test::bundle_path("layers1_float32"));
  CHECK_EQUAL(smd_model_get_info(model.handle, nullptr), SMD_ERROR_ARGUMENT);
  CHECK_EQUAL(smd_model_reserve(model.handle, nullptr, &graph), SMD_ERROR_ARGUMENT);
  CHECK_EQUAL(smd_model_reserve(model.handle, &size, nullptr), SMD_ERROR_ARGUMENT);
  CHECK_EQUAL(smd_model_evaluate(model.handle, nullptr), SMD_ERROR_ARGUMENT);
  CHECK_EQUAL(smd_model_get_stats(model.handle, nullptr), SMD_ERROR_ARGUMENT);
}

TEST(callers_of_an_older_header) {
  const Runtime runtime;
  smd_runtime_info info{};
  info.struct_size = offsetof(smd_runtime_info, pjrt_major);
  info.pjrt_major = -77;
  test::require_ok(smd_runtime_get_info(runtime.handle, &info));
  CHECK_EQUAL(info.struct_size, offsetof(smd_runtime_info, pjrt_major));
  CHECK_EQUAL(info.pjrt_major, -77);
  CHECK_EQUAL(std::string(info.platform), "cpu");
}

TEST(information) {
  CHECK_EQUAL(smd_api_version(), uint32_t{SMD_API_MAJOR << 16 | SMD_API_MINOR});
  const Runtime runtime("", 2);
  auto info = test::sized<smd_runtime_info>();
  test::require_ok(smd_runtime_get_info(runtime.handle, &info));
  CHECK_EQUAL(std::string(info.platform), "cpu");
  CHECK_CONTAINS(info.plugin_path, ".so");
  CHECK_EQUAL(info.pjrt_major, 0);
  CHECK(info.pjrt_minor >= 81);
  CHECK_EQUAL(info.ffi_major, 0);
  CHECK(info.ffi_minor >= 2);
  CHECK_EQUAL(info.threads, 2);
  CHECK_EQUAL(info.provider_count, 0);
}

TEST(errors_are_one_line_without_control_characters) {
  const Runtime runtime;
  smd_model *model = nullptr;
  CHECK_EQUAL(smd_model_load(runtime.handle, "a\n\x1b[2J\u202eb", &model), SMD_ERROR_FILE);
  CHECK_CONTAINS(smd_last_error(), "a\\n\\x1b[2J\\u202eb: cannot be opened");
}

TEST(the_last_error_belongs_to_the_thread) {
  smd_model *model = nullptr;
  CHECK_EQUAL(smd_model_load(nullptr, "x", &model), SMD_ERROR_ARGUMENT);
  std::string elsewhere = "not asked";
  std::thread([&] { elsewhere = smd_last_error(); }).join();
  CHECK_EQUAL(elsewhere, "");
  CHECK_CONTAINS(smd_last_error(), "runtime is NULL");
}

TEST(chosen_threads) {
  int started[2];
  for (const int threads : {1, 5}) {
    const int before = threads_of_this_process();
    const Runtime runtime("", threads);
    started[threads == 5] = threads_of_this_process() - before;
  }
  CHECK(started[1] >= started[0] + 4);
  CHECK_EQUAL(test::environment("PJRT_NPROC"), "");
}

TEST(both_numbers_of_threads_agree) {
  std::mt19937_64 random(7);
  const auto graph = test::random_graph(random, {400, 300, 200}, {9000, 5000});
  for (const int threads : {1, 2, 0}) {
    const Runtime runtime("", threads);
    Model model(runtime, test::bundle_path("layers2_float64"));
    CHECK(test::evaluate<double>(model, graph) < 1e-13);
  }
}

TEST(several_runtimes_and_models) {
  std::mt19937_64 random(8);
  const auto graph = test::random_graph(random, {20, 13, 9}, {90, 40});
  const auto small = test::random_graph(random, {20, 13}, {90});
  const Runtime one, two;
  Model a(one, test::bundle_path("layers2_float64")), b(two, test::bundle_path("layers2_float64"));
  Model c(one, test::bundle_path("layers2_float64")), d(one, test::bundle_path("layers1_float32"));
  for (int i = 0; i < 3; ++i) {
    CHECK(test::evaluate<double>(a, graph) < 1e-13);
    CHECK(test::evaluate<double>(b, graph) < 1e-13);
    CHECK(test::evaluate<double>(c, graph) < 1e-13);
    CHECK(test::evaluate<float>(d, small) < 5e-6);
  }
  CHECK_EQUAL(a.stats().compilations, 1);
  CHECK_EQUAL(b.stats().compilations, 1);
  CHECK_EQUAL(c.stats().compilations, 0);  // shares a's program
}

TEST(models_in_threads) {
  const Runtime runtime;
  double worst[3] = {1, 1, 1};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&runtime, &worst, i] {
      std::mt19937_64 random(100 + i);
      Model model(runtime, test::bundle_path("layers2_float64"));
      double difference = 0;
      for (int64_t atoms = 10; atoms < 40; atoms += 12) {
        const auto graph = test::random_graph(random, {atoms, atoms / 2, 3}, {4 * atoms, atoms});
        difference = std::max(difference, test::evaluate<double>(model, graph));
      }
      worst[i] = difference;
    });
  }
  for (std::thread &thread : threads) thread.join();
  for (const double difference : worst) CHECK(difference < 1e-13);
}

TEST(runtime_destroyed_before_its_model) {
  auto options = options_with_plugin("");
  smd_runtime *runtime = nullptr;
  smd_model *model = nullptr;
  test::require_ok(smd_runtime_create(&options, &runtime));
  test::require_ok(smd_model_load(runtime, test::bundle_path("layers1_float32").c_str(), &model));
  smd_runtime_destroy(runtime);  // against the rules, but must not crash
  smd_model_destroy(model);
}

CHECK_MAIN
