// SPDX-License-Identifier: BSD-3-Clause
// The C interface: checks pointers and struct sizes, and turns every exception into a status and a line.
#include "stablemd.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "error.h"
#include "escape.h"
#include "model.h"
#include "runtime.h"

struct smd_runtime {
  std::shared_ptr<stablemd::Runtime> runtime;
  std::string platform, platform_version;
  const XLA_FFI_Api *ffi;
};

struct smd_model {
  stablemd::Model model;
  std::vector<const char *> elements;
  std::vector<const char *> output_names, output_units;
  std::vector<int32_t> output_widths;
  std::vector<const char *> input_names;
  std::vector<double> input_defaults, input_minima, input_maxima;
  std::vector<int32_t> input_integer;

  smd_model(std::shared_ptr<stablemd::Runtime> runtime, const char *path) : model(std::move(runtime), path) {
    for (const std::string &element : model.manifest().elements) elements.push_back(element.c_str());
    for (const stablemd::NodeOutput &output : model.manifest().node_outputs) {
      output_names.push_back(output.name.c_str());
      output_units.push_back(output.unit.c_str());
      output_widths.push_back(output.width);
    }
    for (const stablemd::GraphInput &input : model.manifest().graph_inputs) {
      input_names.push_back(input.name.c_str());
      input_defaults.push_back(input.initial);
      input_minima.push_back(input.minimum);
      input_maxima.push_back(input.maximum);
      input_integer.push_back(input.integer);
    }
  }
};

namespace {

using stablemd::fail;

constexpr size_t kLongestLine = 4096;
thread_local char last_error[kLongestLine];  // not a string: keeping "out of memory" must not need memory

/// Names from a file may hold anything.
smd_status keep_error(smd_status status, const char *prefix, const char *line) {
  const size_t begun = std::strlen(prefix);
  std::memcpy(last_error, prefix, begun);
  stablemd::escape_into(last_error + begun, sizeof last_error - begun, line);
  return status;
}

/// Runs the body of a function of the C interface; nothing escapes it.
template <class Body>
smd_status guarded(Body body) noexcept {
  try {
    body();
    return SMD_OK;
  } catch (const stablemd::Error &error) {
    return keep_error(error.status, "", error.what());
  } catch (const std::bad_alloc &) {
    return keep_error(SMD_ERROR_MEMORY, "", "out of memory");
  } catch (const std::exception &error) {
    return keep_error(SMD_ERROR_INTERNAL, "defect of libstablemd: ", error.what());
  } catch (...) {
    return keep_error(SMD_ERROR_INTERNAL, "defect of libstablemd: ", "unknown exception");
  }
}

void require(const void *pointer, const char *name) {
  if (!pointer) fail(SMD_ERROR_ARGUMENT, name, " is NULL");
}

template <class Struct>
size_t checked_size(const Struct *given, const char *name) {
  require(given, name);
  if (given->struct_size <= sizeof given->struct_size) {
    fail(SMD_ERROR_ARGUMENT, name, "->struct_size is ", given->struct_size, ": set it to sizeof the struct");
  }
  return std::min(given->struct_size, sizeof(Struct));
}

/// The caller's struct; members that an older caller does not know are zero.
template <class Struct>
Struct read_struct(const Struct *given, const char *name) {
  Struct result{};
  std::memcpy(&result, given, checked_size(given, name));
  return result;
}

/// Writes what the caller's struct has room for, and leaves its size as it is.
template <class Struct>
void write_struct(Struct *given, Struct value, const char *name) {
  const size_t size = checked_size(given, name);
  value.struct_size = given->struct_size;
  std::memcpy(given, &value, size);
}

std::string or_empty(const char *string) { return string ? string : ""; }

stablemd::RuntimeOptions runtime_options(const smd_runtime_options *given) {
  const smd_runtime_options raw = read_struct(given, "options");
  stablemd::RuntimeOptions options;
  if (raw.device) options.device = raw.device;
  options.plugin = or_empty(raw.plugin);
  options.threads = raw.threads;
  options.ordinal = raw.device_ordinal;
  options.cache_directory = raw.cache_directory ? raw.cache_directory : stablemd::default_cache_directory();
  options.cache_limit = stablemd::cache_limit();
  options.log = stablemd::Log(raw.log, raw.log_user);
  return options;
}

}  // namespace

