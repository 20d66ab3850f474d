// SPDX-License-Identifier: BSD-3-Clause
// A bundle on a runtime: weights on the device, the current capacity, evaluation.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "bundle.h"
#include "graph_arrays.h"
#include "graph_inputs.h"
#include "runtime.h"

namespace stablemd {

class Model {
 public:
  Model(std::shared_ptr<Runtime> runtime, const std::string &path);

  const Manifest &manifest() const { return manifest_; }

  /// Whether the arrays moved.
  bool reserve(const smd_graph_size &size, smd_graph &graph);
  void evaluate(smd_result &result);
  void set_input(const std::string &name, double value);
  void get_stats(smd_model_stats &stats) const;

 private:
  /// An argument of the program. Weights stay as they are; arrays are read in place, or copied before each evaluation
  /// where the plugin keeps its data elsewhere.
  struct Argument {
    BufferHandle buffer;
    bool copied_each_time;
  };

  std::shared_ptr<Runtime> runtime_;
  std::string name_;
  Manifest manifest_;
  ProgramInterface interface_;
  Program program_;
  bool checks_edges_;  // $STABLEMD_CHECK

  CapacityKeeper keeper_;
  SizedExecutable program_in_use_;
  GraphArrays arrays_;
  GraphInputs inputs_;
  std::vector<Argument> arguments_;  // in the order of the program's inputs
  std::vector<BufferHandle> outputs_;
  std::vector<AlignedMemory> copies_;       // of outputs, where they are not in the host's memory
  std::vector<const void *> node_outputs_;  // in the order of the manifest

  CompileStats compile_stats_;
  int64_t evaluations_ = 0;
  int64_t capacity_changes_ = 0;
  double execute_seconds_ = 0;

  void check_targets() const;
  void check_stablehlo() const;
  void check_outputs(const SizedExecutable &sized) const;
  void upload_weights(const Bundle &bundle);
  const void *data(const Port &port, const GraphArrays &arrays) const;
  BufferHandle upload(const Port &port, const GraphArrays &arrays, HostMemory memory) const;
  SizedExecutable compiled(const HopCounts &wanted);
  void explain_unreadable(const std::string &message) const;
  bool change_capacity(const HopCounts &need, bool only_if_free);
  size_t output_index(Role role, const std::string &name = "") const;
  const void *read(size_t output);
  void check_finite(const void *node_energy, const void *edge_gradient) const;
  void check_node_outputs() const;
};

}  // namespace stablemd
