// SPDX-License-Identifier: BSD-3-Clause
#include "payload.h"

#include <limits>

namespace oeq {
namespace {

using Json = nlohmann::json;

/// Reads the members of one object of the payload, naming what is missing or wrong.
class Members {
 public:
  Members(const Json &object, const char *name) : object_(object), name_(name) {
    if (!object.is_object()) throw KernelError(std::string("kernel payload: ") + name + " must be a JSON object");
  }

  int64_t integer(const char *key, int64_t least, int64_t most) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail(key, "is missing");
    const bool flag = found->is_boolean();
    if (!flag && !found->is_number_integer()) fail(key, "must be a whole number");
    const int64_t value = flag ? found->get<bool>() : found->get<int64_t>();
    if (value < least || value > most) fail(key, "is out of range: " + std::to_string(value));
    return value;
  }

  DType dtype(const char *key) const { return static_cast<DType>(integer(key, 1, 5)); }

  bool flag(const char *key) const { return integer(key, 0, 1) != 0; }

 private:
  [[noreturn]] void fail(const char *key, const std::string &what) const {
    throw KernelError(std::string("kernel payload: ") + name_ + "." + key + " " + what);
  }

  const Json &object_;
  const char *name_;
};

constexpr int64_t kMostElements = int64_t{1} << 40;

KernelProperties parse_properties(Family family, const Json &json) {
  const Members members(json, "kernel_prop");
  KernelProperties p;
  p.l1_dim = members.integer("L1_dim", 0, kMostElements);
  p.l2_dim = members.integer("L2_dim", 0, kMostElements);
  p.l3_dim = members.integer("L3_dim", 0, kMostElements);
  p.weight_numel = members.integer("weight_numel", 0, kMostElements);
  p.shared_weights = members.flag("shared_weights");
  p.irrep_dtype = members.dtype("irrep_dtype");
  p.weight_dtype = members.dtype("weight_dtype");
  if (family == Family::kConvolution) {
    p.workspace_size = members.integer("workspace_size", 0, kMostElements);
    p.deterministic = members.flag("deterministic");
  }
  if (family != Family::kTensorProduct) p.idx_dtype = members.dtype("idx_dtype");
  return p;
}

LaunchConfig parse_config(const Json &root, const char *key) {
  const auto found = root.find(key);
  if (found == root.end()) throw KernelError(std::string("kernel payload: ") + key + " is missing");
  const Members members(*found, key);
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  LaunchConfig config;
  config.num_blocks = static_cast<uint32_t>(members.integer("num_blocks", 1, kMost));
  config.num_threads = static_cast<uint32_t>(members.integer("num_threads", 1, 1024));
  config.smem = static_cast<uint32_t>(members.integer("smem", 0, kMost));
  return config;
}

std::string parse_source(const Json &root) {
  const auto found = root.find("kernel");
  if (found == root.end() || found->is_null()) return "";
  if (!found->is_string()) throw KernelError("kernel payload: kernel must be a string of CUDA source");
  return found->get<std::string>();
}

}  // namespace

Payload parse_payload(Family family, std::string_view text) {
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded())
    throw KernelError("kernel payload: not valid JSON (" + std::to_string(text.size()) + " bytes)");
  if (!root.is_object()) throw KernelError("kernel payload: must be a JSON object");

  Payload payload;
  payload.family = family;
  payload.text = text;
  payload.properties = parse_properties(family, root.value("kernel_prop", Json()));
  payload.cuda_source = parse_source(root);
  payload.problem = root.value("problem", Json());
  if (payload.cuda_source.empty() && payload.problem.is_null()) {
    throw KernelError("kernel payload: holds neither kernel (CUDA source) nor problem");
  }
  if (!payload.cuda_source.empty()) {
    payload.configs[static_cast<int>(Order::kForward)] = parse_config(root, "forward_config");
    payload.configs[static_cast<int>(Order::kBackward)] = parse_config(root, "backward_config");
    payload.configs[static_cast<int>(Order::kDoubleBackward)] = parse_config(root, "double_backward_config");
  }
  return payload;
}

}  // namespace oeq
