// SPDX-License-Identifier: BSD-3-Clause
//
// Custom calls to the handlers of the table, stage by stage as XLA makes them, without XLA: for platforms that are not
// here, and for sanitizers.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend.h"
#include "oeq_native.h"
#include "xla/ffi/api/ffi.h"

namespace stand_in {

struct Array {
  std::vector<int64_t> dims;
  XLA_FFI_DataType dtype;
  void *data = nullptr;
};

struct Failure {
  std::string message;
};

/// What this XLA holds for one call site and one execution.
struct Context {
  void *state = nullptr;
  int32_t device = 0;
  void *stream = nullptr;
};

inline Context &context_of(XLA_FFI_ExecutionContext *ctx) { return *reinterpret_cast<Context *>(ctx); }

/// An XLA without a thread pool.
inline const XLA_FFI_Api &api() {
  static const XLA_FFI_Api instance = [] {
    XLA_FFI_Api api{};
    api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
    api.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args *args) {
      return reinterpret_cast<XLA_FFI_Error *>(new Failure{args->message});
    };
    api.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args *args) {
      delete reinterpret_cast<Failure *>(args->error);
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
      args->stream = context_of(args->ctx).stream;
      return nullptr;
    };
    api.XLA_FFI_ThreadPool_NumThreads = [](XLA_FFI_ThreadPool_NumThreads_Args *args) -> XLA_FFI_Error * {
      *args->num_threads = 1;
      return nullptr;
    };
    return api;
  }();
  return instance;
}

inline const OeqFfiHandler &handler(const std::string &name, const std::string &platform) {
  const OeqFfiHandlerTable *table = oeq_ffi_handler_table();
  for (uint32_t i = 0; i < table->handler_count; ++i) {
    if (table->handlers[i].name == name && table->handlers[i].platform == platform) return table->handlers[i];
  }
  throw std::runtime_error("no handler " + name + " for " + platform);
}

/// One custom call of an executable. Stages throw std::runtime_error with the handler's message.
class CustomCall {
 public:
  CustomCall(const char *target, const char *platform, std::string payload, std::vector<Array> arguments,
             std::vector<Array> results, int64_t hash = 77)
      : handler_(handler(target, platform)),
        payload_(std::move(payload)),
        hash_(hash),
        arguments_(std::move(arguments)),
        results_(std::move(results)) {}
  ~CustomCall() {
    if (context.state == nullptr) return;
    static_cast<const XLA_FFI_TypeInfo *>(oeq_ffi_handler_table()->types[0].info)->deleter(context.state);
  }
  CustomCall(const CustomCall &) = delete;
  CustomCall &operator=(const CustomCall &) = delete;

  void instantiate() { Stage(*this, handler_.instantiate, XLA_FFI_ExecutionStage_INSTANTIATE, context).run(); }
  void initialize() { Stage(*this, handler_.initialize, XLA_FFI_ExecutionStage_INITIALIZE, context).run(); }

