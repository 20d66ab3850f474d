// SPDX-License-Identifier: BSD-3-Clause
// What the library finds around itself when it lies in a site-packages folder: plugins of known packages, providers.
#include <dlfcn.h>

#include <filesystem>

#include "c_api.h"
#include "check.h"

namespace {

namespace fs = std::filesystem;

const fs::path kProviders = test::environment("STABLEMD_TEST_PROVIDERS");
const fs::path kOldPlugin = kProviders / "plugins/old_plugin.so";  // refused by a line that names its path

/// A folder as pip makes it, with a copy of the library inside.
class SitePackages {
 public:
  explicit SitePackages(const std::string &name) : folder_(fs::absolute("site_" + name)) {
    fs::remove_all(folder_);
    put(test::environment("STABLEMD_TEST_LIBRARY"), "stablemd/lib/libstablemd.so");
  }
  ~SitePackages() { fs::remove_all(folder_); }

  void put(const fs::path &file, const fs::path &place) const {
    fs::create_directories((folder_ / place).parent_path());
    fs::copy_file(file, folder_ / place);
  }

  std::string path(const std::string &place) const { return (folder_ / place).string(); }

  /// What the copy says when it cannot make a runtime for this device.
  std::string complaint(const char *device, smd_status expected) const {
    void *library = dlopen(path("stablemd/lib/libstablemd.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error(dlerror());
    const auto create = reinterpret_cast<decltype(&smd_runtime_create)>(dlsym(library, "smd_runtime_create"));
    const auto last_error = reinterpret_cast<decltype(&smd_last_error)>(dlsym(library, "smd_last_error"));
    auto options = test::sized<smd_runtime_options>();
    options.device = device;
    options.cache_directory = "";
    smd_runtime *runtime = nullptr;
    CHECK_EQUAL(create(&options, &runtime), expected);
    return last_error();
  }

 private:
  const fs::path folder_;
};

/// Without the plugin of the environment.
struct NoPlugin {
  NoPlugin() { unsetenv("STABLEMD_PJRT_PLUGIN"); }
  ~NoPlugin() { setenv("STABLEMD_PJRT_PLUGIN", plugin.c_str(), 1); }
  const std::string plugin = test::environment("STABLEMD_PJRT_PLUGIN");
};

}  // namespace

TEST(known_packages_are_found_in_their_order) {
  const NoPlugin no_plugin;
  const SitePackages site("order");
  CHECK_CONTAINS(site.complaint("cpu", SMD_ERROR_PLUGIN), "no PJRT plugin for device `cpu`");
  for (const char *place : {"xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so", "fastatomstruct_xla_cpu/libpjrt_cpu.so",
                            "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"}) {
    site.put(kOldPlugin, place);
    CHECK_CONTAINS(site.complaint("cpu", SMD_ERROR_PLUGIN), site.path(place) + ": PJRT plugin of version 0.80");
  }
  for (const char *place : {"jax_plugins/xla_cuda12/xla_cuda_plugin.so", "jax_plugins/xla_cuda13/xla_cuda_plugin.so"}) {
    site.put(kOldPlugin, place);
    CHECK_CONTAINS(site.complaint("cuda", SMD_ERROR_PLUGIN), site.path(place) + ": PJRT plugin of version 0.80");
  }
}

TEST(the_environment_goes_before_packages) {
  const NoPlugin no_plugin;
  const SitePackages site("environment");
  site.put(kOldPlugin, "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so");
  setenv("STABLEMD_PJRT_PLUGIN", "/nonexistent/plugin.so", 1);
  CHECK_CONTAINS(site.complaint("cpu", SMD_ERROR_PLUGIN), "/nonexistent/plugin.so: no such PJRT plugin");
}

TEST(providers_beside_the_library_are_loaded) {
  const SitePackages site("providers");
  site.put(kProviders / "fails/failing_provider.so", "stablemd/lib/ffi/failing_provider.so");
  CHECK_CONTAINS(site.complaint("cpu", SMD_ERROR_PROVIDER),
                 site.path("stablemd/lib/ffi/failing_provider.so") + ": RegisterFFi failed with code 3");
}

CHECK_MAIN
