// SPDX-License-Identifier: BSD-3-Clause
#include "graph_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "error.h"

namespace stablemd {
namespace {

std::string names_of(const std::vector<GraphInput> &inputs) {
  std::string names;
  for (const GraphInput &input : inputs) names += (names.empty() ? "" : ", ") + input.name;
  return names.empty() ? "nothing of the whole structure" : names;
}

std::string digits(double number) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.10g", number);
  return buffer;
}

std::string range_of(const GraphInput &input) {
  std::string range = input.integer ? "a whole number" : "a finite number";
  const bool below = std::isfinite(input.minimum), above = std::isfinite(input.maximum);
  if (below && above) return range + " from " + digits(input.minimum) + " to " + digits(input.maximum);
  if (below) return range + ", at least " + digits(input.minimum);
  if (above) return range + ", at most " + digits(input.maximum);
  return range;
}

/// Whether the value is one of the input's, and still is when the program's type has rounded it.
bool allows(const GraphInput &input, double value, const ElementType &real) {
  if (!std::isfinite(value) || value < input.minimum || value > input.maximum) return false;
  const double rounded = real.bytes == 8 ? value : static_cast<double>(static_cast<float>(value));
  return std::isfinite(rounded) && (!input.integer || (rounded == value && value == std::floor(value)));
}

}  // namespace

GraphInputs::GraphInputs(const std::vector<GraphInput> &inputs, const ElementType *real)
    : inputs_(inputs), real_(real) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    values_.emplace_back(sizeof(double));
    write(i, inputs_[i].initial);
  }
}

void GraphInputs::set(const std::string &name, double value) {
  const size_t index = index_of(name);
  const GraphInput &input = inputs_[index];
  if (!allows(input, value, *real_))
    fail(SMD_ERROR_ARGUMENT, "`", name, "` is ", digits(value), ", it must be ", range_of(input));
  write(index, value);
}

const void *GraphInputs::data(const std::string &name) const { return values_[index_of(name)].data(); }

size_t GraphInputs::index_of(const std::string &name) const {
  const auto is_it = [&](const GraphInput &input) { return input.name == name; };
  const auto found = std::find_if(inputs_.begin(), inputs_.end(), is_it);
  if (found == inputs_.end())
    fail(SMD_ERROR_ARGUMENT, "takes no `", name.substr(0, 60), "`; it takes ", names_of(inputs_));
  return found - inputs_.begin();
}

void GraphInputs::write(size_t index, double value) {
  if (real_->bytes == 8) {
    *values_[index].as<double>() = value;
  } else {
    *values_[index].as<float>() = static_cast<float>(value);
  }
}

}  // namespace stablemd
