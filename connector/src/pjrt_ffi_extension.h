// SPDX-License-Identifier: BSD-3-Clause
// Binary interface of PJRT's FFI extension, which the header of PyPI's xla-cpu-pjrt leaves out.
#pragma once

#include "pjrt_c_api.h"

namespace stablemd {

/// Unlike other argument structs it has no chain of extensions.
struct RegisterHandlerArgs {
  size_t struct_size;
  const char *target_name;
  size_t target_name_size;
  void *handler;  // XLA_FFI_Handler *
  const char *platform_name;
  size_t platform_name_size;
  uint32_t traits;
};

/// Extension of type PJRT_Extension_Type_FFI. The two slots that are not typed here are not used.
struct FfiExtension {
  PJRT_Extension_Base base;
  void *type_register;
  void *user_data_add;
  PJRT_Error *(*register_handler)(RegisterHandlerArgs *);
};

}  // namespace stablemd
