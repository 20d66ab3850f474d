// SPDX-License-Identifier: BSD-3-Clause
//
// What the core (records, worker pool, image cache, handlers) and the code for one kind of device agree on.
// The core calls a Backend from its workers; the handlers call the Kernels that it loads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

#include "oeq_call.h"

namespace oeq {

enum class Family : uint8_t { kTensorProduct, kConvolution, kContraction };
enum class Order : uint8_t { kForward, kBackward, kDoubleBackward };
enum class Platform : uint8_t { kHost, kCuda };

/// Element types as OpenEquivariance numbers them in a payload's `kernel_prop`.
enum class DType : int64_t { kFloat32 = 1, kFloat64 = 2, kInt32 = 3, kInt64 = 4, kUint8 = 5 };

/// A payload's `kernel_prop`: what the operands must look like. Of a contraction: l1_dim features and l3_dim outputs
/// per channel, weight_numel paths.
struct KernelProperties {
  int64_t l1_dim = 0, l2_dim = 0, l3_dim = 0, weight_numel = 0;
  bool shared_weights = false;
  DType irrep_dtype = DType::kFloat32;
  DType weight_dtype = DType::kFloat32;
  DType idx_dtype = DType::kInt32;  // of a convolution's edges, of a contraction's elements
  // Convolutions only.
  bool deterministic = false;
  int64_t workspace_size = 0;  // bytes
};

/// A payload's `forward_config` and its sisters: how to launch CUDA kernels.
struct LaunchConfig {
  uint32_t num_blocks = 0, num_threads = 0, smem = 0;
};

/// The attribute `kernel` of a call, parsed. Immutable; lives as long as the process.
struct Payload {
  Family family = Family::kTensorProduct;
  std::string text;  // as it came; the identity of the kernel together with `family`
  KernelProperties properties;
  std::string cuda_source;  // "" where the payload has none
  LaunchConfig configs[3];  // by Order
  nlohmann::json problem;   // the key `problem` (irreps, instructions, dtypes, layout); null where there is none
};

/// What a compiler made, as kept in memory and on disk.
struct Image {
  std::string bytes;
  bool cacheable =
      true;  // false: names code of this library, made without a compiler; neither kept nor expected on disk
};

/// Thrown by backends: one line for the user, then (after a newline) the compiler's log where there is one.
class KernelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Runs independent pieces of work on the threads that XLA lends and on the caller's own.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Threads that may run at once, the caller's included; at least 1.
  virtual int64_t threads() const = 0;
  /// Calls `work(context, item)` for items 0..count-1 in any order; returns when all have returned.
  /// `work` must not throw, and must not wait for another item.
  virtual void run(int64_t count, void (*work)(void *context, int64_t item), void *context) = 0;
};

/// Where a call runs.
struct Launch {
  Executor *executor = nullptr;   // Host
  void *stream = nullptr;         // CUDA: a CUstream
  int32_t device = 0;             // CUDA: the device's ordinal
  Order order = Order::kForward;  // what to compute, for kernels that hold all orders
};

/// A kernel ready to run. Never destroyed once a handler has seen it, so it may be called without any lock, by several
/// threads at once.
class Kernel {
 public:
  virtual ~Kernel() = default;
  /// Operands have been checked against the payload's properties. Throws KernelError.
  virtual void run(const OeqCall &call, const Launch &launch) const = 0;
};

/// Set when the process is about to end: a compilation that can be cut short should throw KernelError soon.
using StopFlag = std::atomic<bool>;

/// Everything that identifies one compilation besides the device it is for.
struct Unit {
  const Payload *payload;
  Order order;  // a backend whose images hold all orders ignores it, see Backend::one_image_for_all_orders
};

/// Code generation for one kind of device. Stateless towards the core: every function may be called by several threads
/// at once.
class Backend {
 public:
  virtual ~Backend() = default;

  /// "Host" or "CUDA"; part of the key of images.
  virtual const char *name() const = 0;

  /// True if an image serves forward, backward and double backward together (then `order` is always kForward).
  virtual bool one_image_for_all_orders() const = 0;

  /// The architecture of a device ("x86-64+avx2+fma", "sm_90"): devices with equal names share images. Throws
  /// KernelError.
  virtual std::string architecture(int32_t device_ordinal) const = 0;

  /// Everything besides payload, order and architecture that decides the image's bytes: compiler, its version, options,
  /// version of the generator. Nothing that depends on addresses, time or order. Throws KernelError.
  virtual std::string toolchain() const = 0;

  /// Compiles; runs on a worker. Throws KernelError.
  virtual Image compile(const Unit &unit, const std::string &architecture, const StopFlag &stop) const = 0;

  /// Makes an image callable on a device; runs on a worker. Throws KernelError, e.g. for an image that is not one of
  /// ours.
  virtual std::unique_ptr<Kernel> load(const Unit &unit, const Image &image, int32_t device_ordinal) const = 0;
};

/// The backends of this library, made at first use; settings are read then.
std::unique_ptr<Backend> make_host_backend();  // src/cpu/
std::unique_ptr<Backend> make_cuda_backend();  // src/cuda/

}  // namespace oeq
