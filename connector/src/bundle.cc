// SPDX-License-Identifier: BSD-3-Clause
#include "bundle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

#include "error.h"
#include "escape.h"
#include "hash.h"
#include "json_field.h"
#include "unique_fd.h"

namespace stablemd {
namespace {

constexpr int kFormat = 3;
constexpr int kMostNumbersPerAtom = 4096;
constexpr size_t kLengthBytes = 8;
constexpr uint64_t kLongestHeader = 100'000'000;  // safetensors' own limit
constexpr int64_t kMostBytes = int64_t{1} << 40;

std::vector<char> read_file(const std::string &path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) fail(SMD_ERROR_FILE, path, ": cannot be opened: ", std::strerror(errno));
  struct stat status;
  if (fstat(file.get(), &status) != 0) fail(SMD_ERROR_FILE, path, ": cannot be read: ", std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail(SMD_ERROR_FILE, path, ": is not a regular file");
  if (status.st_size > kMostBytes) fail(SMD_ERROR_FORMAT, path, ": too large for a bundle");
  std::vector<char> bytes(status.st_size);
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(SMD_ERROR_FILE, path, ": cannot be read: ", std::strerror(errno));
    if (got == 0) fail(SMD_ERROR_FILE, path, ": became shorter while it was read");
    filled += got;
  }
  return bytes;
}

uint64_t little_endian(const char *bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// The JSON header in front of the data.
std::string_view header_text(const std::vector<char> &bytes, const std::string &name) {
  if (bytes.size() < kLengthBytes) fail(SMD_ERROR_FORMAT, name, ": not a bundle (", bytes.size(), " bytes long)");
  const uint64_t length = little_endian(bytes.data());
  if (length < 2 || length > kLongestHeader) fail(SMD_ERROR_FORMAT, name, ": not a bundle (no safetensors header)");
  if (length > bytes.size() - kLengthBytes) {
    fail(SMD_ERROR_FORMAT, name, ": not a bundle, or truncated: its header needs ", kLengthBytes + length,
         " bytes, the file has ", bytes.size());
  }
  return {bytes.data() + kLengthBytes, length};
}

std::vector<int64_t> tensor_shape(const JsonField &field) {
  std::vector<int64_t> shape;
  for (const JsonField &dimension : field.items()) shape.push_back(dimension.integer(0, kMostBytes));
  return shape;
}

size_t bytes_of(const ElementType &type, const std::vector<int64_t> &shape, const JsonField &field) {
  size_t bytes = type.bytes;
  for (const int64_t dimension : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(dimension), &bytes)) field.complain("shape is too large");
  }
  return bytes;
}

Tensor parse_tensor(const JsonField &field, std::string_view data) {
  const JsonField dtype = field.at("dtype");
  const ElementType *type = type_by_safetensors_name(dtype.string());
  if (!type) dtype.complain("unknown type `", dtype.string(), "`");
  const std::vector<int64_t> shape = tensor_shape(field.at("shape"));
  const JsonField offsets = field.at("data_offsets");
  const auto ends = offsets.items();
  if (ends.size() != 2) offsets.complain("must be two integers");
  const size_t begin = ends[0].integer(0, kMostBytes);
  const size_t end = ends[1].integer(begin, kMostBytes);
  if (end > data.size()) {
    offsets.complain("ends at byte ", end, " of ", data.size(), " bytes of data; the file is truncated or damaged");
  }
  if (bytes_of(*type, shape, field) != end - begin) offsets.complain("does not fit to dtype and shape");
  return {type, shape, data.data() + begin, end - begin};
}

/// safetensors demands that the tensors cover the data without holes or overlaps.
void check_coverage(const std::map<std::string, Tensor> &tensors, std::string_view data, const std::string &name) {
  std::vector<std::pair<const char *, const char *>> ranges;
  for (const auto &[key, tensor] : tensors) ranges.emplace_back(tensor.data, tensor.data + tensor.bytes);
  std::sort(ranges.begin(), ranges.end());
  const char *at = data.data();
  for (const auto &[begin, end] : ranges) {
    if (begin != at)
      fail(SMD_ERROR_FORMAT, name, ": tensors overlap or leave a hole at byte ", at - data.data(), " of the data");
    at = end;
  }
  const size_t surplus = data.data() + data.size() - at;
  if (surplus) fail(SMD_ERROR_FORMAT, name, ": ", surplus, " bytes behind the last tensor; the file is damaged");
}

/// A bit that flipped in a weight, or in a number of the manifest, would go unnoticed otherwise. The checksum is of the
/// whole file with zeros for its own digits. Files of older writers hold none.
void check_checksum(const JsonField &manifest, std::vector<char> &bytes, const std::string &name) {
  if (!manifest.has("checksum")) return;
  const std::string written = manifest.at("checksum").string();
  const std::string_view whole(bytes.data(), bytes.size());
  const size_t at = written.size() == 2 * sizeof(Hash) ? whole.find(written) : std::string_view::npos;
  bool same = at != std::string_view::npos;
  if (same) {
    const auto digits = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    std::fill_n(digits, written.size(), '0');
    same = hash_bytes(whole).hex() == written;
    std::copy(written.begin(), written.end(), digits);
  }
  if (!same)
    fail(SMD_ERROR_FORMAT, name,
         ": damaged: its bytes are not those that were written (checksum); copy it again, or export the model again");
}

