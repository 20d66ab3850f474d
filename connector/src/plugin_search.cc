// SPDX-License-Identifier: BSD-3-Clause
#include "plugin_search.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "error.h"

namespace stablemd {
namespace {

namespace fs = std::filesystem;

struct KnownPlugins {
  std::vector<const char *> paths;  // inside site-packages, best first
  const char *package;              // to install where none is found
};

KnownPlugins known_plugins(const std::string &device) {
  if (device == "cuda") {
    return {{"jax_plugins/xla_cuda13/xla_cuda_plugin.so", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"},
            "jax-cuda13-pjrt"};
  }
  return {{"lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so", "fastatomstruct_xla_cpu/libpjrt_cpu.so",
           "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"},
          "lammps-jax-pjrt-cpu"};
}

/// The first known plugin in the nearest folder above this library that holds any; "" if there is none.
std::string installed_plugin(const KnownPlugins &known) {
  std::error_code ignored;
  for (fs::path folder = library_folder(); folder.has_relative_path(); folder = folder.parent_path()) {
    for (const char *path : known.paths) {
      if (fs::is_regular_file(folder / path, ignored)) return folder / path;
    }
  }
  return "";
}

}  // namespace

std::string library_folder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void *>(&library_folder), &info) == 0 || !info.dli_fname) return "";
  std::error_code failure;
  const fs::path path = fs::canonical(info.dli_fname, failure);
  return failure ? "" : path.parent_path().string();
}

std::string find_plugin(const std::string &device, const std::string &chosen) {
  if (!chosen.empty()) return chosen;
  const char *environment = std::getenv("STABLEMD_PJRT_PLUGIN");
  if (environment && *environment) return environment;
  const KnownPlugins known = known_plugins(device);
  const std::string found = installed_plugin(known);
  if (!found.empty()) return found;
  std::string searched;
  for (const char *path : known.paths) searched += (searched.empty() ? "" : ", ") + std::string(path);
  fail(SMD_ERROR_PLUGIN, "no PJRT plugin for device `", device,
       "`: STABLEMD_PJRT_PLUGIN is not set, and no folder above ", library_folder(), " holds ", searched,
       ": run `pip install ", known.package, "` there, or set STABLEMD_PJRT_PLUGIN to the path of a plugin");
}

}  // namespace stablemd