extern "C" {

const char *smd_last_error(void) { return last_error; }

uint32_t smd_api_version(void) { return SMD_API_MAJOR << 16 | SMD_API_MINOR; }

smd_status smd_runtime_create(const smd_runtime_options *options, smd_runtime **runtime) {
  return guarded([&] {
    require(runtime, "runtime");
    *runtime = nullptr;
    auto created = std::make_unique<smd_runtime>();
    created->runtime = std::make_shared<stablemd::Runtime>(runtime_options(options));
    const stablemd::Client &client = created->runtime->client();
    created->platform = client.platform();
    created->platform_version = client.platform_version();
    created->ffi = stablemd::ffi_api(client.plugin());
    *runtime = created.release();
  });
}

void smd_runtime_destroy(smd_runtime *runtime) {
  guarded([&] { delete runtime; });
}

smd_status smd_runtime_get_info(const smd_runtime *runtime, smd_runtime_info *info) {
  return guarded([&] {
    require(runtime, "runtime");
    const stablemd::Plugin &plugin = runtime->runtime->client().plugin();
    smd_runtime_info value{};
    value.platform = runtime->platform.c_str();
    value.platform_version = runtime->platform_version.c_str();
    value.plugin_path = plugin.path().c_str();
    value.pjrt_major = plugin.major();
    value.pjrt_minor = plugin.minor();
    value.ffi_major = runtime->ffi ? runtime->ffi->api_version.major_version : -1;
    value.ffi_minor = runtime->ffi ? runtime->ffi->api_version.minor_version : -1;
    value.threads = runtime->runtime->threads();
    value.provider_count = runtime->runtime->providers().count();
    write_struct(info, value, "info");
  });
}

const char *smd_cache_directory(void) {
  thread_local std::string directory;
  return guarded([&] { directory = stablemd::default_cache_directory(); }) == SMD_OK ? directory.c_str() : "";
}

smd_status smd_cache_limit(uint64_t *bytes) {
  return guarded([&] {
    require(bytes, "bytes");
    *bytes = stablemd::cache_limit();
  });
}

smd_status smd_model_load(smd_runtime *runtime, const char *path, smd_model **model) {
  return guarded([&] {
    require(model, "model");
    *model = nullptr;
    require(runtime, "runtime");
    require(path, "path");
    *model = std::make_unique<smd_model>(runtime->runtime, path).release();
  });
}

void smd_model_destroy(smd_model *model) {
  guarded([&] { delete model; });
}

smd_status smd_model_get_info(const smd_model *model, smd_model_info *info) {
  return guarded([&] {
    require(model, "model");
    const stablemd::Manifest &manifest = model->model.manifest();
    smd_model_info value{};
    value.cutoff = manifest.cutoff;
    value.layers = manifest.layers;
    value.dtype = manifest.dtype();
    value.element_count = static_cast<int32_t>(model->elements.size());
    value.elements = model->elements.data();
    value.atomic_energies = manifest.atomic_energies.data();
    value.energy_unit = manifest.energy_unit.c_str();
    value.length_unit = manifest.length_unit.c_str();
    value.manifest = manifest.json.c_str();
    value.output_count = static_cast<int32_t>(model->output_names.size());
    value.output_names = model->output_names.data();
    value.output_units = model->output_units.data();
    value.output_widths = model->output_widths.data();
    value.input_count = static_cast<int32_t>(model->input_names.size());
    value.input_names = model->input_names.data();
    value.input_defaults = model->input_defaults.data();
    value.input_minima = model->input_minima.data();
    value.input_maxima = model->input_maxima.data();
    value.input_integer = model->input_integer.data();
    write_struct(info, value, "info");
  });
}

smd_status smd_model_reserve(smd_model *model, const smd_graph_size *size, smd_graph *graph) {
  return guarded([&] {
    require(model, "model");
    checked_size(graph, "graph");
    smd_graph value{};
    model->model.reserve(read_struct(size, "size"), value);
    write_struct(graph, value, "graph");
  });
}

smd_status smd_model_set_input(smd_model *model, const char *name, double value) {
  return guarded([&] {
    require(model, "model");
    require(name, "name");
    model->model.set_input(name, value);
  });
}

smd_status smd_model_evaluate(smd_model *model, smd_result *result) {
  return guarded([&] {
    require(model, "model");
    checked_size(result, "result");
    smd_result value{};
    model->model.evaluate(value);
    write_struct(result, value, "result");
  });
}

smd_status smd_model_get_stats(const smd_model *model, smd_model_stats *stats) {
  return guarded([&] {
    require(model, "model");
    smd_model_stats value{};
    model->model.get_stats(value);
    write_struct(stats, value, "stats");
  });
}

}  // extern "C"
