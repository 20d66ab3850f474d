// SPDX-License-Identifier: BSD-3-Clause
// FFI providers: found, loaded once, run in all their stages; those that do not work end in a line that names them.
#include <dlfcn.h>

#include <filesystem>

#include "c_api.h"
#include "check.h"
#include "random_graph.h"

namespace {

using test::Model;
using test::Runtime;

void set_path(const std::string &path) { setenv("STABLEMD_FFI_PATH", path.c_str(), 1); }

std::string folder() { return test::environment("STABLEMD_TEST_PROVIDERS"); }

std::string runtime_error(smd_status expected) {
  auto options = test::sized<smd_runtime_options>();
  options.cache_directory = "";
  smd_runtime *runtime = nullptr;
  const smd_status status = smd_runtime_create(&options, &runtime);
  CHECK_EQUAL(status, expected);
  smd_runtime_destroy(runtime);
  return status == SMD_OK ? "" : smd_last_error();
}

/// A function of the toy provider, which the library has loaded.
int toy(const char *name) {
  void *library = dlopen((folder() + "/good/toy_provider.so").c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (!library) return -1;
  return reinterpret_cast<int (*)()>(dlsym(library, name))();
}

/// The X plugin has an older FFI than the toy is built for, and must say so.
bool ffi_is_too_old() {
  const Runtime runtime;
  auto info = test::sized<smd_runtime_info>();
  test::require_ok(smd_runtime_get_info(runtime.handle, &info));
  CHECK_EQUAL(info.ffi_major, 0);
  return info.ffi_minor < 3;
}

/// Evaluates one owned atom with one neighbour; the toys double its energy.
double evaluate(Model &model) {
  auto size = test::sized<smd_graph_size>();
  size.nodes[0] = 2;
  size.edges[0] = 1;
  const smd_graph graph = model.reserve(size);
  graph.species[0] = graph.species[1] = 0;
  graph.centers[0] = 0;
  graph.neighbors[0] = 1;
  auto *vector = static_cast<float *>(graph.vectors);
  vector[0] = vector[1] = vector[2] = 0;
  return static_cast<const float *>(model.evaluate().node_energy)[0];
}

}  // namespace

TEST(a_target_that_nobody_registered) {
  set_path("");
  const Runtime runtime;
  smd_model *model = nullptr;
  CHECK_EQUAL(smd_model_load(runtime.handle, test::bundle_path("toy_staged").c_str(), &model), SMD_ERROR_PROVIDER);
  CHECK(model == nullptr);
  CHECK_CONTAINS(smd_last_error(), "`toy_staged`");
  CHECK_CONTAINS(smd_last_error(), "STABLEMD_FFI_PATH");
  CHECK_CONTAINS(smd_last_error(), "/ffi");
}

TEST(a_path_that_does_not_exist) {
  set_path("/nonexistent/provider.so");
  CHECK_CONTAINS(runtime_error(SMD_ERROR_PROVIDER), "/nonexistent/provider.so does not exist");
}

TEST(a_link_to_nothing) {
  const std::string links = "test_provider_links";
  std::filesystem::remove_all(links);
  std::filesystem::create_directory(links);
  std::filesystem::create_symlink("/nonexistent/provider.so", links + "/provider.so");
  set_path(links);
  CHECK_CONTAINS(runtime_error(SMD_ERROR_PROVIDER), links + "/provider.so: cannot be loaded: No such file");
}

TEST(a_library_that_is_no_provider) {
  set_path(folder() + "/none/no_provider.so");
  CHECK_CONTAINS(runtime_error(SMD_ERROR_PROVIDER), "no_provider.so: not an FFI provider");
  set_path(folder() + "/none");
  const Runtime runtime;
  int mentioned = 0;
  for (const auto &line : runtime.log) mentioned += line.line.find("no_provider.so: skipped") != std::string::npos;
  CHECK_EQUAL(mentioned, 1);
  CHECK_EQUAL(runtime.warnings(), 0);
}

TEST(a_file_that_is_no_library) {
  set_path(test::bundle_path("toy_staged"));
  CHECK_CONTAINS(runtime_error(SMD_ERROR_PROVIDER), "toy_staged.safetensors: FFI provider cannot be loaded");
}

TEST(a_provider_that_throws) {
  set_path(folder() + "/throws");
  CHECK_CONTAINS(runtime_error(SMD_ERROR_PROVIDER),
                 "throwing_provider.so: RegisterFFi threw an exception: thrown on purpose");
}

TEST(a_provider_that_fails) {
  set_path(folder() + "/fails");
  CHECK_CONTAINS(runtime_error(SMD_ERROR_PROVIDER), "failing_provider.so: RegisterFFi failed with code 3");
}

TEST(a_provider_that_fails_and_says_why) {
  set_path(folder() + "/reasons");
  CHECK_CONTAINS(runtime_error(SMD_ERROR_PROVIDER), "reasoning_provider.so: no good on Host");
}

TEST(a_provider_that_is_too_new) {
  set_path("");
  if (!ffi_is_too_old()) return;
  set_path(folder() + "/good");
  CHECK_CONTAINS(runtime_error(SMD_ERROR_PROVIDER), "toy_provider.so: RegisterFFi failed with code 1");
  std::exit(check::failures ? EXIT_FAILURE : EXIT_SUCCESS);  // nothing below can run on this plugin
}

TEST(a_staged_provider) {
  set_path(folder() + "/good");
  {
    const Runtime runtime, second;
    auto info = test::sized<smd_runtime_info>();
    test::require_ok(smd_runtime_get_info(runtime.handle, &info));
    CHECK_EQUAL(info.provider_count, 1);
    CHECK_EQUAL(toy("toy_registered"), 1);
    Model model(runtime, test::bundle_path("toy_staged"));
    CHECK_EQUAL(toy("toy_instantiated"), 0);
    CHECK_EQUAL(evaluate(model), 2.0);
    CHECK_EQUAL(evaluate(model), 2.0);
    CHECK_EQUAL(toy("toy_instantiated"), 1);
    CHECK_EQUAL(toy("toy_executed"), 2);
    Model other(runtime, test::bundle_path("toy_staged"));  // shares the program
    CHECK_EQUAL(evaluate(other), 2.0);
    CHECK_EQUAL(toy("toy_instantiated"), 1);
    CHECK_EQUAL(toy("toy_destroyed"), 0);
  }
  CHECK_EQUAL(toy("toy_destroyed"), 1);
}

TEST(a_staged_provider_from_the_cache) {
  set_path(folder() + "/good");
  const std::string cache = "test_provider_cache";
  std::filesystem::remove_all(cache);
  const int before = toy("toy_instantiated");
  for (int64_t hits = 0; hits < 2; ++hits) {
    const Runtime runtime(cache);
    Model model(runtime, test::bundle_path("toy_staged"));
    CHECK_EQUAL(evaluate(model), 2.0);
    CHECK_EQUAL(model.stats().cache_hits, hits);
    CHECK_EQUAL(model.stats().compilations, 1 - hits);
  }
  CHECK_EQUAL(toy("toy_instantiated"), before + 2);
  CHECK_EQUAL(toy("toy_destroyed"), toy("toy_instantiated"));
}

TEST(a_provider_without_stages) {
  set_path(folder() + "/good/toy_provider.so");
  const Runtime runtime;
  Model model(runtime, test::bundle_path("toy_plain"));
  CHECK_EQUAL(evaluate(model), 2.0);
}

TEST(a_handler_that_fails) {
  set_path(folder() + "/none:" + folder() + "/good");
  const Runtime runtime;
  Model model(runtime, test::bundle_path("toy_fail"));
  auto size = test::sized<smd_graph_size>();
  model.reserve(size);
  for (int i = 0; i < 2; ++i) {
    auto result = test::sized<smd_result>();
    CHECK_EQUAL(smd_model_evaluate(model.handle, &result), SMD_ERROR_EXECUTION);
    CHECK_CONTAINS(smd_last_error(), "the toy was told to fail");
  }
  Model working(runtime, test::bundle_path("toy_plain"));
  CHECK_EQUAL(evaluate(working), 2.0);
}

CHECK_MAIN
