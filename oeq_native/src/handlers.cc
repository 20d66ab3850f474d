// SPDX-License-Identifier: BSD-3-Clause
//
// Host: XLA calls instantiate and execute only, so compilation starts in instantiate, while XLA still compiles the
// module. CUDA: the device, and with it the architecture, is known from initialize on; XLA initializes all calls of a
// module before it executes the first.
#include "handlers.h"

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "call_site.h"
#include "operands.h"
#include "xla_executor.h"

namespace oeq {
namespace {

namespace ffi = xla::ffi;

constexpr int32_t kHostDevice = 0;

/// Runs a stage; exceptions end here.
template <typename Stage>
ffi::Error guarded(const char *target, Stage &&stage) {
  try {
    stage();
    return ffi::Error::Success();
  } catch (const std::exception &error) {
    return ffi::Error::Internal(std::string(target) + ": " + error.what());
  }
}

template <size_t index, Platform platform>
ffi::ErrorOr<std::unique_ptr<CallSite>> instantiate(std::string_view payload, int64_t hash) {
  std::unique_ptr<CallSite> site;
  ffi::Error error = guarded(kTargets[index].name, [&] {
    site = std::make_unique<CallSite>(kTargets[index], platform, hash, payload);
    if (platform == Platform::kHost) site->request(kHostDevice);
  });
  if (error.failure()) return ffi::Unexpected(std::move(error));
  return site;
}

ffi::Error initialize_cuda(CallSite *site, int32_t device) {
  if (site->is_ready(device)) return ffi::Error::Success();
  return guarded(site->target().name, [&] { site->request(device); });
}

/// The context's value of one kind, by C API; throws KernelError with XLA's reason.
template <typename Args, typename Get>
void get_from_context(const XLA_FFI_CallFrame &frame, Args &args, Get *get) {
  args.ctx = frame.ctx;
  if (XLA_FFI_Error *error = get(&args)) {
    const std::string reason = ffi::internal::GetErrorMessage(frame.api, error);
    ffi::internal::DestroyError(frame.api, error);
    throw KernelError(reason);
  }
}

CallSite &call_site(const XLA_FFI_CallFrame &frame) {
  XLA_FFI_State_Get_Args args{};
  args.struct_size = XLA_FFI_State_Get_Args_STRUCT_SIZE;
  args.stage = XLA_FFI_ExecutionStage_INSTANTIATE;
  args.type_id = &CallSite::id;
  get_from_context(frame, args, frame.api->XLA_FFI_State_Get);
  return *static_cast<CallSite *>(args.state);
}

void *stream(const XLA_FFI_CallFrame &frame) {
  XLA_FFI_Stream_Get_Args args{};
  args.struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE;
  get_from_context(frame, args, frame.api->XLA_FFI_Stream_Get);
  return args.stream;
}

int32_t device_ordinal(const XLA_FFI_CallFrame &frame) {
  XLA_FFI_DeviceOrdinal_Get_Args args{};
  args.struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE;
  get_from_context(frame, args, frame.api->XLA_FFI_DeviceOrdinal_Get);
  return args.device_ordinal;
}

void execute_host(const XLA_FFI_CallFrame &frame) {
  CallSite &site = call_site(frame);
  XlaExecutor executor(frame);
  Launch launch;
  launch.executor = &executor;
  launch.order = site.target().order;
  site.kernel(kHostDevice).run(bind_operands(launch.order, site.payload(), frame), launch);
}

void execute_cuda(const XLA_FFI_CallFrame &frame) {
  CallSite &site = call_site(frame);
  Launch launch;
  launch.stream = stream(frame);
  launch.device = device_ordinal(frame);
  launch.order = site.target().order;
  site.kernel(launch.device).run(bind_operands(launch.order, site.payload(), frame), launch);
}

/// What XLA asks a handler when it is registered; XLA's C++ bindings know the answers.
XLA_FFI_Error *describe_execute(XLA_FFI_CallFrame *frame) {
  static const auto *const handler =
      ffi::Ffi::Bind()
          .RemainingArgs()
          .RemainingRets()
          .To([](ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); },
              {ffi::Traits::kCmdBufferCompatible})
          .release();
  return handler->Call(frame);
}

bool asks_for_metadata(const XLA_FFI_CallFrame &frame) {
  for (const XLA_FFI_Extension_Base *e = frame.extension_start; e != nullptr; e = e->next) {
    if (e->type == XLA_FFI_Extension_Metadata) return true;
  }
  return false;
}

XLA_FFI_Error *error_of(const XLA_FFI_CallFrame &frame, const std::string &message) {
  return ffi::internal::CreateError(frame.api, ffi::Error::Internal(message));
}

/// The stage that every step goes through, without XLA's C++ decoding of operands and attributes.
template <size_t index, Platform platform>
XLA_FFI_Error *execute(XLA_FFI_CallFrame *frame) {
  if (asks_for_metadata(*frame)) return describe_execute(frame);
  try {
    if constexpr (platform == Platform::kHost) {
      execute_host(*frame);
    } else {
      execute_cuda(*frame);
    }
    return nullptr;
  } catch (const std::exception &error) {
    return error_of(*frame, std::string(kTargets[index].name) + ": " + error.what());
  }
}

/// One stage as a C function; the binding is built at its first call and never destroyed.
template <auto bind>
XLA_FFI_Error *call(XLA_FFI_CallFrame *frame) {
  static const auto *const handler = bind().release();
  return handler->Call(frame);
}

template <size_t index, Platform platform>
auto bind_instantiate() {
  return ffi::Ffi::BindInstantiate().Attr<std::string_view>("kernel").Attr<int64_t>("hash").To(
      instantiate<index, platform>);
}

auto bind_initialize_cuda() {
  return ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>().Ctx<ffi::State<CallSite>>().Ctx<ffi::DeviceOrdinal>().To(
      initialize_cuda);
}

template <size_t index>
Stages stages_of(Platform platform) {
  if (platform == Platform::kHost) {
    return {call<&bind_instantiate<index, Platform::kHost>>, nullptr, nullptr, &execute<index, Platform::kHost>};
  }
  return {call<&bind_instantiate<index, Platform::kCuda>>, nullptr, call<&bind_initialize_cuda>,
          &execute<index, Platform::kCuda>};
}

template <size_t... index>
Stages stages_at(size_t wanted, Platform platform, std::index_sequence<index...>) {
  constexpr std::array<Stages (*)(Platform), sizeof...(index)> kAll = {&stages_of<index>...};
  return kAll[wanted](platform);
}

}  // namespace

Stages stages(size_t index, Platform platform) {
  return stages_at(index, platform, std::make_index_sequence<kTargetCount>());
}

}  // namespace oeq
