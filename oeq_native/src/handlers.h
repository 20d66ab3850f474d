// SPDX-License-Identifier: BSD-3-Clause
//
// The stages of a target as XLA FFI handlers, made from its line in targets.h.
#pragma once

#include "targets.h"
#include "xla/ffi/api/ffi.h"

namespace oeq {

struct Stages {
  XLA_FFI_Handler *instantiate, *prepare, *initialize, *execute;
};

/// The bundle of target `index` of kTargets for a platform.
Stages stages(size_t index, Platform platform);

}  // namespace oeq
