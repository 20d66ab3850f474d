// SPDX-License-Identifier: BSD-3-Clause
#include "signature.h"

#include <algorithm>
#include <charconv>

#include "error.h"

namespace stablemd {
namespace {

constexpr std::string_view kMain = "sym_name = #vhlo.string_v1<\"main\">";
constexpr std::string_view kFunction = "\"vhlo.func_v1\"()";
constexpr std::string_view kType = "function_type = #vhlo.type_v1<!vhlo.func_v1<";
constexpr std::string_view kTensor = "!vhlo.tensor_v1<";

/// What a text says of one argument or result.
struct Declared {
  std::string_view text;
  const ElementType *type;  // nullptr for one that no role has
  std::vector<SizeExpression> shape;
};

struct Signature {
  std::vector<Declared> arguments, results;
};

/// VHLO's name of an element type, such as `f32` in `!vhlo.f32_v1`.
const ElementType *element_type(std::string_view name) {
  if (name == "bool") return type_by_name("bool");
  if (name == "bf16") return type_by_name("bfloat16");
  for (const auto &[prefix, family] : {std::pair{"ui", "uint"}, {"si", "int"}, {"i", "int"}, {"f", "float"}}) {
    const std::string_view start = prefix;
    if (name.substr(0, start.size()) == start) return type_by_name(family + std::string(name.substr(start.size())));
  }
  return nullptr;
}

/// Reads a piece of text from its beginning.
class Reader {
 public:
  Reader(std::string_view text, int layers) : text_(text), layers_(layers) {}

  bool take(std::string_view word) {
    if (text_.substr(0, word.size()) != word) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  void expect(std::string_view word) {
    if (!take(word)) fail(SMD_ERROR_FORMAT, "the declaration of its function `main` cannot be read");
  }

  std::string_view until(char end) {
    const size_t length = text_.find(end);
    if (length == std::string_view::npos) expect("a declaration that ends");
    const std::string_view piece = text_.substr(0, length);
    text_.remove_prefix(length + 1);
    return piece;
  }

  /// Types separated by commas, none before `end`.
  std::vector<Declared> types(std::string_view end) {
    std::vector<Declared> list;
    if (take(end)) return list;
    do {
      list.push_back(tensor());
    } while (take(", "));
    expect(end);
    return list;
  }

 private:
  std::string_view text_;
  int layers_;

  Declared tensor() {
    const char *begin = text_.data();
    Declared declared{{}, nullptr, {}};
    expect(kTensor);
    while (!take("!vhlo.")) {
      declared.shape.push_back(dimension());
      expect("x");
    }
    const std::string_view name = until('>');
    const size_t version = name.rfind("_v");
    declared.type = element_type(name.substr(0, version));
    declared.text = {begin + kTensor.size(), static_cast<size_t>(text_.data() - begin) - kTensor.size() - 1};
    return declared;
  }

  SizeExpression dimension() {
    if (take("@{")) return SizeExpression::parse(until('}'), layers_);
    int64_t number = 0;
    const auto read = std::from_chars(text_.data(), text_.data() + text_.size(), number);
    if (read.ec != std::errc()) expect("a dimension");
    text_.remove_prefix(read.ptr - text_.data());
    return SizeExpression(number);
  }
};

Signature read_signature(std::string_view source, int layers) {
  const size_t name = source.find(kMain);
  const size_t function = name == std::string_view::npos ? name : source.rfind(kFunction, name);
  const size_t type = name == std::string_view::npos ? name : source.rfind(kType, name);
  if (function == std::string_view::npos || type == std::string_view::npos || type < function)
    fail(SMD_ERROR_FORMAT, "it declares no function `main`; a program is VHLO in MLIR's generic form");
  Reader reader(source.substr(type + kType.size()), layers);
  Signature signature;
  reader.expect("(");
  signature.arguments = reader.types(")");
  reader.expect(" -> ");
  // Several results stand without parentheses where the list is the end of the function's type.
  signature.results = reader.take("(") ? reader.types(")") : reader.types(">>");
  return signature;
}

void compare(const std::vector<Declared> &declared, const std::vector<Port> &ports, const char *kind) {
  if (declared.size() != ports.size())
    fail(SMD_ERROR_FORMAT, "its function `main` has ", declared.size(), " ", kind, "s, the manifest lists ",
         ports.size());
  for (size_t i = 0; i < ports.size(); ++i) {
    const Port &port = ports[i];
    if (declared[i].type == port.type && declared[i].shape == port.shape) continue;
    const std::string &own = port.name.empty() ? port.tensor : port.name;
    fail(SMD_ERROR_FORMAT, kind, " ", i + 1, " of its function `main` is ", std::string(declared[i].text),
         ", which is not what the manifest says of `", own.empty() ? role_name(port.role) : own, "` in this place");
  }
}

}  // namespace

void check_signature(std::string_view source, const ProgramInterface &program, int layers) {
  const Signature signature = read_signature(source, layers);
  compare(signature.arguments, program.inputs, "argument");
  compare(signature.results, program.outputs, "result");
}

}  // namespace stablemd
