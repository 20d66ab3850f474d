// SPDX-License-Identifier: BSD-3-Clause
//
// The least of a PJRT host: loads a plugin, finds its XLA_FFI_Api, compiles and runs small programs. For tests and
// benchmarks.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "pjrt_c_api.h"
#include "xla/ffi/api/c_api.h"

namespace pjrt {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Zeroed arguments of a PJRT function, with their size set.
template <typename Args>
Args args() {
  Args zeroed;
  std::memset(static_cast<void *>(&zeroed), 0, sizeof(zeroed));
  zeroed.struct_size = sizeof(zeroed);
  return zeroed;
}

// PJRT's extension for FFI, by layout (pjrt_c_api_ffi_extension.h is in no small package).
struct RegisterHandlerArgs {
  size_t struct_size;
  const char *target_name;
  size_t target_name_size;
  void *handler;
  const char *platform_name;
  size_t platform_name_size;
  int traits;
};
struct FfiExtension {
  size_t struct_size;
  int type;
  void *next;
  void *type_register;
  void *user_data_add;
  PJRT_Error *(*register_handler)(RegisterHandlerArgs *);
};
constexpr int kFfiExtensionType = 5;

/// XLA calls a handler once when it is registered and shows it its API; refusing keeps the probe out of the registry.
inline const XLA_FFI_Api *probed_api = nullptr;
inline XLA_FFI_Error *probe(XLA_FFI_CallFrame *frame) {
  probed_api = frame->api;
  XLA_FFI_Error_Create_Args create{};
  create.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  create.message = "only looking";
  create.errc = XLA_FFI_Error_Code_CANCELLED;
  return frame->api->XLA_FFI_Error_Create(&create);
}

class Plugin {
 public:
  explicit Plugin(const std::string &path) {
    void *library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw Error(::dlerror());
    api = reinterpret_cast<const PJRT_Api *(*)()>(::dlsym(library, "GetPjrtApi"))();
    auto initialize = args<PJRT_Plugin_Initialize_Args>();
    check(api->PJRT_Plugin_Initialize(&initialize));
  }

  /// The FFI API for handlers; null where the plugin has none.
  const XLA_FFI_Api *ffi_api(const char *platform) const {
    for (auto *e = reinterpret_cast<const FfiExtension *>(api->extension_start); e != nullptr;
         e = static_cast<const FfiExtension *>(e->next)) {
      if (e->type != kFfiExtensionType) continue;
      RegisterHandlerArgs r{sizeof(r), "oeq_test_probe",      14, reinterpret_cast<void *>(&probe),
                            platform,  std::strlen(platform), 0};
      if (PJRT_Error *refused = e->register_handler(&r)) taken(refused);
    }
    return probed_api;
  }

  void check(PJRT_Error *error) const {
    if (error != nullptr) throw Error(taken(error));
  }

  const PJRT_Api *api = nullptr;

 private:
  std::string taken(PJRT_Error *error) const {
    auto message = args<PJRT_Error_Message_Args>();
    message.error = error;
    api->PJRT_Error_Message(&message);
    const std::string text(message.message, message.message_size);
    auto destroy = args<PJRT_Error_Destroy_Args>();
    destroy.error = error;
    api->PJRT_Error_Destroy(&destroy);
    return text;
  }
};

/// A float32 or int32 array on the host, to be passed to a program.
struct Array {
  std::vector<int64_t> dims;
  const void *data;
  PJRT_Buffer_Type type = PJRT_Buffer_Type_F32;
};

class Client {
 public:
  explicit Client(const Plugin &plugin) : plugin_(plugin) {
    PJRT_NamedValue devices = args<PJRT_NamedValue>();
    devices.name = "cpu_device_count";
    devices.name_size = std::strlen(devices.name);
    devices.type = PJRT_NamedValue_kInt64;
    devices.int64_value = 1;
    devices.value_size = 1;
    auto create = args<PJRT_Client_Create_Args>();
    create.create_options = &devices;
    create.num_options = 1;
    plugin_.check(plugin_.api->PJRT_Client_Create(&create));
    client = create.client;
    auto list = args<PJRT_Client_AddressableDevices_Args>();
    list.client = client;
    plugin_.check(plugin_.api->PJRT_Client_AddressableDevices(&list));
    device_ = list.addressable_devices[0];
  }
  ~Client() {
    auto destroy = args<PJRT_Client_Destroy_Args>();
    destroy.client = client;
    plugin_.api->PJRT_Client_Destroy(&destroy);
  }
  Client(const Client &) = delete;
  Client &operator=(const Client &) = delete;

