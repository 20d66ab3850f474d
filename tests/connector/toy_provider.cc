// SPDX-License-Identifier: BSD-3-Clause
// A staged FFI provider: a state type that instantiate makes and execute uses, a handler without state, one that fails.
// It counts its calls, so that tests can see which stages XLA ran.
#include <atomic>
#include <memory>

#include "xla/ffi/api/ffi.h"

#define TOY_API extern "C" __attribute__((visibility("default")))

namespace {

namespace ffi = xla::ffi;

std::atomic<int> registered{0}, instantiated{0}, executed{0}, destroyed{0};

/// What one call site keeps from instantiation to its end.
struct Factor {
  explicit Factor(float value) : value(value) { ++instantiated; }
  ~Factor() { ++destroyed; }
  Factor(const Factor &) = delete;
  Factor &operator=(const Factor &) = delete;

  static ffi::TypeId id;
  static ffi::TypeInfo info;
  const float value;
};
ffi::TypeId Factor::id = {};
ffi::TypeInfo Factor::info = ffi::MakeTypeInfo<Factor>();

void multiply(float factor, const ffi::Buffer<ffi::F32> &x, ffi::ResultBuffer<ffi::F32> &y) {
  for (size_t i = 0; i < x.element_count(); ++i) y->typed_data()[i] = factor * x.typed_data()[i];
  ++executed;
}

ffi::ErrorOr<std::unique_ptr<Factor>> instantiate(float scale) { return std::make_unique<Factor>(scale); }

ffi::Error execute_staged(Factor *factor, float, ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  multiply(factor->value, x, y);
  return ffi::Error::Success();
}

ffi::Error execute_plain(float scale, ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  multiply(scale, x, y);
  return ffi::Error::Success();
}

ffi::Error execute_fail(float, ffi::Buffer<ffi::F32>, ffi::ResultBuffer<ffi::F32>) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "the toy was told to fail");
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(InstantiateHandler, instantiate, ffi::Ffi::BindInstantiate().Attr<float>("scale"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(StagedHandler, execute_staged,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::State<Factor>>()
                                  .Attr<float>("scale")
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    PlainHandler, execute_plain,
    ffi::Ffi::Bind().Attr<float>("scale").Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    FailHandler, execute_fail,
    ffi::Ffi::Bind().Attr<float>("scale").Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());

/// Whether there was none; frees it.
bool no_error(const XLA_FFI_Api *api, XLA_FFI_Error *error) {
  if (!error) return true;
  XLA_FFI_Error_Destroy_Args args{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  api->XLA_FFI_Error_Destroy(&args);
  return false;
}

bool add(const XLA_FFI_Api *api, const char *name, const char *platform, XLA_FFI_Handler_Bundle bundle) {
  return no_error(api, ffi::Ffi::RegisterStaticHandler(api, name, platform, bundle));
}

}  // namespace

TOY_API int RegisterFFi(const XLA_FFI_Api *api, const char *platform) {
  ++registered;
  const bool done = no_error(api, ffi::Ffi::RegisterTypeId(api, "stablemd.toy.Factor", &Factor::id, &Factor::info)) &&
                    add(api, "toy_staged", platform, {InstantiateHandler, nullptr, nullptr, StagedHandler}) &&
                    add(api, "toy_plain", platform, {nullptr, nullptr, nullptr, PlainHandler}) &&
                    add(api, "toy_fail", platform, {nullptr, nullptr, nullptr, FailHandler});
  return done ? 0 : 1;
}

TOY_API int toy_registered() { return registered; }
TOY_API int toy_instantiated() { return instantiated; }
TOY_API int toy_executed() { return executed; }
TOY_API int toy_destroyed() { return destroyed; }
