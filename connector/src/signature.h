// SPDX-License-Identifier: BSD-3-Clause
// The arguments and results of a program's function `main`, as its text declares them.
#pragma once

#include <string>
#include <string_view>

#include "program.h"

namespace stablemd {

/// Compares the text's function `main` with the manifest: numbers, types and shapes of arguments and results. Throws
/// Error(SMD_ERROR_FORMAT) with the first difference, so that a bundle which contradicts itself never gets as far as
/// the compiler, whose own complaint is pages long.
void check_signature(std::string_view source, const ProgramInterface &program, int layers);

}  // namespace stablemd
