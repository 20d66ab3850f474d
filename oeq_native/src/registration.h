// SPDX-License-Identifier: BSD-3-Clause
//
// Consumers of the handler table.
#pragma once

#include <string>

#include "oeq_native.h"
#include "xla/ffi/api/c_api.h"

namespace oeq {

/// Why this library's code must not read a table; "" where it may.
std::string refusal(const OeqFfiHandlerTable *table);

/// The table's spelling of a platform ("cpu" and "HOST" are "Host"); "" where the table knows none of that name.
std::string platform_of_table(const char *platform);

/// Registers types, then handlers of the platform. Returns "" or one line that says which target failed and why.
std::string register_table(const OeqFfiHandlerTable *table, const XLA_FFI_Api *api, const char *platform);

}  // namespace oeq
