// SPDX-License-Identifier: BSD-3-Clause
#include "problem.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace oeq::cpu {
namespace {

constexpr int kMaxDegree = 12;        // beyond, factorials of the couplings lose digits
constexpr int64_t kMaxRow = 1 << 26;  // numbers in one row of an operand
constexpr int64_t kMaxChannels = 1 << 20;

[[noreturn]] void fail(const std::string &what) { throw KernelError("payload key `problem`: " + what); }

const nlohmann::json &member(const nlohmann::json &object, const char *key) {
  const auto found = object.find(key);
  if (found == object.end()) fail(std::string("`") + key + "` is missing");
  return *found;
}

std::string text_member(const nlohmann::json &object, const char *key) {
  const nlohmann::json &value = member(object, key);
  if (!value.is_string()) fail(std::string("`") + key + "` must be a string");
  return value.get<std::string>();
}

/// One block as e3nn writes it: "128x1o" or "1o".
IrrepBlock parse_block(const std::string &text, const char *key) {
  IrrepBlock block;
  char *end = nullptr;
  const char *cursor = text.c_str();
  long long number = std::strtoll(cursor, &end, 10);
  const bool has_mul = end != cursor && *end == 'x';
  block.mul = has_mul ? number : 1;
  if (has_mul) {
    cursor = end + 1;
    number = std::strtoll(cursor, &end, 10);
  }
  const bool well_formed = end != cursor && (*end == 'e' || *end == 'o') && end[1] == '\0';
  if (!well_formed || number < 0 || block.mul < 0)
    fail(std::string("`") + key + "` has the block \"" + text + "\"; expected e.g. 128x1o");
  if (number > kMaxDegree)
    fail(std::string("`") + key + "` has l = " + std::to_string(number) + "; at most 12 is supported");
  if (block.mul > kMaxChannels) fail(std::string("`") + key + "` has more than 2^20 channels in one block");
  block.l = static_cast<int>(number);
  block.parity = *end == 'e' ? 1 : -1;
  return block;
}

Irreps parse_irreps(const nlohmann::json &problem, const char *key) {
  std::string text = text_member(problem, key);
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  Irreps irreps;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('+', begin), text.size());
    IrrepBlock block = parse_block(text.substr(begin, end - begin), key);
    block.offset = irreps.dim;
    irreps.dim += block.mul * block.dim();
    if (irreps.dim > kMaxRow) fail(std::string("`") + key + "` is too long a row");
    irreps.blocks.push_back(block);
    begin = end + 1;
  }
  return irreps;
}

template <class Choice>
Choice choose(const nlohmann::json &problem, const char *key, const char *first, Choice a, const char *second,
              Choice b) {
  const std::string value = text_member(problem, key);
  if (value == first) return a;
  if (value == second) return b;
  fail(std::string("`") + key + "` is \"" + value + "\"; expected " + first + " or " + second);
}

size_t block_index(const nlohmann::json &value, const Irreps &irreps, const std::string &where) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<size_t>() >= irreps.blocks.size())
    fail(where + " refers to a block of irreps that does not exist");
  return value.get<size_t>();
}

void check_path(const Problem &problem, const Instruction &path, const std::string &where) {
  const IrrepBlock &a = problem.block1(path), &b = problem.block2(path), &c = problem.block3(path);
  if (a.parity * b.parity != c.parity) fail(where + " breaks parity");
  if (c.l < std::abs(a.l - b.l) || c.l > a.l + b.l) fail(where + " breaks the triangle rule");
  if (path.mode == Mode::kUvu && a.mul != c.mul) fail(where + " is uvu but its input and output channels differ");
  if (path.mode == Mode::kUvw && !path.has_weight) fail(where + " is uvw and needs weights");
}

int64_t path_weights(const Problem &problem, const Instruction &path) {
  if (!path.has_weight) return 0;
  const int64_t pairs = problem.block1(path).mul * problem.block2(path).mul;
  return path.mode == Mode::kUvu ? pairs : pairs * problem.block3(path).mul;
}

