// SPDX-License-Identifier: BSD-3-Clause
#include "cuda_backend.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "driver.h"
#include "nvrtc.h"

namespace oeq::cuda {
namespace {

// The kernels that OpenEquivariance's templates define.
const std::vector<std::string> kTensorProductKernels = {"forward", "backward", "double_backward_A",
                                                        "double_backward_B"};
const std::vector<std::string> kConvolutionKernels = {
    "forward",       "backward",       "double_backward_A",     "double_backward_B",
    "fixup_forward", "fixup_backward", "fixup_double_backwardB"};

enum KernelIndex : size_t {
  kForward,
  kBackward,
  kDoubleBackwardA,
  kDoubleBackwardB,
  kFixupForward,
  kFixupBackward,
  kFixupDoubleBackwardB
};

const std::vector<std::string> &kernel_names(Family family) {
  return family == Family::kConvolution ? kConvolutionKernels : kTensorProductKernels;
}

// As OpenEquivariance compiles, but for split-compile: its threads would compete with our workers, which do better.
const std::vector<std::string> kOptions = {"--std=c++17", "--use_fast_math"};

/// An image: the kernels' symbols, one a line, an empty line, the cubin.
std::string packed(const Nvrtc::Compiled &compiled) {
  std::string bytes;
  for (const std::string &symbol : compiled.symbols) bytes += symbol + "\n";
  return bytes + "\n" + compiled.cubin;
}

Nvrtc::Compiled unpacked(const std::string &bytes, size_t kernels) {
  Nvrtc::Compiled compiled;
  size_t begin = 0;
  for (;;) {
    const size_t end = bytes.find('\n', begin);
    if (end == std::string::npos) throw KernelError("not an image of CUDA kernels");
    const std::string symbol = bytes.substr(begin, end - begin);
    begin = end + 1;
    if (symbol.empty()) break;
    compiled.symbols.push_back(symbol);
  }
  if (compiled.symbols.size() != kernels) throw KernelError("an image with other CUDA kernels than needed");
  compiled.cubin = bytes.substr(begin);
  return compiled;
}

size_t bytes_per_element(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kUint8:
      return 1;
  }
  return 0;
}

/// The struct that OpenEquivariance's convolution kernels take by value.
struct ConvData {
  const void *rows, *cols;
  unsigned long nnz, node_count;
};

/// A module of the driver's.
class LoadedModule {
 public:
  explicit LoadedModule(const std::string &cubin) : module_(driver().load(cubin)) {}
  ~LoadedModule() { driver().unload(module_); }
  LoadedModule(const LoadedModule &) = delete;
  LoadedModule &operator=(const LoadedModule &) = delete;
  Module get() const { return module_; }

 private:
  Module module_;
};

class CudaKernel final : public Kernel {
 public:
  CudaKernel(const Payload &payload, const Nvrtc::Compiled &compiled, int32_t device)
      : payload_(payload), module_(compiled.cubin) {
    for (size_t i = 0; i < compiled.symbols.size(); ++i)
      kernels_[i] = driver().kernel(module_.get(), compiled.symbols[i]);
    const int capability = driver().compute_capability(device);
    for (int32_t other = 0; other < driver().device_count(); ++other) {
      if (driver().compute_capability(other) == capability) set_shared_memory(other);
    }
    for (size_t i = 0; i < compiled.symbols.size(); ++i) driver().load_now(kernels_[i], device);
  }

  void run(const OeqCall &call, const Launch &launch) const override {
    driver().ensure_context(launch.device);
    zero_results(call, launch.stream);
    if (call.products == 0) return;  // sums over nothing
    if (payload_.family == Family::kConvolution) {
      run_convolution(call, launch);
    } else {
      run_tensor_product(call, launch);
    }
  }

 private:
  const LaunchConfig &config(Order order) const { return payload_.configs[static_cast<int>(order)]; }

  void set_shared_memory(int32_t device) const {
    const auto allow = [&](KernelIndex kernel, Order order) {
      if (config(order).smem > 0) driver().allow_shared_memory(kernels_[kernel], device, config(order).smem);
    };
    allow(kForward, Order::kForward);
    allow(kBackward, Order::kBackward);
    allow(kDoubleBackwardA, Order::kForward);  // launched as forward is
    allow(kDoubleBackwardB, Order::kDoubleBackward);
  }

  /// The kernels add to their results.
  void zero_results(const OeqCall &call, Stream stream) const {
    const KernelProperties &p = payload_.properties;
    const bool convolution = payload_.family == Family::kConvolution;
    const auto rows = static_cast<size_t>(convolution ? call.nodes : call.products);
    const auto products = static_cast<size_t>(call.products);
    const size_t irrep_bytes = bytes_per_element(p.irrep_dtype);
    const size_t weight_rows = p.shared_weights ? 1 : products;
    const auto zero = [&](void *memory, size_t count, int64_t width, size_t bytes) {
      if (memory != nullptr) driver().zero(memory, count * static_cast<size_t>(width) * bytes, stream);
    };
    zero(call.L3, rows, p.l3_dim, irrep_bytes);
    zero(call.L1_grad, rows, p.l1_dim, irrep_bytes);
    zero(call.L2_grad, products, p.l2_dim, irrep_bytes);
    zero(call.W_grad, weight_rows, p.weight_numel, bytes_per_element(p.weight_dtype));
    zero(call.L3_dgrad, rows, p.l3_dim, irrep_bytes);
  }