  /// One stage, ready to be run as often as wanted; not copied, since it points into itself.
  class Stage {
   public:
    Stage(const CustomCall &call, void *handler, XLA_FFI_ExecutionStage stage, Context &context)
        : handler_(reinterpret_cast<XLA_FFI_Handler *>(handler)),
          arguments_(buffers(call.arguments_)),
          results_(buffers(call.results_)),
          argument_types_(arguments_.size(), XLA_FFI_ArgType_BUFFER),
          result_types_(results_.size(), XLA_FFI_RetType_BUFFER),
          hash_(call.hash_),
          text_{call.payload_.data(), call.payload_.size()} {
      for (XLA_FFI_Buffer &buffer : arguments_) argument_pointers_.push_back(&buffer);
      for (XLA_FFI_Buffer &buffer : results_) result_pointers_.push_back(&buffer);
      frame_.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
      frame_.api = &api();
      frame_.ctx = reinterpret_cast<XLA_FFI_ExecutionContext *>(&context);
      frame_.stage = stage;
      frame_.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, static_cast<int64_t>(arguments_.size()), argument_types_.data(),
                     argument_pointers_.data()};
      frame_.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, static_cast<int64_t>(results_.size()), result_types_.data(),
                     result_pointers_.data()};
      frame_.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, 2, attribute_types_, names_, values_};
    }
    Stage(const Stage &) = delete;
    Stage &operator=(const Stage &) = delete;

    void run() {
      XLA_FFI_Error *error = handler_(&frame_);
      if (error == nullptr) return;
      const std::unique_ptr<Failure> failure(reinterpret_cast<Failure *>(error));
      throw std::runtime_error(failure->message);
    }

   private:
    static std::vector<XLA_FFI_Buffer> buffers(const std::vector<Array> &arrays) {
      std::vector<XLA_FFI_Buffer> buffers;
      for (const Array &array : arrays) {
        buffers.push_back({XLA_FFI_Buffer_STRUCT_SIZE, nullptr, array.dtype, array.data,
                           static_cast<int64_t>(array.dims.size()), const_cast<int64_t *>(array.dims.data())});
      }
      return buffers;
    }

    XLA_FFI_Handler *const handler_;
    std::vector<XLA_FFI_Buffer> arguments_, results_;
    std::vector<void *> argument_pointers_, result_pointers_;
    std::vector<XLA_FFI_ArgType> argument_types_;
    std::vector<XLA_FFI_RetType> result_types_;
    int64_t hash_;
    XLA_FFI_ByteSpan text_;
    XLA_FFI_Scalar hash_value_{XLA_FFI_DataType_S64, &hash_};
    XLA_FFI_ByteSpan hash_name_{"hash", 4}, kernel_name_{"kernel", 6};
    XLA_FFI_AttrType attribute_types_[2] = {XLA_FFI_AttrType_SCALAR, XLA_FFI_AttrType_STRING};
    XLA_FFI_ByteSpan *names_[2] = {&hash_name_, &kernel_name_};
    void *values_[2] = {&hash_value_, &text_};
    XLA_FFI_CallFrame frame_{};
  };

  /// An execution; several threads may have one each.
  std::unique_ptr<Stage> execution() {
    return std::make_unique<Stage>(*this, handler_.execute, XLA_FFI_ExecutionStage_EXECUTE, context);
  }
  void execute() { execution()->run(); }

  Context context;

 private:
  const OeqFfiHandler &handler_;
  const std::string payload_;
  const int64_t hash_;
  const std::vector<Array> arguments_, results_;
};

/// A call of conv_forward with arrays that fit the payload. Arrays lie wherever `memory` says, all in the same place:
/// right for kernels that do not read, and for ones that read zeros.
inline std::unique_ptr<CustomCall> convolution(const char *platform, const std::string &payload,
                                               const oeq::KernelProperties &p, int64_t nodes, int64_t edges,
                                               void *memory) {
  const auto real = [](oeq::DType dtype) {
    return dtype == oeq::DType::kFloat64 ? XLA_FFI_DataType_F64 : XLA_FFI_DataType_F32;
  };
  const XLA_FFI_DataType irrep = real(p.irrep_dtype), index = XLA_FFI_DataType_S32;
  std::vector<Array> arguments = {{{nodes, p.l1_dim}, irrep, memory},
                                  {{edges, p.l2_dim}, irrep, memory},
                                  {{edges, p.weight_numel}, real(p.weight_dtype), memory},
                                  {{edges}, index, memory},
                                  {{edges}, index, memory},
                                  {{p.workspace_size}, XLA_FFI_DataType_U8, memory},
                                  {{1}, index, memory}};
  return std::make_unique<CustomCall>("conv_forward", platform, payload, std::move(arguments),
                                      std::vector<Array>{{{nodes, p.l3_dim}, irrep, memory}});
}

}  // namespace stand_in
