// SPDX-License-Identifier: BSD-3-Clause
#include "providers.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "pjrt_ffi_extension.h"
#include "plugin_search.h"

namespace stablemd {
namespace {

namespace fs = std::filesystem;

const FfiExtension *find_extension(const PJRT_Api &api) {
  for (const PJRT_Extension_Base *at = api.extension_start; at; at = at->next) {
    if (raw_value(at->type) == PJRT_Extension_Type_FFI) return reinterpret_cast<const FfiExtension *>(at);
  }
  return nullptr;
}

// ---- capture of the interface --------------------------------------------------------------------------------------

const XLA_FFI_Api *captured = nullptr;  // guarded by registry_mutex()

/// XLA asks every new handler for its metadata at once, with a call frame that holds the interface. Refusing the
/// question leaves no target behind.
XLA_FFI_Error *capture_handler(XLA_FFI_CallFrame *frame) {
  captured = frame->api;
  XLA_FFI_Error_Create_Args args{};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = "only the interface was wanted";
  args.errc = XLA_FFI_Error_Code_CANCELLED;
  return frame->api->XLA_FFI_Error_Create(&args);
}

const XLA_FFI_Api *capture_api(const Plugin &plugin) {
  using GetPluginApi = const XLA_FFI_Api *();
  if (const auto get = reinterpret_cast<GetPluginApi *>(dlsym(plugin.library(), "XLA_FFI_GetPluginApi"))) return get();
  const FfiExtension *extension = find_extension(plugin.api());
  if (!extension || !extension->register_handler) return nullptr;
  static const std::string target = "stablemd_interface";
  static const std::string platform = "Host";
  captured = nullptr;
  RegisterHandlerArgs args{};
  args.struct_size = sizeof args;
  args.target_name = target.data();
  args.target_name_size = target.size();
  args.handler = reinterpret_cast<void *>(&capture_handler);
  args.platform_name = platform.data();
  args.platform_name_size = platform.size();
  try {
    check(plugin.api(), extension->register_handler(&args), SMD_ERROR_PROVIDER, "FFI interface");
  } catch (const Error &) {
    // Our own refusal; some plugins report it.
  }
  return std::exchange(captured, nullptr);
}

// ---- which targets are registered ----------------------------------------------------------------------------------

/// What is known about one plugin. Providers get a copy of the plugin's interface whose registration slot notes the
/// name and passes the call on; a C function has no context, so each plugin has a function of its own.
struct Registry {
  const XLA_FFI_Api *original = nullptr;
  std::vector<char> copy;  // as long as the plugin says, which may be longer than our header knows
  std::set<std::string> targets;
  std::set<std::string> libraries;
  std::mutex targets_mutex;

