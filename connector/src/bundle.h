// SPDX-License-Identifier: BSD-3-Clause
// The bundle (docs/bundle.md): a safetensors file whose every length, offset and field is checked before use.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dtype.h"
#include "program.h"
#include "stablemd.h"

namespace stablemd {

struct Tensor {
  const ElementType *type;
  std::vector<int64_t> shape;
  const char *data;  // of any alignment
  size_t bytes;
};

struct Manifest {
  std::string json;
  double cutoff;
  int layers;
  const ElementType *real;  // float32 or float64
  std::vector<std::string> elements;
  std::vector<double> atomic_energies;
  std::string energy_unit;
  std::string length_unit;
  std::string stablehlo_version;         // "" where the file does not tell
  std::string made_with;                 // such as "jax 0.10.2"; "" where the file does not tell
  std::vector<GraphInput> graph_inputs;  // in the order of their names
  std::vector<NodeOutput> node_outputs;  // in the order of their names
  std::map<std::string, ProgramInterface> programs;

  smd_dtype dtype() const { return real->bytes == 8 ? SMD_FLOAT64 : SMD_FLOAT32; }
};

class Bundle {
 public:
  /// Reads the whole file: a mapped one would kill the process if somebody truncated it meanwhile.
  static Bundle read(const std::string &path);

  /// `name` begins every complaint.
  static Bundle parse(std::vector<char> bytes, const std::string &name);

  const std::string &name() const { return name_; }
  const Manifest &manifest() const { return manifest_; }
  const Tensor &tensor(const std::string &name) const { return tensors_.at(name); }

  /// Complains where the bundle has no program for this platform.
  const ProgramInterface &program(const std::string &platform) const;
  std::string_view program_text(const ProgramInterface &program) const;

 private:
  std::string name_;
  std::vector<char> bytes_;
  std::map<std::string, Tensor> tensors_;
  Manifest manifest_;
};

}  // namespace stablemd