  PJRT_Buffer *upload(const Array &array) const {
    auto b = args<PJRT_Client_BufferFromHostBuffer_Args>();
    b.client = client;
    b.data = array.data;
    b.type = array.type;
    b.dims = array.dims.data();
    b.num_dims = array.dims.size();
    b.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
    b.device = device_;
    plugin_.check(plugin_.api->PJRT_Client_BufferFromHostBuffer(&b));
    await(b.done_with_host_buffer);
    return b.buffer;
  }

  void free(PJRT_Buffer *buffer) const {
    auto destroy = args<PJRT_Buffer_Destroy_Args>();
    destroy.buffer = buffer;
    plugin_.check(plugin_.api->PJRT_Buffer_Destroy(&destroy));
  }

  std::vector<float> download(PJRT_Buffer *buffer, size_t count) const {
    std::vector<float> values(count);
    auto copy = args<PJRT_Buffer_ToHostBuffer_Args>();
    copy.src = buffer;
    copy.dst = values.data();
    copy.dst_size = count * sizeof(float);
    plugin_.check(plugin_.api->PJRT_Buffer_ToHostBuffer(&copy));
    await(copy.event);
    return values;
  }

  void await(PJRT_Event *event) const {
    if (event == nullptr) return;
    auto wait = args<PJRT_Event_Await_Args>();
    wait.event = event;
    PJRT_Error *error = plugin_.api->PJRT_Event_Await(&wait);
    auto destroy = args<PJRT_Event_Destroy_Args>();
    destroy.event = event;
    plugin_.api->PJRT_Event_Destroy(&destroy);
    plugin_.check(error);
  }

  const Plugin &plugin() const { return plugin_; }

  PJRT_Client *client = nullptr;

 private:
  const Plugin &plugin_;
  PJRT_Device *device_ = nullptr;
};

class Executable {
 public:
  /// `program` is StableHLO text.
  Executable(const Client &client, const std::string &program, size_t results) : client_(client), results_(results) {
    // A CompileOptionsProto with one replica and one partition.
    static const std::string kOptions("\x1a\x04\x20\x01\x28\x01", 6);
    auto p = args<PJRT_Program>();
    p.code = const_cast<char *>(program.data());
    p.code_size = program.size();
    p.format = "mlir";
    p.format_size = 4;
    auto compile = args<PJRT_Client_Compile_Args>();
    compile.client = client.client;
    compile.program = &p;
    compile.compile_options = kOptions.data();
    compile.compile_options_size = kOptions.size();
    client.plugin().check(client.plugin().api->PJRT_Client_Compile(&compile));
    executable_ = compile.executable;
  }
  ~Executable() {
    auto destroy = args<PJRT_LoadedExecutable_Destroy_Args>();
    destroy.executable = executable_;
    client_.plugin().api->PJRT_LoadedExecutable_Destroy(&destroy);
  }
  Executable(const Executable &) = delete;
  Executable &operator=(const Executable &) = delete;

  /// Results in order, to be freed by the caller.
  std::vector<PJRT_Buffer *> run(const std::vector<PJRT_Buffer *> &arguments) const {
    auto options = args<PJRT_ExecuteOptions>();
    PJRT_Buffer *const *argument_lists[1] = {arguments.data()};
    std::vector<PJRT_Buffer *> results(results_, nullptr);
    PJRT_Buffer **result_lists[1] = {results.data()};
    PJRT_Event *events[1] = {nullptr};
    auto execute = args<PJRT_LoadedExecutable_Execute_Args>();
    execute.executable = executable_;
    execute.options = &options;
    execute.argument_lists = argument_lists;
    execute.num_devices = 1;
    execute.num_args = arguments.size();
    execute.output_lists = result_lists;
    execute.device_complete_events = events;
    client_.plugin().check(client_.plugin().api->PJRT_LoadedExecutable_Execute(&execute));
    client_.await(events[0]);
    return results;
  }

 private:
  const Client &client_;
  const size_t results_;
  PJRT_LoadedExecutable *executable_ = nullptr;
};

}  // namespace pjrt
