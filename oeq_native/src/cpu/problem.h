// SPDX-License-Identifier: BSD-3-Clause
//
// The payload's key `problem`: which tensor product an op computes, independent of any device.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "../backend.h"

namespace oeq::cpu {

/// `mul` copies of the irrep of degree l and parity +-1.
struct IrrepBlock {
  int64_t mul = 0;
  int l = 0;
  int parity = 1;
  int64_t offset = 0;  // of the block's first number in a row

  int dim() const { return 2 * l + 1; }
};

struct Irreps {
  std::vector<IrrepBlock> blocks;
  int64_t dim = 0;
};

enum class Mode : uint8_t { kUvu, kUvw };

/// One path: out[i_out] += path_weight * w3j(in1[i_in1], in2[i_in2]).
struct Instruction {
  size_t in1 = 0, in2 = 0, out = 0;
  Mode mode = Mode::kUvu;
  bool has_weight = true;
  double path_weight = 1;
  int64_t weight_offset = 0;  // of the path's first weight in a row of W
};

/// Where the weight of channels (u, v, w) lies within its path.
enum class WeightOrder : uint8_t {
  kE3nn,  // [u, v] or [u, v, w]
  kOeq,   // cut into tiles of 32 channels, each [v, u] or [v, u, w]: what OpenEquivariance's CUDA kernels read
};

enum class Layout : uint8_t { kMulIr, kIrMul };

struct Problem {
  Irreps in1, in2, out;
  std::vector<Instruction> instructions;
  bool double_precision = false;
  bool wide_indices = false;  // int64 edges
  bool shared_weights = false;
  int64_t weight_numel = 0;
  Layout layout = Layout::kMulIr;
  WeightOrder weight_order = WeightOrder::kE3nn;

  const IrrepBlock &block1(const Instruction &path) const { return in1.blocks[path.in1]; }
  const IrrepBlock &block2(const Instruction &path) const { return in2.blocks[path.in2]; }
  const IrrepBlock &block3(const Instruction &path) const { return out.blocks[path.out]; }
};

/// Tiles of kOeq.
constexpr int64_t kWeightTile = 32;

/// Position of one weight relative to its path's `weight_offset`; `w` is ignored for uvu.
int64_t weight_position(const Problem &problem, const Instruction &path, int64_t u, int64_t v, int64_t w);

/// Reads and checks `problem`, also against `kernel_prop`. Throws KernelError with one line that names the key.
Problem parse_problem(const nlohmann::json &problem, const KernelProperties &properties, Family family);

}  // namespace oeq::cpu
