// SPDX-License-Identifier: BSD-3-Clause
// What a model takes of the whole structure, such as its charge: the values in use.
#pragma once

#include <string>
#include <vector>

#include "graph_arrays.h"
#include "program.h"

namespace stablemd {

class GraphInputs {
 public:
  GraphInputs() = default;
  /// Each has its initial value.
  GraphInputs(const std::vector<GraphInput> &inputs, const ElementType *real);

  /// Throws Error(SMD_ERROR_ARGUMENT) for a name that is not there and a value out of range; nothing changes then.
  void set(const std::string &name, double value);

  /// One number of the program's type. It stays in its place when its value changes.
  const void *data(const std::string &name) const;

 private:
  std::vector<GraphInput> inputs_;
  const ElementType *real_ = nullptr;
  std::vector<AlignedMemory> values_;  // as inputs_

  size_t index_of(const std::string &name) const;
  void write(size_t index, double value);
};

}  // namespace stablemd