// ---- manifest ------------------------------------------------------------------------------------------------------

SizeExpression parse_dimension(const JsonField &field, int layers) {
  if (!field.is_text()) return SizeExpression(field.integer(0, INT32_MAX));
  try {
    return SizeExpression::parse(field.string(), layers);
  } catch (const Error &error) {
    field.complain(error.what());
  }
}

Role parse_role(const JsonField &field, bool output) {
  const std::string name = field.string();
  const auto roles = output ? std::vector{Role::node_energy, Role::edge_gradient, Role::node_output}
                            : std::vector{Role::species, Role::vectors,     Role::centers, Role::neighbors,
                                          Role::owned,   Role::graph_input, Role::weight};
  for (const Role role : roles) {
    if (name == role_name(role)) return role;
  }
  field.complain("unknown role `", name.substr(0, 60), "`; upgrade stablemd if the bundle is newer");
}

Port parse_port(const JsonField &field, bool output, const std::map<std::string, Tensor> &tensors, int layers) {
  Port port{parse_role(field.at("role"), output), nullptr, {}, {}, {}};
  if (port.role == Role::node_output || port.role == Role::graph_input) port.name = field.at("name").string();
  if (port.role == Role::weight) {
    port.tensor = field.at("tensor").string();
    const auto tensor = tensors.find(port.tensor);
    if (tensor == tensors.end())
      field.at("tensor").complain("the file has no tensor `", port.tensor.substr(0, 80), "`");
    port.type = tensor->second.type;
    for (const int64_t dimension : tensor->second.shape) port.shape.emplace_back(dimension);
    return port;
  }
  const JsonField dtype = field.at("dtype");
  port.type = type_by_name(dtype.string());
  if (!port.type) dtype.complain("unknown type `", dtype.string().substr(0, 60), "`");
  for (const JsonField &dimension : field.at("shape").items()) port.shape.push_back(parse_dimension(dimension, layers));
  return port;
}

ProgramInterface parse_program(const JsonField &field, const std::map<std::string, Tensor> &tensors,
                               const Manifest &manifest) {
  ProgramInterface program;
  program.text = field.at("text").string();
  const auto tensor = tensors.find(program.text);
  if (tensor == tensors.end()) field.at("text").complain("the file has no tensor `", program.text.substr(0, 80), "`");
  if (tensor->second.type != type_by_name("uint8")) field.at("text").complain("the tensor is not of type U8");
  for (const JsonField &input : field.at("inputs").items()) {
    program.inputs.push_back(parse_port(input, false, tensors, manifest.layers));
  }
  for (const JsonField &output : field.at("outputs").items()) {
    program.outputs.push_back(parse_port(output, true, tensors, manifest.layers));
  }
  if (field.has("targets")) {
    for (const JsonField &target : field.at("targets").items()) program.targets.push_back(target.string());
  }
  check_interface(program, manifest.real, manifest.layers, manifest.graph_inputs, manifest.node_outputs, field.where());
  return program;
}

void check_format(const JsonField &manifest, const std::string &name) {
  const int64_t format = manifest.at("format").integer(1, INT32_MAX);
  if (format > kFormat) {
    fail(SMD_ERROR_FORMAT, name, ": made by a newer StableMD (format ", format, ", this library reads ", kFormat,
         "): upgrade stablemd");
  }
}

/// "" where the manifest does not tell.
std::string version_of(const char *part, const JsonField &manifest) {
  if (!manifest.has("versions") || !manifest.at("versions").has(part)) return "";
  const JsonField version = manifest.at("versions").at(part);
  return version.is_text() ? version.string() : "";
}

/// What engines print as it is.
std::string shown_text(const JsonField &field) {
  const std::string value = field.string();
  if (!is_printable(value)) field.complain("`", value.substr(0, 60), "` holds control characters");
  return value;
}

/// The names are words in engines' input.
void check_name(const JsonField &field, const std::string &name) {
  const auto is_plain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  const bool plain = !name.empty() && std::isalpha(static_cast<unsigned char>(name[0])) &&
                     std::all_of(name.begin(), name.end(), is_plain);
  if (!plain) field.complain("`", name.substr(0, 60), "` is no name of letters, digits and _");
}

std::vector<NodeOutput> parse_node_outputs(const JsonField &manifest) {
  std::vector<NodeOutput> outputs;
  if (!manifest.has("node_outputs")) return outputs;
  for (const auto &[name, field] : manifest.at("node_outputs").members()) {
    check_name(manifest.at("node_outputs"), name);
    const auto width = static_cast<int32_t>(field.at("width").integer(1, kMostNumbersPerAtom));
    outputs.push_back({name, shown_text(field.at("unit")), width});
  }
  std::sort(outputs.begin(), outputs.end(), [](const auto &a, const auto &b) { return a.name < b.name; });
  return outputs;
}

