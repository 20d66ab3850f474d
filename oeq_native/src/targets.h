// SPDX-License-Identifier: BSD-3-Clause
//
// The targets of this library. This list is the only one: handlers, table, registration and JAX's dictionary follow
// from it.
#pragma once

#include <cstddef>

#include "backend.h"

namespace oeq {

struct Target {
  const char *name;
  Family family;
  Order order;
};

inline constexpr Target kTargets[] = {
    {"tp_forward", Family::kTensorProduct, Order::kForward},
    {"tp_backward", Family::kTensorProduct, Order::kBackward},
    {"tp_double_backward", Family::kTensorProduct, Order::kDoubleBackward},
    {"conv_forward", Family::kConvolution, Order::kForward},
    {"conv_backward", Family::kConvolution, Order::kBackward},
    {"conv_double_backward", Family::kConvolution, Order::kDoubleBackward},
    {"contraction_forward", Family::kContraction, Order::kForward},
    {"contraction_backward", Family::kContraction, Order::kBackward},
};

inline constexpr size_t kTargetCount = sizeof(kTargets) / sizeof(kTargets[0]);

}  // namespace oeq
