// SPDX-License-Identifier: BSD-3-Clause
#include "coupling.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdlib>

namespace oeq::cpu {
namespace {

using Real = long double;
using Complex = std::complex<Real>;

Real factorial(int n) {
  Real product = 1;
  for (int k = 2; k <= n; ++k) product *= k;
  return product;
}

/// <l1 m1 l2 m2 | l3 m1+m2> with the Condon-Shortley phase.
Real complex_clebsch_gordan(int l1, int m1, int l2, int m2, int l3) {
  const int m3 = m1 + m2;
  if (std::abs(m3) > l3) return 0;
  const Real triangle =
      factorial(l1 + l2 - l3) * factorial(l1 - l2 + l3) * factorial(-l1 + l2 + l3) / factorial(l1 + l2 + l3 + 1);
  const Real root = std::sqrt((2 * l3 + 1) * triangle * factorial(l1 + m1) * factorial(l1 - m1) * factorial(l2 + m2) *
                              factorial(l2 - m2) * factorial(l3 + m3) * factorial(l3 - m3));
  const int first = std::max({0, l2 - l3 - m1, l1 - l3 + m2});
  const int last = std::min({l1 + l2 - l3, l1 - m1, l2 + m2});
  Real sum = 0;
  for (int k = first; k <= last; ++k) {
    const Real term = 1 / (factorial(k) * factorial(l1 + l2 - l3 - k) * factorial(l1 - m1 - k) *
                           factorial(l2 + m2 - k) * factorial(l3 - l2 + m1 + k) * factorial(l3 - l1 - m2 + k));
    sum += k % 2 ? -term : term;
  }
  return root * sum;
}

/// Weight of the complex harmonic m in the real harmonic `component`, times (-i)^l, which makes the couplings real.
Complex basis_change(int l, int m, int component) {
  const Complex phases[4] = {{1, 0}, {0, -1}, {-1, 0}, {0, 1}};
  const Complex phase = phases[l % 4];
  if (std::abs(component) != std::abs(m)) return 0;
  if (m == 0) return phase;
  const Real half = 1 / std::sqrt(Real(2));
  if (m < 0) return phase * (component > 0 ? Complex(half, 0) : Complex(0, -half));
  const Real signed_half = m % 2 ? -half : half;
  return phase * (component > 0 ? Complex(signed_half, 0) : Complex(0, signed_half));
}

/// The coefficient of the real components a, b, c before normalisation.
Real coupling(int l1, int a, int l2, int b, int l3, int c) {
  Complex sum = 0;
  for (int m1 = -std::abs(a); m1 <= std::abs(a); m1 += std::max(1, 2 * std::abs(a)))
    for (int m2 = -std::abs(b); m2 <= std::abs(b); m2 += std::max(1, 2 * std::abs(b)))
      if (std::abs(m1 + m2) == std::abs(c))
        sum += basis_change(l1, m1, a) * basis_change(l2, m2, b) * std::conj(basis_change(l3, m1 + m2, c)) *
               complex_clebsch_gordan(l1, m1, l2, m2, l3);
  return sum.real();
}

}  // namespace

std::vector<double> real_clebsch_gordan(int l1, int l2, int l3) {
  const int d1 = 2 * l1 + 1, d2 = 2 * l2 + 1, d3 = 2 * l3 + 1;
  std::vector<Real> values(static_cast<size_t>(d1 * d2 * d3));
  Real norm2 = 0;
  size_t index = 0;
  for (int a = -l1; a <= l1; ++a)
    for (int b = -l2; b <= l2; ++b)
      for (int c = -l3; c <= l3; ++c) {
        const Real value = coupling(l1, a, l2, b, l3, c);
        values[index++] = value;
        norm2 += value * value;
      }
  std::vector<double> result(values.size());
  const Real scale = 1 / std::sqrt(norm2);
  for (size_t i = 0; i < values.size(); ++i) {
    const Real value = values[i] * scale;
    result[i] = std::fabs(value) < 1e-15L ? 0.0 : static_cast<double>(value);
  }
  return result;
}

}  // namespace oeq::cpu
