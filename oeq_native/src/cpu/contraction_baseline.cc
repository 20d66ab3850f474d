// SPDX-License-Identifier: BSD-3-Clause
#define OEQ_LOOPS kBaselineLoops
#define OEQ_VECTOR 16
#include "contraction_loops.inc"
