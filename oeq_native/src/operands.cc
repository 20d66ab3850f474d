// SPDX-License-Identifier: BSD-3-Clause
#include "operands.h"

#include <sstream>

namespace oeq {
namespace {

constexpr int64_t kAny = -1;  // a dimension that may have any length

struct Shape {
  int64_t rank;
  int64_t dims[3];
};

Shape vector(int64_t length) { return {1, {length, 0, 0}}; }
Shape matrix(int64_t rows, int64_t columns) { return {2, {rows, columns, 0}}; }
Shape blocks(int64_t rows, int64_t components, int64_t channels) { return {3, {rows, components, channels}}; }

XLA_FFI_DataType xla_dtype(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return XLA_FFI_DataType_F32;
    case DType::kFloat64:
      return XLA_FFI_DataType_F64;
    case DType::kInt32:
      return XLA_FFI_DataType_S32;
    case DType::kInt64:
      return XLA_FFI_DataType_S64;
    case DType::kUint8:
      return XLA_FFI_DataType_U8;
  }
  return XLA_FFI_DataType_INVALID;
}

std::string dtype_name(XLA_FFI_DataType dtype) {
  switch (dtype) {
    case XLA_FFI_DataType_F32:
      return "f32";
    case XLA_FFI_DataType_F64:
      return "f64";
    case XLA_FFI_DataType_S32:
      return "i32";
    case XLA_FFI_DataType_S64:
      return "i64";
    case XLA_FFI_DataType_U8:
      return "u8";
    default:
      return "XLA's element type " + std::to_string(dtype);
  }
}

bool fits(const XLA_FFI_Buffer &buffer, const Shape &shape, DType dtype) {
  if (buffer.dtype != xla_dtype(dtype) || buffer.rank != shape.rank) return false;
  for (int64_t i = 0; i < shape.rank; ++i) {
    if (shape.dims[i] != kAny && buffer.dims[i] != shape.dims[i]) return false;
  }
  return true;
}

/// E.g. "f32[10, 32]"; a dimension that may be anything is "?".
std::string described(XLA_FFI_DataType dtype, const int64_t *dims, int64_t rank) {
  std::string text = dtype_name(dtype) + "[";
  for (int64_t i = 0; i < rank; ++i) {
    text += (i == 0 ? "" : ", ") + (dims[i] == kAny ? "?" : std::to_string(dims[i]));
  }
  return text + "]";
}

/// Takes operands and results in order, checking each. Reads the frame as it is: XLA's C++ decoding takes longer than
/// the rest of a call.
class Binder {
 public:
  explicit Binder(const XLA_FFI_CallFrame &frame) : arguments_(frame.args), results_(frame.rets) {}

  void expect_counts(int64_t arguments, int64_t results) const {
    if (arguments_.size == arguments && results_.size == results) return;
    throw KernelError("called with " + std::to_string(arguments_.size) + " operands and " +
                      std::to_string(results_.size) + " results, takes " + std::to_string(arguments) + " and " +
                      std::to_string(results));
  }

  const XLA_FFI_Buffer &argument(const char *name, const Shape &shape, DType dtype) {
    const int64_t i = next_argument_++;
    return checked(name, arguments_.types[i] == XLA_FFI_ArgType_BUFFER, arguments_.args[i], shape, dtype);
  }

  void *result(const char *name, const Shape &shape, DType dtype) {
    const int64_t i = next_result_++;
    return checked(name, results_.types[i] == XLA_FFI_RetType_BUFFER, results_.rets[i], shape, dtype).data;
  }

  /// Length of a dimension of an operand; 0 where it has none.
  int64_t dimension_of_argument(int64_t i, int64_t dimension) const {
    if (arguments_.types[i] != XLA_FFI_ArgType_BUFFER) return 0;
    const auto &buffer = *static_cast<const XLA_FFI_Buffer *>(arguments_.args[i]);
    return buffer.rank <= dimension ? 0 : buffer.dims[dimension];
  }

  int64_t rows_of_argument(int64_t i) const { return dimension_of_argument(i, 0); }

 private:
  static const XLA_FFI_Buffer &checked(const char *name, bool is_buffer, const void *operand, const Shape &shape,
                                       DType dtype) {
    if (!is_buffer) throw KernelError(std::string(name) + " is not a buffer");
    const auto &buffer = *static_cast<const XLA_FFI_Buffer *>(operand);
    if (fits(buffer, shape, dtype)) return buffer;
    throw KernelError(std::string(name) + " must be " + described(xla_dtype(dtype), shape.dims, shape.rank) + ", is " +
                      described(buffer.dtype, buffer.dims, buffer.rank));
  }

