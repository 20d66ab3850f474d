// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

#include "backend.h"

namespace oeq {

/// Parses a call's attribute `kernel`: a JSON object with OpenEquivariance's keys kernel (CUDA source), forward_config,
/// backward_config, double_backward_config and kernel_prop, and ours, problem. `kernel_prop` must be there, and at
/// least one of `kernel` and `problem`. Throws KernelError that names the key.
Payload parse_payload(Family family, std::string_view text);

}  // namespace oeq