Instruction parse_instruction(const nlohmann::json &value, const Problem &problem, size_t number) {
  const std::string where = "instruction " + std::to_string(number);
  if (!value.is_array() || value.size() != 6 || !value[3].is_string() || !value[4].is_boolean() ||
      !value[5].is_number())
    fail(where + " must be [i_in1, i_in2, i_out, mode, has_weight, path_weight]");
  Instruction path;
  path.in1 = block_index(value[0], problem.in1, where);
  path.in2 = block_index(value[1], problem.in2, where);
  path.out = block_index(value[2], problem.out, where);
  const std::string mode = value[3].get<std::string>();
  if (mode != "uvu" && mode != "uvw") fail(where + " has the mode \"" + mode + "\"; supported are uvu and uvw");
  path.mode = mode == "uvu" ? Mode::kUvu : Mode::kUvw;
  path.has_weight = value[4].get<bool>();
  path.path_weight = value[5].get<double>();
  check_path(problem, path, where);
  return path;
}

void check_properties(const Problem &problem, const KernelProperties &properties, Family family) {
  auto expect = [](bool equal, const char *key) {
    if (!equal) fail(std::string("disagrees with `kernel_prop` about ") + key);
  };
  expect(problem.in1.dim == properties.l1_dim, "L1_dim");
  expect(problem.in2.dim == properties.l2_dim, "L2_dim");
  expect(problem.out.dim == properties.l3_dim, "L3_dim");
  expect(problem.weight_numel == properties.weight_numel, "weight_numel");
  expect(problem.shared_weights == properties.shared_weights, "shared_weights");
  const DType dtype = problem.double_precision ? DType::kFloat64 : DType::kFloat32;
  expect(properties.irrep_dtype == dtype, "irrep_dtype");
  expect(properties.weight_dtype == dtype, "weight_dtype");
  if (family == Family::kConvolution)
    expect(properties.idx_dtype == DType::kInt32 || properties.idx_dtype == DType::kInt64, "idx_dtype");
}

}  // namespace

int64_t weight_position(const Problem &problem, const Instruction &path, int64_t u, int64_t v, int64_t w) {
  const int64_t m1 = problem.block1(path).mul, m2 = problem.block2(path).mul;
  const int64_t m3 = path.mode == Mode::kUvw ? problem.block3(path).mul : 1;
  if (path.mode == Mode::kUvu) w = 0;
  if (problem.weight_order == WeightOrder::kE3nn) return (u * m2 + v) * m3 + w;
  const int64_t u0 = u / kWeightTile * kWeightTile, du = std::min(kWeightTile, m1 - u0);
  const int64_t v0 = v / kWeightTile * kWeightTile, dv = std::min(kWeightTile, m2 - v0);
  const int64_t w0 = w / kWeightTile * kWeightTile, dw = std::min(kWeightTile, m3 - w0);
  return u0 * m2 * m3 + du * v0 * m3 + du * dv * w0 + ((v - v0) * du + (u - u0)) * dw + (w - w0);
}

Problem parse_problem(const nlohmann::json &json, const KernelProperties &properties, Family family) {
  if (json.is_null())
    throw KernelError(
        "payload has no key `problem`, so there is nothing to make a CPU kernel from; export it with stablemd");
  if (!json.is_object()) fail("must be an object");
  Problem problem;
  problem.in1 = parse_irreps(json, "irreps_in1");
  problem.in2 = parse_irreps(json, "irreps_in2");
  problem.out = parse_irreps(json, "irreps_out");
  problem.layout = choose(json, "layout", "mul_ir", Layout::kMulIr, "ir_mul", Layout::kIrMul);
  problem.weight_order = choose(json, "weight_order", "e3nn", WeightOrder::kE3nn, "oeq", WeightOrder::kOeq);
  problem.double_precision = choose(json, "irrep_dtype", "float32", false, "float64", true);
  if (choose(json, "weight_dtype", "float32", false, "float64", true) != problem.double_precision)
    fail("`irrep_dtype` and `weight_dtype` must be equal");
  const nlohmann::json &shared = member(json, "shared_weights");
  if (!shared.is_boolean()) fail("`shared_weights` must be true or false");
  problem.shared_weights = shared.get<bool>();
  problem.wide_indices = properties.idx_dtype == DType::kInt64;
  const nlohmann::json &instructions = member(json, "instructions");
  if (!instructions.is_array()) fail("`instructions` must be a list");
  for (const nlohmann::json &value : instructions) {
    Instruction path = parse_instruction(value, problem, problem.instructions.size());
    path.weight_offset = problem.weight_numel;
    problem.weight_numel += path_weights(problem, path);
    if (problem.weight_numel > kMaxRow) fail("too many weights");
    problem.instructions.push_back(path);
  }
  check_properties(problem, properties, family);
  return problem;
}

}  // namespace oeq::cpu
