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
    {Role::weight, "weight", false},
    {Role::node_energy, "node_energy", true},
    {Role::edge_gradient, "edge_gradient", true},
};

/// Type and shape that a role demands; `real` is the bundle's type.
Port required_port(Role role, const ElementType *real, int layers) {
  const ElementType *int32 = type_by_name("int32");
  const auto symbol = [layers](const std::string &name) { return SizeExpression::parse(name, layers); };
  switch (role) {
    case Role::species:
      return {role, int32, {symbol("N")}, {}};
    case Role::centers:
    case Role::neighbors:
      return {role, int32, {symbol("E1")}, {}};
    case Role::owned:
      return {role, int32, {}, {}};
    case Role::node_energy:
      return {role, real, {symbol("C" + std::to_string(layers))}, {}};
    default:
      return {role, real, {symbol("E1"), SizeExpression(3)}, {}};
  }
}

void check_port(const Port &port, const ElementType *real, int layers, const std::string &where) {
  const Port required = required_port(port.role, real, layers);
  if (port.type != required.type) {
    fail(SMD_ERROR_FORMAT, where, ": `", role_name(port.role), "` must be ", required.type->name, ", is ",
         port.type->name);
  }
  if (port.shape != required.shape) {
    fail(SMD_ERROR_FORMAT, where, ": `", role_name(port.role), "` has a shape other than docs/bundle.md says");
  }
}

size_t count(const std::vector<Port> &ports, Role role) {
  return std::count_if(ports.begin(), ports.end(), [role](const Port &port) { return port.role == role; });
}

}  // namespace

const char *role_name(Role role) {
  for (const RoleRule &rule : kRoles) {
    if (rule.role == role) return rule.name;
  }
  return "?";
}

void check_interface(const ProgramInterface &program, const ElementType *real, int layers, const std::string &where) {
  for (const Port &port : program.inputs) {
    if (port.role != Role::weight) check_port(port, real, layers, where + ".inputs");
  }
  for (const Port &port : program.outputs) check_port(port, real, layers, where + ".outputs");
  for (const RoleRule &rule : kRoles) {
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
