// SPDX-License-Identifier: BSD-3-Clause
#include "pjrt.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>

namespace stablemd {
namespace {

// 0.81 is the interface of the header that we are built with and of the oldest plugin that is tested.
constexpr int kMajor = 0;
constexpr int kOldestMinor = 81;
constexpr size_t kLongestMessage = 1500;

/// CompileOptionsProto {executable_build_options {num_replicas: 1, num_partitions: 1}}; XLA aborts on an empty one.
constexpr char kCompileOptions[] = {0x1a, 0x04, 0x20, 0x01, 0x28, 0x01};

/// XLA's messages have many lines, ours have one.
std::string one_line(std::string_view message) {
  std::string line;
  for (const char c : message.substr(0, kLongestMessage)) {
    const bool blank = c == '\n' || c == '\r' || c == '\t' || c == ' ';
    if (!blank) line += c;
    if (blank && !line.empty() && line.back() != ' ') line += ' ';
  }
  return line;
}

std::mutex &environment_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// Sets an environment variable and restores it. Call with environment_mutex() held.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char *name, const std::string &value) : name_(name) {
    if (const char *before = getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~ScopedEnvironment() {
    if (before_) {
      setenv(name_, before_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  ScopedEnvironment(const ScopedEnvironment &) = delete;
  ScopedEnvironment &operator=(const ScopedEnvironment &) = delete;

 private:
  const char *name_;
  std::optional<std::string> before_;
};

/// XLA decides while it is loaded what it prints for the rest of the process: without its chatter unless somebody asked
/// for it.
void *open_quietly(const std::string &path) {
  const std::lock_guard<std::mutex> lock(environment_mutex());
  std::optional<ScopedEnvironment> logging;
  if (!getenv("TF_CPP_MIN_LOG_LEVEL")) logging.emplace("TF_CPP_MIN_LOG_LEVEL", "1");
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
}

PJRT_NamedValue named(const char *name, const int64_t &value) {
  auto result = pjrt_args<PJRT_NamedValue>();
  result.name = name;
  result.name_size = std::strlen(name);
  result.type = PJRT_NamedValue_kInt64;
  result.int64_value = value;
  result.value_size = 1;
  return result;
}

PJRT_NamedValue named_list(const char *name, const int64_t *values, size_t count) {
  auto result = named(name, 0);
  result.type = PJRT_NamedValue_kInt64List;
  result.int64_array_value = values;
  result.value_size = count;
  return result;
}

ClientHandle create_client(const Plugin &plugin, const ClientOptions &options) {
  const std::lock_guard<std::mutex> lock(environment_mutex());
  std::optional<ScopedEnvironment> threads;
  if (options.threads > 0) threads.emplace("PJRT_NPROC", std::to_string(options.threads));

  const int64_t ordinal = options.ordinal;
  const PJRT_NamedValue choice =
      options.device == "cpu" ? named("cpu_device_count", 1) : named_list("visible_devices", &ordinal, 1);
  auto args = pjrt_args<PJRT_Client_Create_Args>();
  args.create_options = &choice;
  args.num_options = 1;
  check(plugin.api(), plugin.api().PJRT_Client_Create(&args), SMD_ERROR_PLUGIN,
        plugin.path() + ": no client for device `" + options.device + "`");
  return ClientHandle(args.client, {&plugin.api()});
}

}  // namespace

void check(const PJRT_Api &api, PJRT_Error *error, smd_status status, const std::string &what) {
  if (!error) return;
  auto message = pjrt_args<PJRT_Error_Message_Args>();
  message.error = error;
  api.PJRT_Error_Message(&message);
  const std::string line = what + ": " + one_line({message.message, message.message_size});
  auto code = pjrt_args<PJRT_Error_GetCode_Args>();
  code.error = error;
  if (PJRT_Error *failure = api.PJRT_Error_GetCode(&code)) {
    auto args = pjrt_args<PJRT_Error_Destroy_Args>();
    args.error = failure;
    api.PJRT_Error_Destroy(&args);
  }
  auto destroy = pjrt_args<PJRT_Error_Destroy_Args>();
  destroy.error = error;
  api.PJRT_Error_Destroy(&destroy);
  throw Error(raw_value(code.code) == PJRT_Error_Code_RESOURCE_EXHAUSTED ? SMD_ERROR_MEMORY : status, line);
}

// ---- Plugin --------------------------------------------------------------------------------------------------------

const Plugin &Plugin::load(const std::string &path) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const Plugin>> plugins;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<char, decltype(&free)> resolved(realpath(path.c_str(), nullptr), &free);
  if (!resolved) fail(SMD_ERROR_PLUGIN, path, ": no such PJRT plugin: ", std::strerror(errno));
  std::unique_ptr<const Plugin> &plugin = plugins[resolved.get()];
  if (!plugin) plugin.reset(new Plugin(resolved.get()));
  return *plugin;
}

Plugin::Plugin(const std::string &path) : path_(path), library_(open_quietly(path)) {
  if (!library_) fail(SMD_ERROR_PLUGIN, path, ": cannot be loaded as a PJRT plugin: ", one_line(dlerror()));
  using GetApi = const PJRT_Api *();
  const auto get_api = reinterpret_cast<GetApi *>(dlsym(library_, "GetPjrtApi"));
  if (!get_api) fail(SMD_ERROR_PLUGIN, path, ": not a PJRT plugin (it does not export GetPjrtApi)");
  api_ = get_api();
  if (!api_) fail(SMD_ERROR_PLUGIN, path, ": the PJRT plugin gave no interface");
  if (major() != kMajor || minor() < kOldestMinor) {
    fail(SMD_ERROR_PLUGIN, path, ": PJRT plugin of version ", major(), ".", minor(), ", needed is ", kMajor, ".",
         kOldestMinor, " or newer: upgrade the plugin (pip install --upgrade lammps-jax-pjrt-cpu)");
  }
  auto args = pjrt_args<PJRT_Plugin_Initialize_Args>();
  check(*api_, api_->PJRT_Plugin_Initialize(&args), SMD_ERROR_PLUGIN, path + ": plugin does not start");
}

std::string Plugin::stablehlo_version() const {
  auto args = pjrt_args<PJRT_Plugin_Attributes_Args>();
  check(*api_, api_->PJRT_Plugin_Attributes(&args), SMD_ERROR_PLUGIN, path_ + ": attributes of the plugin");
  for (size_t i = 0; i < args.num_attributes; ++i) {
    const PJRT_NamedValue &value = args.attributes[i];
    if (std::string_view(value.name, value.name_size) != "stablehlo_current_version") continue;
    if (raw_value(value.type) != PJRT_NamedValue_kInt64List || value.value_size != 3) continue;
    const int64_t *numbers = value.int64_array_value;
    return text(numbers[0], ".", numbers[1], ".", numbers[2]);
  }
  return "";
}

// ---- Client --------------------------------------------------------------------------------------------------------

std::shared_ptr<Client> Client::create(const Plugin &plugin, const ClientOptions &options) {
  return std::shared_ptr<Client>(new Client(plugin, options));
}

Client::Client(const Plugin &plugin, const ClientOptions &options)
    : plugin_(plugin), handle_(create_client(plugin, options)) {
  auto args = pjrt_args<PJRT_Client_AddressableDevices_Args>();
  args.client = handle_.get();
  check(api(), api().PJRT_Client_AddressableDevices(&args), SMD_ERROR_PLUGIN, plugin.path() + ": devices");
  if (args.num_addressable_devices == 0) fail(SMD_ERROR_PLUGIN, plugin.path(), ": the plugin found no device");
  device_ = args.addressable_devices[0];
}

std::string Client::platform() const {
  auto args = pjrt_args<PJRT_Client_PlatformName_Args>();
  args.client = handle_.get();
  check(api(), api().PJRT_Client_PlatformName(&args), SMD_ERROR_PLUGIN, "platform name");
  return {args.platform_name, args.platform_name_size};
}

std::string Client::platform_version() const {
  auto args = pjrt_args<PJRT_Client_PlatformVersion_Args>();
  args.client = handle_.get();
  check(api(), api().PJRT_Client_PlatformVersion(&args), SMD_ERROR_PLUGIN, "platform version");
  return {args.platform_version, args.platform_version_size};
}

std::string Client::device_kind() const {
  auto description = pjrt_args<PJRT_Device_GetDescription_Args>();
  description.device = device_;
  check(api(), api().PJRT_Device_GetDescription(&description), SMD_ERROR_PLUGIN, "device description");
  auto args = pjrt_args<PJRT_DeviceDescription_Kind_Args>();
  args.device_description = description.device_description;
  check(api(), api().PJRT_DeviceDescription_Kind(&args), SMD_ERROR_PLUGIN, "device kind");
  return {args.device_kind, args.device_kind_size};
}

std::shared_ptr<const Executable> Client::compile(const std::string &program) const {
  auto code = pjrt_args<PJRT_Program>();
  code.code = const_cast<char *>(program.data());
  code.code_size = program.size();
  code.format = "mlir";
  code.format_size = std::strlen(code.format);
  auto args = pjrt_args<PJRT_Client_Compile_Args>();
  args.client = handle_.get();
  args.program = &code;
  args.compile_options = kCompileOptions;
  args.compile_options_size = sizeof kCompileOptions;
  check(api(), api().PJRT_Client_Compile(&args), SMD_ERROR_COMPILE, "XLA cannot compile the program");
  return std::make_shared<Executable>(shared_from_this(), ExecutableHandle(args.executable, {&api()}));
}

std::shared_ptr<const Executable> Client::deserialize(std::string_view bytes) const {
  auto args = pjrt_args<PJRT_Executable_DeserializeAndLoad_Args>();
  args.client = handle_.get();
  args.serialized_executable = bytes.data();
  args.serialized_executable_size = bytes.size();
  check(api(), api().PJRT_Executable_DeserializeAndLoad(&args), SMD_ERROR_COMPILE, "cannot load a stored executable");
  return std::make_shared<Executable>(shared_from_this(), ExecutableHandle(args.loaded_executable, {&api()}));
}

BufferHandle Client::upload(const void *data, const ElementType &type, const std::vector<int64_t> &shape,
                            HostMemory memory) const {
  auto args = pjrt_args<PJRT_Client_BufferFromHostBuffer_Args>();
  args.client = handle_.get();
  args.data = data;
  args.type = type.pjrt;
  args.dims = shape.data();
  args.num_dims = shape.size();
  args.host_buffer_semantics = memory == HostMemory::aliased ? PJRT_HostBufferSemantics_kImmutableZeroCopy
                                                             : PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  args.device = device_;
  check(api(), api().PJRT_Client_BufferFromHostBuffer(&args), SMD_ERROR_EXECUTION, "copying to the device");
  BufferHandle buffer(args.buffer, {&api()});
  const EventHandle done(args.done_with_host_buffer, {&api()});
  if (memory == HostMemory::copied) await(done.get(), SMD_ERROR_EXECUTION, "copying to the device");
  return buffer;
}

const void *Client::device_pointer(PJRT_Buffer *buffer) const {
  auto args = pjrt_args<PJRT_Buffer_UnsafePointer_Args>();
  args.buffer = buffer;
  check(api(), api().PJRT_Buffer_UnsafePointer(&args), SMD_ERROR_EXECUTION, "address of a buffer");
  return reinterpret_cast<const void *>(args.buffer_pointer);
}

void Client::download(PJRT_Buffer *buffer, void *data, size_t bytes) const {
  auto args = pjrt_args<PJRT_Buffer_ToHostBuffer_Args>();
  args.src = buffer;
  args.dst = data;
  args.dst_size = bytes;
  check(api(), api().PJRT_Buffer_ToHostBuffer(&args), SMD_ERROR_EXECUTION, "copying from the device");
  const EventHandle done(args.event, {&api()});
  await(done.get(), SMD_ERROR_EXECUTION, "copying from the device");
}

void Client::await(PJRT_Event *event, smd_status status, const std::string &what) const {
  auto args = pjrt_args<PJRT_Event_Await_Args>();
  args.event = event;
  check(api(), api().PJRT_Event_Await(&args), status, what);
}

// ---- Executable ----------------------------------------------------------------------------------------------------

namespace {

using ProgramHandle =
    std::unique_ptr<PJRT_Executable, PjrtDeleter<PJRT_Executable, PJRT_Executable_Destroy_Args,
                                                 &PJRT_Executable_Destroy_Args::executable, PJRT_Executable_Destroy,
                                                 &PJRT_Api::PJRT_Executable_Destroy>>;

ProgramHandle unloaded(const PJRT_Api &api, PJRT_LoadedExecutable *loaded) {
  auto args = pjrt_args<PJRT_LoadedExecutable_GetExecutable_Args>();
  args.loaded_executable = loaded;
  check(api, api.PJRT_LoadedExecutable_GetExecutable(&args), SMD_ERROR_COMPILE, "executable");
  return ProgramHandle(args.executable, {&api});
}

std::vector<OutputShape> output_shapes(const PJRT_Api &api, PJRT_Executable *program) {
  auto types = pjrt_args<PJRT_Executable_OutputElementTypes_Args>();
  types.executable = program;
  check(api, api.PJRT_Executable_OutputElementTypes(&types), SMD_ERROR_COMPILE, "types of the program's results");
  auto shapes = pjrt_args<PJRT_Executable_OutputDimensions_Args>();
  shapes.executable = program;
  check(api, api.PJRT_Executable_OutputDimensions(&shapes), SMD_ERROR_COMPILE, "shapes of the program's results");
  std::vector<OutputShape> outputs;
  const int64_t *dimensions = shapes.dims;
  for (size_t i = 0; i < std::min(types.num_output_types, shapes.num_outputs); ++i) {
    outputs.push_back({raw_value(types.output_types[i]), {dimensions, dimensions + shapes.dim_sizes[i]}});
    dimensions += shapes.dim_sizes[i];
  }
  return outputs;
}

}  // namespace

Executable::Executable(std::shared_ptr<const Client> client, ExecutableHandle handle)
    : client_(std::move(client)), handle_(std::move(handle)) {
  outputs_ = output_shapes(client_->api(), unloaded(client_->api(), handle_.get()).get());
}

std::vector<BufferHandle> Executable::execute(const std::vector<PJRT_Buffer *> &arguments) const {
  const PJRT_Api &api = client_->api();
  std::vector<PJRT_Buffer *> raw(outputs_.size(), nullptr);
  PJRT_Buffer *const *argument_list = arguments.data();
  PJRT_Buffer **output_list = raw.data();
  PJRT_Event *event = nullptr;
  auto options = pjrt_args<PJRT_ExecuteOptions>();
  auto args = pjrt_args<PJRT_LoadedExecutable_Execute_Args>();
  args.executable = handle_.get();
  args.options = &options;
  args.argument_lists = &argument_list;
  args.num_devices = 1;
  args.num_args = arguments.size();
  args.output_lists = &output_list;
  args.device_complete_events = &event;
  check(api, api.PJRT_LoadedExecutable_Execute(&args), SMD_ERROR_EXECUTION, "the program failed");
  const EventHandle done(event, {&api});
  std::vector<BufferHandle> outputs;
  for (PJRT_Buffer *buffer : raw) outputs.emplace_back(buffer, BufferHandle::deleter_type{&api});
  client_->await(done.get(), SMD_ERROR_EXECUTION, "the program failed");
  return outputs;
}

std::string Executable::serialize() const {
  const PJRT_Api &api = client_->api();
  const ProgramHandle program = unloaded(api, handle_.get());
  auto args = pjrt_args<PJRT_Executable_Serialize_Args>();
  args.executable = program.get();
  check(api, api.PJRT_Executable_Serialize(&args), SMD_ERROR_COMPILE, "cannot store the executable");
  const std::unique_ptr<PJRT_SerializedExecutable, decltype(args.serialized_executable_deleter)> owner(
      args.serialized_executable, args.serialized_executable_deleter);
  return {args.serialized_bytes, args.serialized_bytes_size};
}

}  // namespace stablemd