GraphInput parse_graph_input(const std::string &name, const JsonField &field) {
  const auto limit = [&](const char *key, double none) {
    const JsonField value = field.at(key);
    return value.is_null() ? none : value.number();
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const GraphInput input{name, field.at("default").number(), limit("minimum", -kInfinity), limit("maximum", kInfinity),
                         field.at("integer").boolean()};
  if (!(input.minimum <= input.initial && input.initial <= input.maximum))
    field.at("default").complain("must lie between minimum and maximum");
  for (const double number : {input.initial, input.minimum, input.maximum}) {
    if (input.integer && std::isfinite(number) && number != std::floor(number))
      field.complain("must be whole numbers, for `integer` is true");
  }
  return input;
}

std::vector<GraphInput> parse_graph_inputs(const JsonField &manifest) {
  std::vector<GraphInput> inputs;
  if (!manifest.has("graph_inputs")) return inputs;
  for (const auto &[name, field] : manifest.at("graph_inputs").members()) {
    check_name(manifest.at("graph_inputs"), name);
    inputs.push_back(parse_graph_input(name, field));
  }
  std::sort(inputs.begin(), inputs.end(), [](const auto &a, const auto &b) { return a.name < b.name; });
  return inputs;
}

Manifest parse_manifest(const JsonField &field, const std::map<std::string, Tensor> &tensors) {
  Manifest manifest;
  const std::string dtype = field.at("dtype").string();
  if (dtype != "float32" && dtype != "float64") field.at("dtype").complain("must be `float32` or `float64`");
  manifest.real = type_by_name(dtype);
  manifest.cutoff = field.at("cutoff").number();
  if (!(manifest.cutoff > 0)) field.at("cutoff").complain("must be positive");
  manifest.layers = static_cast<int>(field.at("layers").integer(1, SMD_MAX_LAYERS));
  for (const JsonField &element : field.at("elements").items()) manifest.elements.push_back(shown_text(element));
  if (manifest.elements.empty()) field.at("elements").complain("must not be empty");
  for (const JsonField &energy : field.at("atomic_energies").items())
    manifest.atomic_energies.push_back(energy.number());
  if (manifest.atomic_energies.size() != manifest.elements.size()) {
    field.at("atomic_energies")
        .complain("has ", manifest.atomic_energies.size(), " numbers for ", manifest.elements.size(), " elements");
  }
  manifest.energy_unit = shown_text(field.at("units").at("energy"));
  manifest.length_unit = shown_text(field.at("units").at("length"));
  manifest.stablehlo_version = version_of("stablehlo", field);
  const std::string jax = version_of("jax", field);
  if (!jax.empty()) manifest.made_with = "jax " + jax;
  manifest.graph_inputs = parse_graph_inputs(field);
  manifest.node_outputs = parse_node_outputs(field);
  for (const auto &[platform, program] : field.at("programs").members()) {
    manifest.programs.emplace(platform, parse_program(program, tensors, manifest));
  }
  return manifest;
}

}  // namespace

Bundle Bundle::read(const std::string &path) { return parse(read_file(path), path); }

Bundle Bundle::parse(std::vector<char> bytes, const std::string &name) {
  Bundle bundle;
  bundle.name_ = name;
  bundle.bytes_ = std::move(bytes);
  const std::string_view header_source = header_text(bundle.bytes_, name);
  const size_t data_begin = kLengthBytes + header_source.size();
  const std::string_view data(bundle.bytes_.data() + data_begin, bundle.bytes_.size() - data_begin);

  const nlohmann::json header_json = parse_json(header_source, name);
  const JsonField header(header_json, name);
  std::string manifest_source;
  for (const auto &[key, field] : header.members()) {
    if (key != "__metadata__") {
      bundle.tensors_.emplace(key, parse_tensor(field, data));
    } else if (field.has("stablemd")) {
      manifest_source = field.at("stablemd").string();
    }
  }
  if (manifest_source.empty()) {
    fail(SMD_ERROR_FORMAT, name,
         ": a safetensors file, but not a StableMD bundle: export the model with `stablemd export`");
  }
  const nlohmann::json manifest_json = parse_json(manifest_source, name + ": manifest");
  const JsonField manifest(manifest_json, name + ": manifest");
  check_format(manifest, name);
  check_coverage(bundle.tensors_, data, name);
  check_checksum(manifest, bundle.bytes_, name);
  bundle.manifest_ = parse_manifest(manifest, bundle.tensors_);
  bundle.manifest_.json = std::move(manifest_source);
  return bundle;
}

const ProgramInterface &Bundle::program(const std::string &platform) const {
  const auto found = manifest_.programs.find(platform);
  if (found != manifest_.programs.end()) return found->second;
  std::string others;
  for (const auto &[name, program] : manifest_.programs) others += (others.empty() ? "" : ", ") + name;
  fail(SMD_ERROR_FORMAT, name_, ": has no program for `", platform, "`, only for: ", others.empty() ? "none" : others,
       "; export the model for this platform");
}

std::string_view Bundle::program_text(const ProgramInterface &program) const {
  const Tensor &text = tensor(program.text);
  return {text.data, text.bytes};
}

}  // namespace stablemd
