// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../backend.h"

namespace oeq::cuda {

/// Payloads with CUDA source, as OpenEquivariance makes them: NVRTC compiles all kernels of a payload into one image.
class CudaBackend final : public Backend {
 public:
  const char *name() const override { return "CUDA"; }
  bool one_image_for_all_orders() const override { return true; }
  std::string architecture(int32_t device) const override;
  std::string toolchain() const override;
  Image compile(const Unit &unit, const std::string &architecture, const StopFlag &stop) const override;
  std::unique_ptr<Kernel> load(const Unit &unit, const Image &image, int32_t device) const override;
};

}  // namespace oeq::cuda
