// SPDX-License-Identifier: BSD-3-Clause
//
// The order of operands and results of each op (OpenEquivariance 0.7's), and what they must look like.
#pragma once

#include "backend.h"
#include "xla/ffi/api/c_api.h"

namespace oeq {

/// Fills an OeqCall from the operands and results of a call; throws KernelError naming the one that does not fit the
/// payload.
OeqCall bind_operands(Order order, const Payload &payload, const XLA_FFI_CallFrame &frame);

}  // namespace oeq
