// SPDX-License-Identifier: BSD-3-Clause
//
// The CUDA handlers from the table, stage by stage, as XLA calls them: against a stand-in for XLA's context and one for
// libcuda, with the real NVRTC. Skipped where there is no NVRTC.
#include <atomic>
#include <deque>
#include <string>
#include <vector>

#include "check.h"
#include "cuda/nvrtc.h"
#include "cuda_payload.h"
#include "fake_cuda.h"
#include "oeq_native.h"
#include "xla/ffi/api/ffi.h"

namespace {

constexpr int64_t kNodes = 3, kEdges = 7;
char stream_of_xla;  // its address is the stream

/// The state and the device that a stand-in XLA holds for one call site.
struct Context {
  void *state = nullptr;
  int32_t device = 0;
};

struct Failure {
  std::string message;
};

Context &context_of(XLA_FFI_ExecutionContext *ctx) { return *reinterpret_cast<Context *>(ctx); }

XLA_FFI_Api stand_in() {
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
  api.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args *args) {
    return reinterpret_cast<XLA_FFI_Error *>(new Failure{args->message});
  };
  api.XLA_FFI_State_Set = [](XLA_FFI_State_Set_Args *args) -> XLA_FFI_Error * {
    context_of(args->ctx).state = args->state;
    return nullptr;
  };
  api.XLA_FFI_State_Get = [](XLA_FFI_State_Get_Args *args) -> XLA_FFI_Error * {
    args->state = context_of(args->ctx).state;
    return nullptr;
  };
  api.XLA_FFI_DeviceOrdinal_Get = [](XLA_FFI_DeviceOrdinal_Get_Args *args) -> XLA_FFI_Error * {
    args->device_ordinal = context_of(args->ctx).device;
    return nullptr;
  };
  api.XLA_FFI_Stream_Get = [](XLA_FFI_Stream_Get_Args *args) -> XLA_FFI_Error * {
    args->stream = &stream_of_xla;
    return nullptr;
  };
  return api;
}

const OeqFfiHandler &handler(const std::string &name) {
  const OeqFfiHandlerTable *table = oeq_ffi_handler_table();
  for (uint32_t i = 0; i < table->handler_count; ++i) {
    if (table->handlers[i].name == name && std::string(table->handlers[i].platform) == "CUDA")
      return table->handlers[i];
  }
  throw std::runtime_error("no CUDA handler " + name);
}

/// One custom call to conv_forward.
class CallSite {
 public:
  explicit CallSite(std::string payload) : payload_(std::move(payload)) {
    add({kNodes, 3}, XLA_FFI_DataType_F32);  // L1
    add({kEdges, 4}, XLA_FFI_DataType_F32);  // L2
    add({kEdges, 2}, XLA_FFI_DataType_F64);  // W
    add({kEdges}, XLA_FFI_DataType_S32);     // receivers
    add({kEdges}, XLA_FFI_DataType_S32);     // senders
    add({640}, XLA_FFI_DataType_U8);         // workspace
    add({1}, XLA_FFI_DataType_S32);          // order of the senders, a dummy
    add({kNodes, 5}, XLA_FFI_DataType_F32);  // L3
    for (auto &buffer : buffers_) pointers_.push_back(&buffer);
  }
  ~CallSite() {
    if (context.state != nullptr) {
      static_cast<const XLA_FFI_TypeInfo *>(oeq_ffi_handler_table()->types[0].info)->deleter(context.state);
    }
  }

  void instantiate() { run(handler("conv_forward").instantiate, XLA_FFI_ExecutionStage_INSTANTIATE); }
  void initialize() { run(handler("conv_forward").initialize, XLA_FFI_ExecutionStage_INITIALIZE); }
  void execute() { run(handler("conv_forward").execute, XLA_FFI_ExecutionStage_EXECUTE); }

  Context context;

 private:
  void add(std::vector<int64_t> dims, XLA_FFI_DataType dtype) {
    dims_.push_back(std::move(dims));
    void *address =
        reinterpret_cast<void *>(0x1000 * static_cast<intptr_t>(dims_.size()));  // device memory: never touched
    buffers_.push_back({XLA_FFI_Buffer_STRUCT_SIZE, nullptr, dtype, address, static_cast<int64_t>(dims_.back().size()),
                        dims_.back().data()});
  }