  const XLA_FFI_Api *recording() const { return reinterpret_cast<const XLA_FFI_Api *>(copy.data()); }
};

constexpr size_t kMostPlugins = 8;
std::array<Registry, kMostPlugins> registries;

std::mutex &registry_mutex() {
  static std::mutex mutex;
  return mutex;
}

template <size_t Slot>
XLA_FFI_Error *record_and_register(XLA_FFI_Handler_Register_Args *args) {
  Registry &registry = registries[Slot];
  XLA_FFI_Error *error = registry.original->XLA_FFI_Handler_Register(args);
  if (!error) {
    const std::lock_guard<std::mutex> lock(registry.targets_mutex);
    registry.targets.emplace(args->name.ptr, args->name.len);
  }
  return error;
}

template <size_t... Slots>
constexpr std::array<XLA_FFI_Handler_Register *, kMostPlugins> recorders(std::index_sequence<Slots...>) {
  return {&record_and_register<Slots>...};
}

void open_registry(const Plugin &plugin, size_t slot) {
  Registry &registry = registries[slot];
  registry.original = capture_api(plugin);
  if (!registry.original) return;
  const char *bytes = reinterpret_cast<const char *>(registry.original);
  registry.copy.assign(bytes, bytes + registry.original->struct_size);
  auto *copy = reinterpret_cast<XLA_FFI_Api *>(registry.copy.data());
  copy->XLA_FFI_Handler_Register = recorders(std::make_index_sequence<kMostPlugins>())[slot];
}

/// Call with registry_mutex() held.
Registry &registry_of(const Plugin &plugin) {
  static std::map<const Plugin *, size_t> slots;
  const auto found = slots.find(&plugin);
  if (found != slots.end()) return registries[found->second];
  const size_t slot = slots.size();
  if (slot == kMostPlugins) fail(SMD_ERROR_PLUGIN, "more than ", kMostPlugins, " PJRT plugins in one process");
  open_registry(plugin, slot);
  slots.emplace(&plugin, slot);
  return registries[slot];
}

// ---- provider libraries --------------------------------------------------------------------------------------------

using RegisterFfi = int(const XLA_FFI_Api *, const char *platform);

/// What a provider may export as well: the line that the other prints comes back in `reason`.
using RegisterFfiWithReason = int(const XLA_FFI_Api *, const char *platform, char *reason, size_t size);

struct Library {
  fs::path path;
  bool named;  // by the user as a file, so that it must be a provider
};

std::vector<Library> libraries_in(const fs::path &folder) {
  std::vector<Library> libraries;
  std::error_code failure;
  for (fs::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure)) {
    if (at->path().extension() == ".so") libraries.push_back({at->path(), false});
  }
  if (failure) fail(SMD_ERROR_PROVIDER, folder.string(), ": cannot be searched for FFI providers: ", failure.message());
  std::sort(libraries.begin(), libraries.end(), [](const Library &a, const Library &b) { return a.path < b.path; });
  return libraries;
}

std::vector<std::string> split(const std::string &list, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

/// What $STABLEMD_FFI_PATH lists.
std::vector<Library> libraries_on_path(const std::string &path) {
  std::vector<Library> libraries;
  for (const std::string &entry : split(path, ':')) {
    std::error_code failure;
    if (fs::is_directory(entry, failure)) {
      const std::vector<Library> more = libraries_in(entry);
      libraries.insert(libraries.end(), more.begin(), more.end());
    } else if (fs::exists(entry, failure)) {
      libraries.push_back({entry, true});
    } else {
      fail(SMD_ERROR_PROVIDER, "STABLEMD_FFI_PATH: ", entry, " does not exist");
    }
  }
  return libraries;
}

/// "": it succeeded.
std::string registration_failure(void *library, const XLA_FFI_Api *api, const char *platform) {
  char reason[1024] = "";
  int code = 0;
  if (const auto with_reason = reinterpret_cast<RegisterFfiWithReason *>(dlsym(library, "RegisterFFiWithReason"))) {
    code = with_reason(api, platform, reason, sizeof reason);
  } else {
    code = reinterpret_cast<RegisterFfi *>(dlsym(library, "RegisterFFi"))(api, platform);
  }
  if (code == 0) return "";
  if (*reason) return reason;
  return text("RegisterFFi failed with code ", code, " on platform ", platform, "; the plugin's FFI version is ",
              api->api_version.major_version, ".", api->api_version.minor_version);
}

void call_provider(void *library, const XLA_FFI_Api *api, const char *platform, const std::string &name) {
  std::string failure;
  try {
    failure = registration_failure(library, api, platform);
  } catch (const std::exception &error) {
    fail(SMD_ERROR_PROVIDER, name, ": RegisterFFi threw an exception: ", error.what());
  } catch (...) {
    fail(SMD_ERROR_PROVIDER, name, ": RegisterFFi threw an exception");
  }
  if (!failure.empty()) fail(SMD_ERROR_PROVIDER, name, ": ", failure);
}

/// Whether the library is a provider.
bool load_library(Registry &registry, const Library &library, const std::string &device,
                  const Providers::LogInfo &log_info) {
  std::error_code failure;
  const std::string name = fs::canonical(library.path, failure).string();
  if (failure) fail(SMD_ERROR_PROVIDER, library.path.string(), ": cannot be loaded: ", failure.message());
  if (registry.libraries.count(name)) return true;
  void *handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) fail(SMD_ERROR_PROVIDER, name, ": FFI provider cannot be loaded: ", dlerror());
  if (!dlsym(handle, "RegisterFFi")) {
    dlclose(handle);
    if (library.named) fail(SMD_ERROR_PROVIDER, name, ": not an FFI provider (it does not export RegisterFFi)");
    log_info(name + ": skipped, it exports no RegisterFFi");
    return false;
  }
  if (!registry.original) fail(SMD_ERROR_PROVIDER, name, ": the PJRT plugin has no FFI extension for this provider");
  call_provider(handle, registry.recording(), device == "cpu" ? "Host" : "CUDA", name);
  registry.libraries.insert(name);
  return true;
}

/// Whether some provider has registered this target with the plugin.
bool is_registered(const Plugin &plugin, const std::string &target) {
  const std::lock_guard<std::mutex> lock(registry_mutex());
  Registry &registry = registry_of(plugin);
  const std::lock_guard<std::mutex> targets_lock(registry.targets_mutex);
  return registry.targets.count(target) > 0;
}

}  // namespace

const XLA_FFI_Api *ffi_api(const Plugin &plugin) {
  const std::lock_guard<std::mutex> lock(registry_mutex());
  return registry_of(plugin).original;
}

Providers::Providers(const Plugin &plugin, const std::string &device, LogInfo log_info)
    : plugin_(plugin), device_(device), log_info_(std::move(log_info)) {
  const char *variable = std::getenv("STABLEMD_FFI_PATH");
  const std::string path = variable ? variable : "";
  searched_ = "STABLEMD_FFI_PATH=" + path;
  const std::lock_guard<std::mutex> lock(registry_mutex());
  Registry &registry = registry_of(plugin_);
  for (const Library &library : libraries_on_path(path)) count_ += load_library(registry, library, device_, log_info_);
}

bool Providers::provide(const std::string &target) {
  if (is_registered(plugin_, target)) return true;
  load_own();
  return is_registered(plugin_, target);
}

void Providers::load_own() {
  const std::lock_guard<std::mutex> own_lock(mutex_);
  if (own_loaded_) return;
  own_loaded_ = true;
  const fs::path folder = fs::path(library_folder()) / "ffi";
  searched_ += ", " + folder.string();
  std::error_code failure;
  if (!fs::is_directory(folder, failure)) return;
  const std::lock_guard<std::mutex> lock(registry_mutex());
  Registry &registry = registry_of(plugin_);
  for (const Library &library : libraries_in(folder)) {
    try {
      count_ += load_library(registry, library, device_, log_info_);
    } catch (const Error &error) {
      failure_ = error.what();  // of interest to whoever lacks a target
    }
  }
}

int Providers::count() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return count_;
}

std::string Providers::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

std::string Providers::searched() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return searched_;
}

}  // namespace stablemd
