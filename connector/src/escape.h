// SPDX-License-Identifier: BSD-3-Clause
// Text of files and of others' messages as it may be shown: one line that neither moves the cursor nor lies about its
// order.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace stablemd {

/// Control characters, marks that turn the direction of writing or have no width, and bytes that are no UTF-8, as
/// `\n`, `\x1b` and `\u202e`; all else as it is.
std::string escaped(std::string_view text);

/// The same into `size` bytes, ended by a zero and cut before what does not fit. Needs no memory.
void escape_into(char *to, size_t size, std::string_view text);

inline bool is_printable(std::string_view text) { return escaped(text) == text; }

}  // namespace stablemd
