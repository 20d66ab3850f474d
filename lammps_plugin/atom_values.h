// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <string>
#include <vector>

namespace stablemd {

/// A quantity of each atom over the models of an ensemble: its mean and its spread, taken in one pass (Welford,
/// Technometrics 4, 419 (1962)), so that large numbers which nearly agree lose no digits.
class AtomQuantity {
 public:
  AtomQuantity(std::string name, int width) : name_(std::move(name)), width_(width), mean_(width) {}

  const std::string &name() const { return name_; }
  int width() const { return width_; }

  /// Forgets all; the values of atoms that no model tells anything about are 0.
  void start(int atoms);

  /// The values [width] of an atom in model number `model` = 0, 1, ..., in this order.
  void add(int model, int atom, const double *values);

  /// sqrt(mean over models of |x - mean x|^2), the sum running over the components. Call after the last model.
  void finish(int models);

  double *mean(int component) { return mean_[component].data(); }
  double *spread() { return spread_.data(); }

 private:
  std::string name_;
  int width_;
  std::vector<std::vector<double>> mean_;  // [component][atom]
  std::vector<double> spread_;             // [atom] sum of squared deviations until finish()
};

/// What LAMMPS can ask for by name, for each owned atom: extra outputs of the models, component by component
/// (`dipole[1]`), and in an ensemble the spreads of forces, energies and outputs (`forces_spread`).
class AtomValues {
 public:
  AtomQuantity forces{"forces", 3}, energies{"energies", 1};
  std::vector<AtomQuantity> outputs;

  void configure(std::vector<AtomQuantity> extra, int models);
  void start(int atoms);
  void finish();

  /// [atom], or nullptr where nothing has this name.
  double *find(const std::string &name);

  /// All names, for a message.
  std::string names() const;

 private:
  int models_ = 1;
};

}  // namespace stablemd