  template <typename... Arguments>
  void start(KernelIndex kernel, Order shape, bool shared_memory, Stream stream, Arguments &...arguments) const {
    void *pointers[] = {const_cast<void *>(static_cast<const void *>(&arguments))...};
    const LaunchConfig &c = config(shape);
    driver().launch(kernels_[kernel], c.num_blocks, c.num_threads, shared_memory ? c.smem : 0, stream, pointers);
  }

  void run_tensor_product(OeqCall c, const Launch &launch) const {
    size_t products = static_cast<size_t>(c.products);
    switch (launch.order) {
      case Order::kForward:
        return start(kForward, Order::kForward, true, launch.stream, products, c.L1, c.L2, c.L3, c.W);
      case Order::kBackward:
        return start(kBackward, Order::kBackward, true, launch.stream, products, c.L1, c.L1_grad, c.L2, c.L2_grad, c.W,
                     c.W_grad, c.L3_grad);
      case Order::kDoubleBackward:
        for (const auto &[kernel, shape] : kDoubleBackwardSteps) {
          start(kernel, shape, true, launch.stream, products, c.L1, c.L2, c.W, c.L3_grad, c.L1_dgrad, c.L2_dgrad,
                c.W_dgrad, c.L1_grad, c.L2_grad, c.W_grad, c.L3_dgrad);
        }
    }
  }

  void run_convolution(OeqCall c, const Launch &launch) const {
    ConvData graph{c.receivers, c.senders, static_cast<unsigned long>(c.products), static_cast<unsigned long>(c.nodes)};
    // Deterministic kernels leave what belongs to nodes that several warps share in the workspace; a second kernel adds
    // it up.
    void *workspace = payload_.properties.deterministic ? c.workspace : nullptr;
    const auto fix_up = [&](KernelIndex kernel, Order shape, void *&result) {
      if (workspace != nullptr) start(kernel, shape, false, launch.stream, workspace, result);
    };
    switch (launch.order) {
      case Order::kForward:
        start(kForward, Order::kForward, true, launch.stream, c.L1, c.L2, c.W, c.L3, graph, workspace);
        return fix_up(kFixupForward, Order::kForward, c.L3);
      case Order::kBackward:
        start(kBackward, Order::kBackward, true, launch.stream, c.L1, c.L1_grad, c.L2, c.L2_grad, c.W, c.W_grad,
              c.L3_grad, graph, workspace, c.sender_order);
        return fix_up(kFixupBackward, Order::kBackward, c.L1_grad);
      case Order::kDoubleBackward:
        for (const auto &[kernel, shape] : kDoubleBackwardSteps) {
          start(kernel, shape, true, launch.stream, c.L1, c.L2, c.W, c.L3_grad, c.L1_dgrad, c.L2_dgrad, c.W_dgrad,
                c.L1_grad, c.L2_grad, c.W_grad, c.L3_dgrad, graph, workspace, c.sender_order);
          if (kernel == kDoubleBackwardA) {
            fix_up(kFixupForward, Order::kForward, c.L3_dgrad);
          } else {
            fix_up(kFixupDoubleBackwardB, Order::kDoubleBackward, c.L1_grad);
          }
        }
    }
  }

  struct Step {
    KernelIndex kernel;
    Order shape;  // whose launch configuration it has
  };
  static constexpr std::array<Step, 2> kDoubleBackwardSteps = {
      {{kDoubleBackwardA, Order::kForward}, {kDoubleBackwardB, Order::kDoubleBackward}}};

  const Payload &payload_;
  const LoadedModule module_;
  std::array<Function, kFixupDoubleBackwardB + 1> kernels_{};
};

}  // namespace

std::string CudaBackend::architecture(int32_t device) const {
  return "sm_" + std::to_string(driver().compute_capability(device));
}

std::string CudaBackend::toolchain() const {
  std::string text = "nvrtc " + nvrtc().version();
  for (const std::string &option : kOptions) text += " " + option;
  return text;
}

Image CudaBackend::compile(const Unit &unit, const std::string &architecture, const StopFlag &stop) const {
  if (unit.payload->cuda_source.empty()) {
    throw KernelError("the kernel payload has no CUDA source: export the model for this GPU (--gpu)");
  }
  const std::vector<int> known = nvrtc().architectures();
  if (std::none_of(known.begin(), known.end(), [&](int a) { return "sm_" + std::to_string(a) == architecture; })) {
    throw KernelError("NVRTC " + nvrtc().version() + " (" + nvrtc().path() + ") does not know " + architecture);
  }
  std::vector<std::string> options = kOptions;
  options.push_back("-arch=" + architecture);
  return {packed(nvrtc().compile(unit.payload->cuda_source, kernel_names(unit.payload->family), options, stop)), true};
}

std::unique_ptr<Kernel> CudaBackend::load(const Unit &unit, const Image &image, int32_t device) const {
  const size_t kernels = kernel_names(unit.payload->family).size();
  return std::make_unique<CudaKernel>(*unit.payload, unpacked(image.bytes, kernels), device);
}

}  // namespace oeq::cuda

namespace oeq {

std::unique_ptr<Backend> make_cuda_backend() { return std::make_unique<cuda::CudaBackend>(); }

}  // namespace oeq
