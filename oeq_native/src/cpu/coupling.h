// SPDX-License-Identifier: BSD-3-Clause
//
// Real Clebsch-Gordan coefficients.
#pragma once

#include <vector>

namespace oeq::cpu {

/// Coupling of real spherical harmonics of degrees l1, l2 to l3: array [2 l1 + 1, 2 l2 + 1, 2 l3 + 1], row-major, with
/// Frobenius norm 1, in e3nn's convention (components ordered m = -l..l; y, z, x for l = 1). Racah's closed formula for
/// the complex coefficients (Edmonds, Angular Momentum in Quantum Mechanics, eq. 3.6.11), then the change of basis from
/// complex to real harmonics. Evaluated in long double; exact zeros are exact. Needs |l1 - l2| <= l3 <= l1 + l2.
std::vector<double> real_clebsch_gordan(int l1, int l2, int l3);

}  // namespace oeq::cpu
