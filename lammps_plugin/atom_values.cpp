// SPDX-License-Identifier: GPL-2.0-or-later
#include "atom_values.h"

#include <algorithm>
#include <cmath>

namespace stablemd {

namespace {

std::string component_name(const AtomQuantity &quantity, int component) {
  return quantity.width() == 1 ? quantity.name() : quantity.name() + "[" + std::to_string(component + 1) + "]";
}

std::string spread_name(const AtomQuantity &quantity) { return quantity.name() + "_spread"; }

}  // namespace

void AtomQuantity::start(int atoms) {
  const int room = std::max(atoms, 1);  // a rank without atoms has arrays too
  for (std::vector<double> &column : mean_) column.assign(room, 0.0);
  spread_.assign(room, 0.0);
}

void AtomQuantity::add(int model, int atom, const double *values) {
  for (int k = 0; k < width_; ++k) {
    double &mean = mean_[k][atom];
    const double before = values[k] - mean;
    mean += before / (model + 1);
    spread_[atom] += before * (values[k] - mean);
  }
}

void AtomQuantity::finish(int models) {
  for (double &value : spread_) value = std::sqrt(value / models);
}

void AtomValues::configure(std::vector<AtomQuantity> extra, int models) {
  outputs = std::move(extra);
  models_ = models;
}

void AtomValues::start(int atoms) {
  if (models_ > 1) {
    forces.start(atoms);
    energies.start(atoms);
  }
  for (AtomQuantity &output : outputs) output.start(atoms);
}

void AtomValues::finish() {
  if (models_ == 1) return;
  forces.finish(models_);
  energies.finish(models_);
  for (AtomQuantity &output : outputs) output.finish(models_);
}

double *AtomValues::find(const std::string &name) {
  for (AtomQuantity &output : outputs) {
    for (int k = 0; k < output.width(); ++k)
      if (name == component_name(output, k)) return output.mean(k);
    if (models_ > 1 && name == spread_name(output)) return output.spread();
  }
  if (models_ > 1)
    for (AtomQuantity *quantity : {&forces, &energies})
      if (name == spread_name(*quantity)) return quantity->spread();
  return nullptr;
}

std::string AtomValues::names() const {
  std::string all;
  const auto append = [&](const std::string &name) { all += (all.empty() ? "" : " ") + name; };
  for (const AtomQuantity &output : outputs) {
    for (int k = 0; k < output.width(); ++k) append(component_name(output, k));
    if (models_ > 1) append(spread_name(output));
  }
  if (models_ > 1)
    for (const AtomQuantity *quantity : {&forces, &energies}) append(spread_name(*quantity));
  return all;
}

}  // namespace stablemd
