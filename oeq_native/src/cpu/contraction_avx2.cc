// SPDX-License-Identifier: BSD-3-Clause
#ifdef __x86_64__
#define OEQ_LOOPS kAvx2Loops
#define OEQ_VECTOR 32
#include "contraction_loops.inc"
#endif
