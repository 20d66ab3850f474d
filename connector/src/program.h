// SPDX-License-Identifier: BSD-3-Clause
// A program of a bundle: what goes in and out by role, and the template of its text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dtype.h"
#include "sizes.h"

namespace stablemd {

enum class Role {
  species,
  vectors,
  centers,
  neighbors,
  owned,
  graph_input,
  weight,
  node_energy,
  edge_gradient,
  node_output
};

const char *role_name(Role role);

/// One argument or result of a program.
struct Port {
  Role role;
  const ElementType *type;
  std::vector<SizeExpression> shape;
  std::string tensor;  // of a weight
  std::string name;    // of a graph input or a node output
};

/// An extra result for each atom, such as a charge.
struct NodeOutput {
  std::string name;
  std::string unit;
  int32_t width;  // numbers per atom
};

/// A number that the model takes of the whole structure, such as its charge.
struct GraphInput {
  std::string name;
  double initial;
  double minimum, maximum;  // infinite where there is no limit
  bool integer;
};

/// What the manifest says about a program.
struct ProgramInterface {
  std::string text;  // name of the tensor with the template
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  std::vector<std::string> targets;
};

/// Checks that ports have the types and shapes that their roles demand, that all of `inputs` go in and all of `extra`
/// come out. `where` begins the complaint.
void check_interface(const ProgramInterface &program, const ElementType *real, int layers,
                     const std::vector<GraphInput> &inputs, const std::vector<NodeOutput> &extra,
                     const std::string &where);

/// Text in which each `@{expression}` depends on the sizes.
class ProgramTemplate {
 public:
  ProgramTemplate() = default;
  ProgramTemplate(std::string_view source, int layers);

  std::string instantiate(const Sizes &sizes) const;

 private:
  struct Piece {
    std::string literal;  // precedes the number
    SizeExpression number;
  };
  std::vector<Piece> pieces_;
  std::string tail_;
};

}  // namespace stablemd
