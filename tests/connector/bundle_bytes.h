// SPDX-License-Identifier: BSD-3-Clause
// Writes bundles for tests of the reader, whole ones and ones that are wrong in one place.
#pragma once

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace test {

using nlohmann::json;

/// A safetensors file of any header and data.
inline std::vector<char> safetensors_bytes(const std::string &header, const std::string &data) {
  std::vector<char> bytes(8);
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  bytes.insert(bytes.end(), header.begin(), header.end());
  bytes.insert(bytes.end(), data.begin(), data.end());
  return bytes;
}

/// A small bundle in parts that a test can change.
struct BundleParts {
  json manifest = json::parse(R"({
    "format": 1, "name": "test", "dtype": "float32", "cutoff": 5.0, "layers": 2,
    "elements": ["Si", "C"], "atomic_energies": [-1.5, -2.5],
    "units": {"energy": "eV", "length": "Angstrom"},
    "programs": {"cpu": {
      "text": "programs/cpu", "targets": [],
      "inputs": [
        {"role": "weight", "tensor": "weights/a"},
        {"role": "species", "dtype": "int32", "shape": ["N"]},
        {"role": "vectors", "dtype": "float32", "shape": ["E1", 3]},
        {"role": "centers", "dtype": "int32", "shape": ["E1"]},
        {"role": "neighbors", "dtype": "int32", "shape": ["E1"]},
        {"role": "owned", "dtype": "int32", "shape": []}],
      "outputs": [
        {"role": "node_energy", "dtype": "float32", "shape": ["C2"]},
        {"role": "edge_gradient", "dtype": "float32", "shape": ["E1", 3]}]}},
    "versions": {"stablehlo": "1.15.0"}, "source": {}, "reference": null})");
  json header = json::parse(R"({
    "programs/cpu": {"dtype": "U8", "shape": [7], "data_offsets": [0, 7]},
    "weights/a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [7, 15]}})");
  std::string data = "@{N}x3 12345678";

  BundleParts() { data.resize(15); }

  std::vector<char> bytes() const {
    json whole = header;
    whole["__metadata__"] = {{"stablemd", manifest.dump()}};
    return safetensors_bytes(whole.dump(), data);
  }
};

inline void write_file(const std::string &path, const std::vector<char> &bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::vector<char> read_file(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace test
