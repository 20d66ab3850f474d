// SPDX-License-Identifier: BSD-3-Clause
#include "program.h"

#include <algorithm>
#include <charconv>

#include "error.h"

namespace stablemd {
namespace {

struct RoleRule {
  Role role;
  const char *name;
  bool output;
};

constexpr RoleRule kRoles[] = {
    {Role::species, "species", false},
    {Role::vectors, "vectors", false},
    {Role::centers, "centers", false},
    {Role::neighbors, "neighbors", false},
    {Role::owned, "owned", false},
    {Role::graph_input, "graph_input", false},
    {Role::weight, "weight", false},
    {Role::node_energy, "node_energy", true},
    {Role::edge_gradient, "edge_gradient", true},
    {Role::node_output, "node_output", true},
};

/// Type and shape that a role demands; `real` is the bundle's type, `width` a node output's.
Port required_port(Role role, const ElementType *real, int layers, int32_t width = 1) {
  const ElementType *int32 = type_by_name("int32");
  const auto symbol = [layers](const std::string &name) { return SizeExpression::parse(name, layers); };
  const auto computed = [&] { return symbol("C" + std::to_string(layers)); };
  switch (role) {
    case Role::species:
      return {role, int32, {symbol("N")}, {}, {}};
    case Role::centers:
    case Role::neighbors:
      return {role, int32, {symbol("E1")}, {}, {}};
    case Role::owned:
      return {role, int32, {}, {}, {}};
    case Role::graph_input:
      return {role, real, {}, {}, {}};
    case Role::node_energy:
      return {role, real, {computed()}, {}, {}};
    case Role::node_output:
      if (width == 1) return {role, real, {computed()}, {}, {}};
      return {role, real, {computed(), SizeExpression(width)}, {}, {}};
    default:
      return {role, real, {symbol("E1"), SizeExpression(3)}, {}, {}};
  }
}

void check_port(const Port &port, const Port &required, const std::string &where) {
  const std::string name = port.name.empty() ? role_name(port.role) : port.name;
  if (port.type != required.type) {
    fail(SMD_ERROR_FORMAT, where, ": `", name, "` must be ", required.type->name, ", is ", port.type->name);
  }
  if (port.shape != required.shape) {
    fail(SMD_ERROR_FORMAT, where, ": `", name, "` has a shape other than docs/bundle.md says");
  }
}

size_t count(const std::vector<Port> &ports, Role role) {
  return std::count_if(ports.begin(), ports.end(), [role](const Port &port) { return port.role == role; });
}

/// Ports of a role with names must be those that the manifest lists, each once. `kind` is the role in words.
void check_named(const std::vector<Port> &ports, const std::vector<Port> &required, Role role, const char *kind,
                 const std::string &where) {
  for (const Port &one : required) {
    const auto is_it = [&](const Port &port) { return port.role == role && port.name == one.name; };
    const auto port = std::find_if(ports.begin(), ports.end(), is_it);
    if (port == ports.end()) fail(SMD_ERROR_FORMAT, where, ": lacks the ", kind, " `", one.name, "`");
    check_port(*port, one, where);
  }
  if (count(ports, role) != required.size())
    fail(SMD_ERROR_FORMAT, where, ": a ", kind, " is given twice, or not in the manifest's ", role_name(role), "s");
}

void check_graph_inputs(const ProgramInterface &program, const ElementType *real, int layers,
                        const std::vector<GraphInput> &inputs, const std::string &where) {
  std::vector<Port> required;
  for (const GraphInput &input : inputs) {
    required.push_back(required_port(Role::graph_input, real, layers));
    required.back().name = input.name;
  }
  check_named(program.inputs, required, Role::graph_input, "graph input", where + ".inputs");
}

void check_node_outputs(const ProgramInterface &program, const ElementType *real, int layers,
                        const std::vector<NodeOutput> &outputs, const std::string &where) {
  std::vector<Port> required;
  for (const NodeOutput &output : outputs) {
    required.push_back(required_port(Role::node_output, real, layers, output.width));
    required.back().name = output.name;
  }
  check_named(program.outputs, required, Role::node_output, "node output", where + ".outputs");
}

}  // namespace

const char *role_name(Role role) {
  for (const RoleRule &rule : kRoles) {
    if (rule.role == role) return rule.name;
  }
  return "?";
}

void check_interface(const ProgramInterface &program, const ElementType *real, int layers,
                     const std::vector<GraphInput> &inputs, const std::vector<NodeOutput> &extra,
                     const std::string &where) {
  for (const Port &port : program.inputs) {
    if (port.role != Role::weight) check_port(port, required_port(port.role, real, layers), where + ".inputs");
  }
  for (const Port &port : program.outputs) {
    if (port.role != Role::node_output) check_port(port, required_port(port.role, real, layers), where + ".outputs");
  }
  check_graph_inputs(program, real, layers, inputs, where);
  check_node_outputs(program, real, layers, extra, where);
  for (const RoleRule &rule : kRoles) {
    if (rule.role == Role::node_output || rule.role == Role::graph_input) continue;
    const size_t found = count(rule.output ? program.outputs : program.inputs, rule.role);
    if (rule.role != Role::weight && found > 1)
      fail(SMD_ERROR_FORMAT, where, ": role `", rule.name, "` is given twice");
    if (rule.output && found == 0) fail(SMD_ERROR_FORMAT, where, ": no output has the role `", rule.name, "`");
  }
}

ProgramTemplate::ProgramTemplate(std::string_view source, int layers) {
  size_t at = 0;
  for (size_t hole = source.find("@{"); hole != std::string_view::npos; hole = source.find("@{", at)) {
    const size_t end = source.find('}', hole);
    if (end == std::string_view::npos) fail(SMD_ERROR_FORMAT, "program text ends inside `@{`");
    pieces_.push_back({std::string(source.substr(at, hole - at)),
                       SizeExpression::parse(source.substr(hole + 2, end - hole - 2), layers)});
    at = end + 1;
  }
  tail_ = source.substr(at);
}

std::string ProgramTemplate::instantiate(const Sizes &sizes) const {
  std::string result;
  size_t length = tail_.size();
  for (const Piece &piece : pieces_) length += piece.literal.size() + 12;
  result.reserve(length);
  char digits[24];
  for (const Piece &piece : pieces_) {
    result += piece.literal;
    char *end = std::to_chars(digits, digits + sizeof digits, piece.number.value(sizes)).ptr;
    result.append(digits, end - digits);
  }
  result += tail_;
  return result;
}

}  // namespace stablemd
