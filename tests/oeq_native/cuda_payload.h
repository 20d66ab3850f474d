// SPDX-License-Identifier: BSD-3-Clause
//
// Payloads with the kernels, launch configurations and properties that OpenEquivariance's have, but empty kernels.
#pragma once

#include <string>
#include <vector>

#include "backend.h"

inline std::string cuda_payload(oeq::Family family, bool deterministic = false, bool shared_weights = false) {
  std::vector<std::string> kernels = {"forward", "backward", "double_backward_A", "double_backward_B"};
  if (family == oeq::Family::kConvolution) {
    for (const char *name : {"fixup_forward", "fixup_backward", "fixup_double_backwardB"}) kernels.push_back(name);
  }
  nlohmann::json payload;
  std::string source = "struct Data { int a; };\n";
  for (const std::string &kernel : kernels)
    source += "__global__ void " + kernel + "(Data d, float *out) { out[0] = d.a; }\n";
  payload["kernel"] = source;
  payload["forward_config"] = {{"num_blocks", 11}, {"num_threads", 64}, {"warp_size", 32}, {"smem", 1000}};
  payload["backward_config"] = {{"num_blocks", 22}, {"num_threads", 96}, {"warp_size", 32}, {"smem", 2000}};
  payload["double_backward_config"] = {{"num_blocks", 33}, {"num_threads", 128}, {"warp_size", 32}, {"smem", 3000}};
  payload["kernel_prop"] = {{"L1_dim", 3},
                            {"L2_dim", 4},
                            {"L3_dim", 5},
                            {"weight_numel", 2},
                            {"opt_level", 3},
                            {"shared_weights", shared_weights ? 1 : 0},
                            {"irrep_dtype", 1},
                            {"weight_dtype", 2},
                            {"workspace_size", 640},
                            {"idx_dtype", 3},
                            {"deterministic", deterministic ? 1 : 0}};
  return payload.dump();
}
