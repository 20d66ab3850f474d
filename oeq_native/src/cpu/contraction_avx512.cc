// SPDX-License-Identifier: BSD-3-Clause
#ifdef __x86_64__
#define OEQ_LOOPS kAvx512Loops
#define OEQ_VECTOR 64
#include "contraction_loops.inc"
#endif
