// SPDX-License-Identifier: BSD-3-Clause
//
// stablemd._oeq_native: the handler table of liboeq_native as JAX wants it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <string>

#include "oeq_native.h"

namespace nb = nanobind;

namespace {

/// The table; a Python error where this module and the library found at run time are of different versions.
const OeqFfiHandlerTable &table() {
  const OeqFfiHandlerTable *table = oeq_ffi_handler_table();
  if (table->abi_version != OEQ_FFI_ABI_VERSION) {
    const std::string message = "liboeq_native has a handler table of ABI version " +
                                std::to_string(table->abi_version) + ", this module knows " +
                                std::to_string(OEQ_FFI_ABI_VERSION) + ": reinstall stablemd";
    throw nb::import_error(message.c_str());
  }
  return *table;
}

/// "Host" for JAX's "cpu" and "CUDA" for its "cuda".
const char *table_platform(const std::string &platform) {
  if (platform == "cpu") return "Host";
  if (platform == "cuda") return "CUDA";
  const std::string message = "platform must be \"cpu\" or \"cuda\", is \"" + platform + "\"";
  throw nb::value_error(message.c_str());
}

void add_stage(nb::dict &stages, const char *name, void *handler) {
  if (handler != nullptr) stages[name] = nb::capsule(handler);
}

nb::dict registrations(const std::string &platform) {
  const char *wanted = table_platform(platform);
  nb::dict targets;
  for (uint32_t i = 0; i < table().handler_count; ++i) {
    const OeqFfiHandler &handler = table().handlers[i];
    if (std::strcmp(handler.platform, wanted) != 0) continue;
    nb::dict stages;
    add_stage(stages, "instantiate", handler.instantiate);
    add_stage(stages, "prepare", handler.prepare);
    add_stage(stages, "initialize", handler.initialize);
    add_stage(stages, "execute", handler.execute);
    targets[handler.name] = stages;
  }
  return targets;
}

nb::dict type_registrations() {
  nb::dict types;
  for (uint32_t i = 0; i < table().type_count; ++i) {
    const OeqFfiType &type = table().types[i];
    nb::dict registration;
    registration["type_id"] = nb::capsule(type.id);
    registration["type_info"] = nb::capsule(type.info);
    types[type.name] = registration;
  }
  return types;
}

nb::dict stats() {
  OeqStats s{};
  s.struct_size = sizeof(s);
  oeq_get_stats(&s);
  nb::dict d;
  d["records"] = s.records;
  d["requests"] = s.requests;
  d["compilations"] = s.compilations;
  d["memory_hits"] = s.memory_hits;
  d["disk_hits"] = s.disk_hits;
  d["failures"] = s.failures;
  d["waits"] = s.waits;
  d["compile_seconds"] = s.compile_seconds;
  d["wait_seconds"] = s.wait_seconds;
  return d;
}

std::string cache_directory() {
  char reason[1024];
  const char *directory = oeq_cache_directory(reason, sizeof reason);
  if (directory == nullptr) throw nb::value_error(reason);
  return directory;
}

}  // namespace

NB_MODULE(_oeq_native, m) {
  m.doc() = "FFI handlers of liboeq_native for JAX.";
  table();  // a library of another version is refused at import
  m.def("registrations", &registrations, nb::arg("platform"),
        "Handlers of a platform (\"cpu\" or \"cuda\") as {target: {stage: capsule}}, each value for "
        "jax.ffi.register_ffi_target; register the types first.");
  m.def("type_registrations", &type_registrations,
        "State types as {name: {\"type_id\": capsule, \"type_info\": capsule}}, each value for "
        "jax.ffi.register_ffi_type.");
  m.def("cache_directory", &cache_directory, "Folder of compiled kernels; '' if there is none.");
  m.def("stats", &stats, "What happened in this process so far: the members of OeqStats in oeq_native.h.");
}
