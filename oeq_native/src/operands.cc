// SPDX-License-Identifier: BSD-3-Clause
#include "operands.h"

#include <initializer_list>
#include <sstream>

namespace oeq {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kAny = -1;  // a dimension that may have any length

struct Shape {
  int rank;
  int64_t dims[2];
};

Shape vector(int64_t length) { return {1, {length, 0}}; }
Shape matrix(int64_t rows, int64_t columns) { return {2, {rows, columns}}; }

ffi::DataType xla_dtype(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ffi::DataType::F32;
    case DType::kFloat64:
      return ffi::DataType::F64;
    case DType::kInt32:
      return ffi::DataType::S32;
    case DType::kInt64:
      return ffi::DataType::S64;
    case DType::kUint8:
      return ffi::DataType::U8;
  }
  return ffi::DataType::INVALID;
}

bool fits(const ffi::AnyBuffer &buffer, const Shape &shape, DType dtype) {
  const auto dims = buffer.dimensions();
  if (buffer.element_type() != xla_dtype(dtype) || dims.size() != static_cast<size_t>(shape.rank)) return false;
  for (int i = 0; i < shape.rank; ++i) {
    if (shape.dims[i] != kAny && dims[i] != shape.dims[i]) return false;
  }
  return true;
}

/// E.g. "F32[10, 32]"; a dimension that may be anything is "?".
template <typename Dims>
std::string described(ffi::DataType dtype, const Dims &dims, size_t rank) {
  std::ostringstream text;
  text << dtype << "[";
  for (size_t i = 0; i < rank; ++i) {
    text << (i == 0 ? "" : ", ");
    if (dims[i] == kAny) {
      text << "?";
    } else {
      text << dims[i];
    }
  }
  text << "]";
  return text.str();
}

/// Takes operands and results in order, checking each.
class Binder {
 public:
  Binder(ffi::RemainingArgs &arguments, ffi::RemainingRets &results) : arguments_(arguments), results_(results) {}

  void expect_counts(size_t arguments, size_t results) const {
    if (arguments_.size() == arguments && results_.size() == results) return;
    throw KernelError("called with " + std::to_string(arguments_.size()) + " operands and " +
                      std::to_string(results_.size()) + " results, takes " + std::to_string(arguments) + " and " +
                      std::to_string(results));
  }

  ffi::AnyBuffer argument(const char *name, const Shape &shape, DType dtype) {
    auto buffer = arguments_.get<ffi::AnyBuffer>(next_argument_++);
    if (!buffer.has_value()) fail(name, "is not a buffer");
    check(name, *buffer, shape, dtype);
    return *buffer;
  }

  void *result(const char *name, const Shape &shape, DType dtype) {
    auto buffer = results_.get<ffi::AnyBuffer>(next_result_++);
    if (!buffer.has_value()) fail(name, "is not a buffer");
    check(name, **buffer, shape, dtype);
    return (*buffer)->untyped_data();
  }

  /// Length of the first dimension of an operand still to come; 0 where it has none.
  int64_t rows_of_argument(size_t index) {
    auto buffer = arguments_.get<ffi::AnyBuffer>(index);
    if (!buffer.has_value() || buffer->dimensions().size() == 0) return 0;
    return buffer->dimensions()[0];
  }

 private:
  void check(const char *name, const ffi::AnyBuffer &buffer, const Shape &shape, DType dtype) const {
    if (fits(buffer, shape, dtype)) return;
    const auto dims = buffer.dimensions();
    fail(name, "must be " + described(xla_dtype(dtype), shape.dims, static_cast<size_t>(shape.rank)) + ", is " +
                   described(buffer.element_type(), dims, dims.size()));
  }

  [[noreturn]] void fail(const char *name, const std::string &what) const {
    throw KernelError(std::string(name) + " " + what);
  }

  ffi::RemainingArgs &arguments_;
  ffi::RemainingRets &results_;
  size_t next_argument_ = 0, next_result_ = 0;
};

/// Shapes of the arrays of one call. Rows of L1 and L3 are nodes in a convolution; rows of L2 are its edges.
struct Shapes {
  Shape l1, l2, l3, weights;
};

size_t tensor_count(Order order) {
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

size_t result_count(Order order) {
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

constexpr size_t kGraphOperands = 4;  // receivers, senders, workspace, order of the senders

void bind_tensors(Binder &bind, Order order, const KernelProperties &p, const Shapes &shapes, OeqCall &call) {
  const auto input = [&](const char *name, const Shape &shape, DType dtype) {
    return bind.argument(name, shape, dtype).untyped_data();
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
  call.receivers = bind.argument("rows", vector(call.products), p.idx_dtype).untyped_data();
  call.senders = bind.argument("cols", vector(call.products), p.idx_dtype).untyped_data();
  call.workspace = bind.argument("workspace", vector(p.workspace_size), DType::kUint8).untyped_data();
  call.workspace_bytes = p.workspace_size;
  // Only deterministic kernels need the order of the senders; others are given a dummy.
  const ffi::AnyBuffer order =
      bind.argument("sender_perm", vector(p.deterministic ? call.products : kAny), p.idx_dtype);
  call.sender_order = order.untyped_data();
  call.sender_order_count = order.dimensions()[0];
}

}  // namespace

OeqCall bind_operands(Order order, const Payload &payload, ffi::RemainingArgs &arguments, ffi::RemainingRets &results) {
  const KernelProperties &p = payload.properties;
  const bool convolution = payload.family == Family::kConvolution;
  Binder bind(arguments, results);
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
