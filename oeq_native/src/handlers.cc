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

ffi::Error execute_host(CallSite *site, ffi::ThreadPool pool, ffi::RemainingArgs arguments,
                        ffi::RemainingRets results) {
  return guarded(site->target().name, [&] {
    const Kernel &kernel = site->kernel(kHostDevice);
    XlaExecutor executor(pool);
    Launch launch;
    launch.executor = &executor;
    launch.order = site->target().order;
    kernel.run(bind_operands(site->target().order, site->payload(), arguments, results), launch);
  });
}

ffi::Error execute_cuda(CallSite *site, void *stream, int32_t device, ffi::RemainingArgs arguments,
                        ffi::RemainingRets results) {
  return guarded(site->target().name, [&] {
    const Kernel &kernel = site->kernel(device);
    Launch launch;
    launch.stream = stream;
    launch.device = device;
    launch.order = site->target().order;
    kernel.run(bind_operands(site->target().order, site->payload(), arguments, results), launch);
  });
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

auto bind_execute_host() {
  return ffi::Ffi::Bind().Ctx<ffi::State<CallSite>>().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().To(
      execute_host, {ffi::Traits::kCmdBufferCompatible});
}

auto bind_execute_cuda() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<CallSite>>()
      .Ctx<ffi::PlatformStream<void *>>()
      .Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .RemainingRets()
      .To(execute_cuda, {ffi::Traits::kCmdBufferCompatible});
}

template <size_t index>
Stages stages_of(Platform platform) {
  if (platform == Platform::kHost) {
    return {call<&bind_instantiate<index, Platform::kHost>>, nullptr, nullptr, call<&bind_execute_host>};
  }
  return {call<&bind_instantiate<index, Platform::kCuda>>, nullptr, call<&bind_initialize_cuda>,
          call<&bind_execute_cuda>};
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
