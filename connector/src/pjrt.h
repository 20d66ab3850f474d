// SPDX-License-Identifier: BSD-3-Clause
// The PJRT C interface with owned handles; every error becomes an exception.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dtype.h"
#include "error.h"
#include "pjrt_c_api.h"

namespace stablemd {

/// Arguments of a PJRT function, zeroed and sized.
template <class Args>
Args pjrt_args() {
  Args args;
  std::memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  return args;
}

/// The number in an enum that a newer plugin may have set to something our header does not know.
template <class Enum>
int raw_value(const Enum &value) {
  int raw;
  static_assert(sizeof raw == sizeof value);
  std::memcpy(&raw, &value, sizeof raw);
  return raw;
}

/// Throws the error, if any, and frees it. `what` was being done; out of memory becomes SMD_ERROR_MEMORY.
void check(const PJRT_Api &api, PJRT_Error *error, smd_status status, const std::string &what);

/// A PJRT library, loaded for the rest of the process: XLA does not survive being unloaded.
class Plugin {
 public:
  /// Loads and initializes it once per process. Throws Error(SMD_ERROR_PLUGIN).
  static const Plugin &load(const std::string &path);

  const std::string &path() const { return path_; }
  const PJRT_Api &api() const { return *api_; }
  void *library() const { return library_; }
  int major() const { return api_->pjrt_api_version.major_version; }
  int minor() const { return api_->pjrt_api_version.minor_version; }

  /// Such as "1.20.0"; "" where the plugin does not tell.
  std::string stablehlo_version() const;

 private:
  explicit Plugin(const std::string &path);

  std::string path_;
  void *library_;
  const PJRT_Api *api_;
};

template <class Handle, class Args, Handle *Args::*Member, class Function, Function *PJRT_Api::*Destroy>
struct PjrtDeleter {
  const PJRT_Api *api = nullptr;
  void operator()(Handle *handle) const {
    auto args = pjrt_args<Args>();
    args.*Member = handle;
    PJRT_Error *error = (api->*Destroy)(&args);
    if (!error) return;
    auto free_error = pjrt_args<PJRT_Error_Destroy_Args>();
    free_error.error = error;
    api->PJRT_Error_Destroy(&free_error);
  }
};

using BufferHandle =
    std::unique_ptr<PJRT_Buffer, PjrtDeleter<PJRT_Buffer, PJRT_Buffer_Destroy_Args, &PJRT_Buffer_Destroy_Args::buffer,
                                             PJRT_Buffer_Destroy, &PJRT_Api::PJRT_Buffer_Destroy>>;
using EventHandle =
    std::unique_ptr<PJRT_Event, PjrtDeleter<PJRT_Event, PJRT_Event_Destroy_Args, &PJRT_Event_Destroy_Args::event,
                                            PJRT_Event_Destroy, &PJRT_Api::PJRT_Event_Destroy>>;
using ClientHandle =
    std::unique_ptr<PJRT_Client, PjrtDeleter<PJRT_Client, PJRT_Client_Destroy_Args, &PJRT_Client_Destroy_Args::client,
                                             PJRT_Client_Destroy, &PJRT_Api::PJRT_Client_Destroy>>;
using ExecutableHandle =
    std::unique_ptr<PJRT_LoadedExecutable,
                    PjrtDeleter<PJRT_LoadedExecutable, PJRT_LoadedExecutable_Destroy_Args,
                                &PJRT_LoadedExecutable_Destroy_Args::executable, PJRT_LoadedExecutable_Destroy,
                                &PJRT_Api::PJRT_LoadedExecutable_Destroy>>;

struct OutputShape {
  int type;  // a PJRT_Buffer_Type
  std::vector<int64_t> dimensions;
};

class Client;

/// A program ready to run.
class Executable {
 public:
  Executable(std::shared_ptr<const Client> client, ExecutableHandle handle);

  const std::vector<OutputShape> &outputs() const { return outputs_; }

  /// Runs the program and waits for it.
  std::vector<BufferHandle> execute(const std::vector<PJRT_Buffer *> &arguments) const;

  /// Throws Error where the plugin cannot.
  std::string serialize() const;

 private:
  std::shared_ptr<const Client> client_;
  ExecutableHandle handle_;
  std::vector<OutputShape> outputs_;
};

struct ClientOptions {
  std::string device;  // "cpu" or "cuda"
  int ordinal = 0;
  int threads = 0;  // 0: the plugin's choice
};

/// What a buffer may assume about the host memory that it is made from.
enum class HostMemory { copied, aliased };

/// One device of a plugin.
class Client : public std::enable_shared_from_this<Client> {
 public:
  static std::shared_ptr<Client> create(const Plugin &plugin, const ClientOptions &options);

  const Plugin &plugin() const { return plugin_; }
  const PJRT_Api &api() const { return plugin_.api(); }
  std::string platform() const;
  std::string platform_version() const;
  std::string device_kind() const;

  /// Compiles MLIR. Throws Error(SMD_ERROR_COMPILE).
  std::shared_ptr<const Executable> compile(const std::string &program) const;

  /// Throws Error where the bytes are no executable of this plugin.
  std::shared_ptr<const Executable> deserialize(std::string_view bytes) const;

  /// Aliased memory must outlive the buffer; whether the plugin really aliases it: see device_pointer().
  BufferHandle upload(const void *data, const ElementType &type, const std::vector<int64_t> &shape,
                      HostMemory memory) const;

  /// Address of a buffer's contents, in the device's memory.
  const void *device_pointer(PJRT_Buffer *buffer) const;

  void download(PJRT_Buffer *buffer, void *data, size_t bytes) const;

  void await(PJRT_Event *event, smd_status status, const std::string &what) const;

 private:
  Client(const Plugin &plugin, const ClientOptions &options);

  const Plugin &plugin_;
  ClientHandle handle_;
  PJRT_Device *device_;
};

}  // namespace stablemd