  void run(void *stage_handler, XLA_FFI_ExecutionStage stage) {
    const XLA_FFI_Api api = stand_in();
    XLA_FFI_CallFrame frame{};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = &api;
    frame.ctx = reinterpret_cast<XLA_FFI_ExecutionContext *>(&context);
    frame.stage = stage;
    std::vector<XLA_FFI_ArgType> types(7, XLA_FFI_ArgType_BUFFER);
    XLA_FFI_RetType result_type = XLA_FFI_RetType_BUFFER;
    frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, 7, types.data(), pointers_.data()};
    frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, 1, &result_type, pointers_.data() + 7};

    int64_t hash = 77;
    XLA_FFI_Scalar hash_value{XLA_FFI_DataType_S64, &hash};
    XLA_FFI_ByteSpan text{payload_.data(), payload_.size()}, hash_name{"hash", 4}, kernel_name{"kernel", 6};
    XLA_FFI_AttrType attribute_types[] = {XLA_FFI_AttrType_SCALAR, XLA_FFI_AttrType_STRING};
    XLA_FFI_ByteSpan *names[] = {&hash_name, &kernel_name};
    void *values[] = {&hash_value, &text};
    frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, 2, attribute_types, names, values};

    XLA_FFI_Error *error = reinterpret_cast<XLA_FFI_Handler *>(stage_handler)(&frame);
    if (error == nullptr) return;
    const std::unique_ptr<Failure> failure(reinterpret_cast<Failure *>(error));
    throw std::runtime_error(failure->message);
  }

  const std::string payload_;
  std::deque<std::vector<int64_t>> dims_;
  std::deque<XLA_FFI_Buffer> buffers_;
  std::vector<void *> pointers_;
};

OeqStats stats() {
  OeqStats s{};
  s.struct_size = sizeof(s);
  oeq_get_stats(&s);
  return s;
}

void require_nvrtc() {
  try {
    oeq::cuda::nvrtc();
  } catch (const oeq::KernelError &error) {
    throw check::Skipped(error.what());
  }
}

void start() {
  require_nvrtc();
  ::setenv("OEQ_CACHE", "off", 1);  // read at the first kernel
  fake_cuda::record() = {};
}

std::string payload(const std::string &comment) {
  nlohmann::json json = nlohmann::json::parse(cuda_payload(oeq::Family::kConvolution));
  json["kernel"] = json["kernel"].get<std::string>() + "// " + comment + "\n";
  return json.dump();
}

}  // namespace

TEST(compilation_starts_in_initialize_and_execute_launches_on_xlas_stream) {
  start();
  static std::atomic<int> launches;
  launches = 0;
  fake_cuda::record().on_launch = [](const fake_cuda::Launch &launch) {
    CHECK(launch.stream == &stream_of_xla);
    CHECK(launch.kernel.find("forward") != std::string::npos);  // a mangled name
    CHECK(launch.blocks == 11);
    ++launches;
  };
  const OeqStats before = stats();
  CallSite site(payload("one"));
  site.instantiate();
  CHECK(stats().requests == before.requests);  // no device is known yet
  site.initialize();
  CHECK(stats().requests == before.requests + 1);
  site.execute();
  CHECK(launches == 1);
  for (int step = 0; step < 3; ++step) {
    site.initialize();  // as XLA does before every execution
    site.execute();
  }
  CHECK(launches == 4);
  const OeqStats after = stats();
  CHECK(after.requests == before.requests + 1);
  CHECK(after.compilations == before.compilations + 1);
  CHECK(fake_cuda::record().libraries_loaded == 1);
}

TEST(call_sites_and_devices_of_one_architecture_share_a_kernel) {
  start();
  const OeqStats before = stats();
  CallSite first(payload("two")), second(payload("two"));
  second.context.device = 1;  // sm_90 as device 0
  for (CallSite *site : {&first, &second}) site->instantiate();
  for (CallSite *site : {&first, &second}) site->initialize();
  for (CallSite *site : {&first, &second}) site->execute();
  CHECK(stats().compilations == before.compilations + 1);
  CHECK(stats().records == before.records + 1);
  second.context.device = 2;  // sm_80
  second.initialize();
  second.execute();
  CHECK(stats().compilations == before.compilations + 2);
}

TEST(a_kernel_that_does_not_compile_is_an_error_of_execute_with_the_log) {
  start();
  nlohmann::json json = nlohmann::json::parse(cuda_payload(oeq::Family::kConvolution));
  json["kernel"] = json["kernel"].get<std::string>() + "__global__ void broken() { no_such_name(); }";
  CallSite site(json.dump());
  site.instantiate();
  site.initialize();
  CHECK_THROWS("conv_forward: NVRTC", site.execute());
  CHECK_THROWS("no_such_name", site.execute());
}

TEST(a_device_that_cannot_be_asked_is_an_error_of_initialize) {
  start();
  CallSite site(payload("three"));
  site.instantiate();
  site.context.device = 9;
  CHECK_THROWS("conv_forward: cuDeviceGet failed", site.initialize());
}

TEST(a_launch_that_fails_is_an_xla_error) {
  start();
  CallSite site(payload("four"));
  site.instantiate();
  site.initialize();
  site.execute();
  fake_cuda::record().fail_launch = 719;
  CHECK_THROWS("conv_forward: cuLaunchKernel failed: CUDA_ERROR_FAKE", site.execute());
}