  const XLA_FFI_Args &arguments_;
  const XLA_FFI_Rets &results_;
  int64_t next_argument_ = 0, next_result_ = 0;
};

/// Shapes of the arrays of one call. Rows of L1 and L3 are nodes in a convolution; rows of L2 are its edges.
struct Shapes {
  Shape l1, l2, l3, weights;
};

int64_t tensor_count(Order order) {
  switch (order) {
    case Order::kForward:
      return 3;
    case Order::kBackward:
      return 4;
    case Order::kDoubleBackward:
      return 7;
  }
  return 0;
}

int64_t result_count(Order order) {
  switch (order) {
    case Order::kForward:
      return 1;
    case Order::kBackward:
      return 3;
    case Order::kDoubleBackward:
      return 4;
  }
  return 0;
}

constexpr int64_t kGraphOperands = 4;  // receivers, senders, workspace, order of the senders

void bind_tensors(Binder &bind, Order order, const KernelProperties &p, const Shapes &shapes, OeqCall &call) {
  const auto input = [&](const char *name, const Shape &shape, DType dtype) {
    return bind.argument(name, shape, dtype).data;
  };
  call.L1 = input("L1_in", shapes.l1, p.irrep_dtype);
  call.L2 = input("L2_in", shapes.l2, p.irrep_dtype);
  call.W = input("W", shapes.weights, p.weight_dtype);
  if (order == Order::kForward) {
    call.L3 = bind.result("L3_out", shapes.l3, p.irrep_dtype);
    return;
  }
  call.L3_grad = input("L3_grad", shapes.l3, p.irrep_dtype);
  call.L1_grad = bind.result("L1_grad", shapes.l1, p.irrep_dtype);
  call.L2_grad = bind.result("L2_grad", shapes.l2, p.irrep_dtype);
  call.W_grad = bind.result("W_grad", shapes.weights, p.weight_dtype);
  if (order == Order::kBackward) return;
  call.L1_dgrad = input("L1_dgrad", shapes.l1, p.irrep_dtype);
  call.L2_dgrad = input("L2_dgrad", shapes.l2, p.irrep_dtype);
  call.W_dgrad = input("W_dgrad", shapes.weights, p.weight_dtype);
  call.L3_dgrad = bind.result("L3_dgrad", shapes.l3, p.irrep_dtype);
}

void bind_graph(Binder &bind, const KernelProperties &p, OeqCall &call) {
  call.receivers = bind.argument("rows", vector(call.products), p.idx_dtype).data;
  call.senders = bind.argument("cols", vector(call.products), p.idx_dtype).data;
  call.workspace = bind.argument("workspace", vector(p.workspace_size), DType::kUint8).data;
  call.workspace_bytes = p.workspace_size;
  // Only deterministic kernels need the order of the senders; others are given a dummy.
  const XLA_FFI_Buffer &order =
      bind.argument("sender_perm", vector(p.deterministic ? call.products : kAny), p.idx_dtype);
  call.sender_order = order.data;
  call.sender_order_count = order.dims[0];
}

OeqCall bind_contraction(Order order, const KernelProperties &p, const XLA_FFI_CallFrame &frame) {
  Binder bind(frame);
  const bool backward = order == Order::kBackward;
  bind.expect_counts(backward ? 4 : 3, 1);
  OeqCall call{};
  call.products = bind.rows_of_argument(0);
  call.channels = bind.dimension_of_argument(0, 2);
  call.nodes = bind.rows_of_argument(1);
  const Shape features = blocks(call.products, p.l1_dim, call.channels);
  const Shape outputs = blocks(call.products, p.l3_dim, call.channels);
  call.L1 = bind.argument("features", features, p.irrep_dtype).data;
  call.W = bind.argument("weights", blocks(call.nodes, p.weight_numel, call.channels), p.weight_dtype).data;
  call.receivers = bind.argument("species", vector(call.products), p.idx_dtype).data;
  if (backward) {
    call.L3_grad = bind.argument("L3_grad", outputs, p.irrep_dtype).data;
    call.L1_grad = bind.result("L1_grad", features, p.irrep_dtype);
  } else {
    call.L3 = bind.result("L3_out", outputs, p.irrep_dtype);
  }
  return call;
}

}  // namespace

OeqCall bind_operands(Order order, const Payload &payload, const XLA_FFI_CallFrame &frame) {
  const KernelProperties &p = payload.properties;
  if (payload.family == Family::kContraction) return bind_contraction(order, p, frame);
  const bool convolution = payload.family == Family::kConvolution;
  Binder bind(frame);
  bind.expect_counts(tensor_count(order) + (convolution ? kGraphOperands : 0), result_count(order));

  OeqCall call{};
  const int64_t l1_rows = bind.rows_of_argument(0);
  call.nodes = convolution ? l1_rows : 0;
  call.products = convolution ? bind.rows_of_argument(tensor_count(order)) : l1_rows;
  const Shapes shapes{matrix(l1_rows, p.l1_dim), matrix(call.products, p.l2_dim), matrix(l1_rows, p.l3_dim),
                      p.shared_weights ? vector(p.weight_numel) : matrix(call.products, p.weight_numel)};
  bind_tensors(bind, order, p, shapes, call);
  if (convolution) bind_graph(bind, p, call);
  return call;
}

}  // namespace oeq
