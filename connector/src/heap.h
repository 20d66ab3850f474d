// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace stablemd {

/// Tells the C library to keep freed memory for the next evaluation; once per process, unless STABLEMD_MALLOC=default.
///
/// XLA on the CPU takes the program's work space anew for every execution, hundreds of megabytes for a few hundred
/// atoms of a MACE. By default glibc maps that much afresh and returns it at once, and the kernel clears every page
/// again: as much time as the program itself takes. Blocks of any size now come from one heap that is never trimmed.
/// (One, because the heaps that glibc makes for other threads cannot hold blocks beyond 64 MB.)
void keep_freed_memory();

}  // namespace stablemd
