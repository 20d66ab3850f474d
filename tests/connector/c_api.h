// SPDX-License-Identifier: BSD-3-Clause
// Owners of the C interface's objects, and what the tests' environment gives them.
#pragma once

#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "stablemd.h"

namespace test {

inline void require_ok(smd_status status) {
  if (status != SMD_OK) throw std::runtime_error("status " + std::to_string(status) + ": " + smd_last_error());
}

/// A member of a struct that begins with its size.
template <class Struct>
Struct sized() {
  Struct value{};
  value.struct_size = sizeof value;
  return value;
}

struct LogLine {
  smd_log_level level;
  std::string line;
};

/// For logs of type std::vector<LogLine>; models in several threads may share one.
inline void keep_line(smd_log_level level, const char *line, void *lines) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  static_cast<std::vector<LogLine> *>(lines)->push_back({level, line});
}

inline std::string environment(const char *name) {
  const char *value = getenv(name);
  return value ? value : "";
}

/// A bundle that make_bundles.py wrote.
inline std::string bundle_path(const std::string &name) {
  return environment("STABLEMD_TEST_BUNDLES") + "/" + name + ".safetensors";
}

class Runtime {
 public:
  explicit Runtime(const std::string &cache = "", int threads = 1) {
    auto options = sized<smd_runtime_options>();
    options.cache_directory = cache.c_str();
    options.threads = threads;
    options.log = keep_line;
    options.log_user = &log;
    require_ok(smd_runtime_create(&options, &handle));
  }
  Runtime(const Runtime &) = delete;
  Runtime &operator=(const Runtime &) = delete;
  ~Runtime() { smd_runtime_destroy(handle); }

  int warnings() const {
    int count = 0;
    for (const LogLine &line : log) count += line.level == SMD_LOG_WARNING;
    return count;
  }

  std::vector<LogLine> log;
  smd_runtime *handle = nullptr;
};

class Model {
 public:
  Model(const Runtime &runtime, const std::string &path) {
    require_ok(smd_model_load(runtime.handle, path.c_str(), &handle));
  }
  Model(const Model &) = delete;
  Model &operator=(const Model &) = delete;
  ~Model() { smd_model_destroy(handle); }

  smd_model_info info() const {
    auto value = sized<smd_model_info>();
    require_ok(smd_model_get_info(handle, &value));
    return value;
  }

  smd_model_stats stats() const {
    auto value = sized<smd_model_stats>();
    require_ok(smd_model_get_stats(handle, &value));
    return value;
  }

  smd_graph reserve(const smd_graph_size &size) {
    auto graph = sized<smd_graph>();
    require_ok(smd_model_reserve(handle, &size, &graph));
    return graph;
  }

  smd_result evaluate() {
    auto result = sized<smd_result>();
    require_ok(smd_model_evaluate(handle, &result));
    return result;
  }

  smd_model *handle = nullptr;
};

}  // namespace test
