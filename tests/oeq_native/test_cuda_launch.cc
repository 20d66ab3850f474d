// SPDX-License-Identifier: BSD-3-Clause
//
// What CUDA kernels are launched with, against a stand-in for libcuda: which ones, in which order, with which
// arguments, and what is zeroed before.
#include <algorithm>
#include <vector>

#include "check.h"
#include "cuda/cuda_backend.h"
#include "cuda_payload.h"
#include "fake_cuda.h"
#include "payload.h"

using namespace oeq;

namespace {

/// As OpenEquivariance's convolution kernels take it.
struct ConvData {
  const void *rows, *cols;
  unsigned long nnz, node_count;
};

void *address(intptr_t value) { return reinterpret_cast<void *>(value); }

// Distinct addresses for each operand; the stand-in touches none of them.
enum : intptr_t {
  kL1 = 1,
  kL2,
  kW,
  kL3Grad,
  kL1Dgrad,
  kL2Dgrad,
  kWDgrad,
  kL3,
  kL1Grad,
  kL2Grad,
  kWGrad,
  kL3Dgrad,
  kRows,
  kCols,
  kPerm,
  kWorkspace,
  kStream
};

constexpr int64_t kProducts = 7, kNodes = 3;

OeqCall call_of(Family family, Order order, int64_t products = kProducts) {
  OeqCall c{};
  c.products = products;
  c.L1 = address(kL1), c.L2 = address(kL2), c.W = address(kW);
  if (order == Order::kForward) {
    c.L3 = address(kL3);
  } else {
    c.L3_grad = address(kL3Grad);
    c.L1_grad = address(kL1Grad), c.L2_grad = address(kL2Grad), c.W_grad = address(kWGrad);
  }
  if (order == Order::kDoubleBackward) {
    c.L1_dgrad = address(kL1Dgrad), c.L2_dgrad = address(kL2Dgrad), c.W_dgrad = address(kWDgrad);
    c.L3_dgrad = address(kL3Dgrad);
  }
  if (family == Family::kConvolution) {
    c.nodes = kNodes;
    c.receivers = address(kRows), c.senders = address(kCols), c.sender_order = address(kPerm);
    c.workspace = address(kWorkspace);
  }
  return c;
}

struct Seen {
  std::string kernel;
  unsigned blocks, threads, shared_memory;
  std::vector<intptr_t> arguments;  // pointers and numbers in order; ConvData as its members
};

std::vector<Seen> seen;
Family family_of_launch;

/// How many arguments a kernel of OpenEquivariance's templates takes, and which of them is ConvData (-1: none).
struct Signature {
  int arguments, conv_data;
};
Signature signature(const std::string &kernel) {
  const bool convolution = family_of_launch == Family::kConvolution;
  if (kernel.rfind("fixup", 0) == 0) return {2, -1};
  if (kernel == "forward") return convolution ? Signature{6, 4} : Signature{5, -1};
  if (kernel == "backward") return convolution ? Signature{10, 7} : Signature{8, -1};
  return convolution ? Signature{14, 11} : Signature{12, -1};
}

void remember(const fake_cuda::Launch &launch) {
  CHECK(launch.stream == address(kStream));
  Seen s{launch.kernel, launch.blocks, launch.threads, launch.shared_memory, {}};
  const Signature taken = signature(launch.kernel);
  for (int i = 0; i < taken.arguments; ++i) {
    if (i == taken.conv_data) {
      const auto &data = *static_cast<const ConvData *>(launch.arguments[i]);
      for (const intptr_t member : {reinterpret_cast<intptr_t>(data.rows), reinterpret_cast<intptr_t>(data.cols),
                                    static_cast<intptr_t>(data.nnz), static_cast<intptr_t>(data.node_count)}) {
        s.arguments.push_back(member);
      }
    } else {
      s.arguments.push_back(*static_cast<const intptr_t *>(launch.arguments[i]));
    }
  }
  seen.push_back(s);
}

std::vector<std::string> kernels(Family family) {
  std::vector<std::string> names = {"forward", "backward", "double_backward_A", "double_backward_B"};
  if (family == Family::kConvolution) {
    for (const char *name : {"fixup_forward", "fixup_backward", "fixup_double_backwardB"}) names.push_back(name);
  }
  return names;
}

/// An image as the backend packs it, without compiling: symbols that are the kernels' own names.
Image image(Family family) {
  std::string bytes;
  for (const std::string &name : kernels(family)) bytes += name + "\n";
  return {bytes + "\n" +
              "\x7f"
              "ELF cubin",
          true};
}

struct Loaded {
  Payload payload;
  std::unique_ptr<Kernel> kernel;
};

std::unique_ptr<Loaded> load(Family family, bool deterministic = false, bool shared_weights = false,
                             int32_t device = 0) {
  fake_cuda::record() = {};
  fake_cuda::record().on_launch = remember;
  seen.clear();
  family_of_launch = family;
  auto loaded = std::make_unique<Loaded>();
  loaded->payload = parse_payload(family, cuda_payload(family, deterministic, shared_weights));
  loaded->kernel = cuda::CudaBackend().load({&loaded->payload, Order::kForward}, image(family), device);
  return loaded;
}

void run(const Loaded &loaded, Order order, int64_t products = kProducts) {
  Launch launch;
  launch.stream = address(kStream);
  launch.order = order;
  loaded.kernel->run(call_of(loaded.payload.family, order, products), launch);
}

void check_launch(const Seen &s, const char *kernel, unsigned blocks, unsigned threads, unsigned shared_memory,
                  const std::vector<intptr_t> &arguments) {
  CHECK(s.kernel == kernel);
  CHECK(s.blocks == blocks && s.threads == threads && s.shared_memory == shared_memory);
  CHECK(s.arguments == arguments);
}

size_t zeroed(intptr_t memory) {
  size_t bytes = 0;
  for (const auto &memset : fake_cuda::record().memsets) {
    if (memset.memory == address(memory)) bytes += memset.bytes;
    CHECK(memset.stream == address(kStream));
  }
  return bytes;
}

}  // namespace

TEST(architectures_are_named_by_compute_capability) {
  const cuda::CudaBackend backend;
  CHECK(backend.architecture(0) == "sm_90");
  CHECK(backend.architecture(1) == "sm_90");
  CHECK(backend.architecture(2) == "sm_80");
  CHECK_THROWS("cuDeviceGet failed: CUDA_ERROR_FAKE (a stand-in's error)", backend.architecture(3));
}

TEST(loading_sets_shared_memory_on_every_device_of_the_architecture) {
  const auto loaded = load(Family::kConvolution);
  const auto &record = fake_cuda::record();
  CHECK(record.libraries_loaded == 1);
  CHECK(record.cubin ==
        "\x7f"
        "ELF");
  CHECK(record.shared_memory.size() == 8);
  for (const int device : {0, 1}) {
    for (const auto &[kernel, bytes] :
         {std::pair("forward", 1000), {"double_backward_A", 1000}, {"backward", 2000}, {"double_backward_B", 3000}}) {
      const std::string name = kernel;
      const int wanted = bytes;
      CHECK(std::any_of(record.shared_memory.begin(), record.shared_memory.end(),
                        [&](const auto &s) { return s.kernel == name && s.device == device && s.bytes == wanted; }));
    }
  }
  CHECK(record.loaded_kernels == kernels(Family::kConvolution));
  CHECK(record.contexts_retained == record.contexts_released);
}

TEST(an_unloaded_kernel_gives_its_library_back) {
  load(Family::kTensorProduct);
  CHECK(fake_cuda::record().libraries_unloaded == 1);
}

TEST(a_kernel_with_too_much_shared_memory_is_refused) {
  Payload payload = parse_payload(Family::kTensorProduct, cuda_payload(Family::kTensorProduct));
  payload.configs[1].smem = 300000;
  CHECK_THROWS("needs 300000 bytes of shared memory per block, device 0 has 232448",
               cuda::CudaBackend().load({&payload, Order::kForward}, image(Family::kTensorProduct), 0));
}

TEST(foreign_images_are_refused) {
  const Payload payload = parse_payload(Family::kConvolution, cuda_payload(Family::kConvolution));
  const cuda::CudaBackend backend;
  CHECK_THROWS("not an image", backend.load({&payload, Order::kForward}, {"junk", true}, 0));
  CHECK_THROWS("other CUDA kernels", backend.load({&payload, Order::kForward}, image(Family::kTensorProduct), 0));
}

TEST(tensor_products_are_launched_as_openequivariance_does) {
  const auto loaded = load(Family::kTensorProduct);
  run(*loaded, Order::kForward);
  run(*loaded, Order::kBackward);
  run(*loaded, Order::kDoubleBackward);
  CHECK(seen.size() == 4);
  check_launch(seen[0], "forward", 11, 64, 1000, {kProducts, kL1, kL2, kL3, kW});
  check_launch(seen[1], "backward", 22, 96, 2000, {kProducts, kL1, kL1Grad, kL2, kL2Grad, kW, kWGrad, kL3Grad});
  const std::vector<intptr_t> double_backward = {kProducts, kL1,     kL2,     kW,      kL3Grad, kL1Dgrad,
                                                 kL2Dgrad,  kWDgrad, kL1Grad, kL2Grad, kWGrad,  kL3Dgrad};
  check_launch(seen[2], "double_backward_A", 11, 64, 1000, double_backward);
  check_launch(seen[3], "double_backward_B", 33, 128, 3000, double_backward);
}

TEST(convolutions_are_launched_as_openequivariance_does) {
  for (const bool deterministic : {false, true}) {
    const auto loaded = load(Family::kConvolution, deterministic);
    run(*loaded, Order::kForward);
    run(*loaded, Order::kBackward);
    run(*loaded, Order::kDoubleBackward);
    const intptr_t workspace = deterministic ? intptr_t{kWorkspace} : 0;
    const std::vector<intptr_t> forward = {kL1, kL2, kW, kL3, kRows, kCols, kProducts, kNodes, workspace};
    const std::vector<intptr_t> backward = {kL1,   kL1Grad, kL2,       kL2Grad, kW,        kWGrad, kL3Grad,
                                            kRows, kCols,   kProducts, kNodes,  workspace, kPerm};
    const std::vector<intptr_t> double_backward = {kL1,     kL2,       kW,      kL3Grad,   kL1Dgrad, kL2Dgrad,
                                                   kWDgrad, kL1Grad,   kL2Grad, kWGrad,    kL3Dgrad, kRows,
                                                   kCols,   kProducts, kNodes,  workspace, kPerm};
    size_t next = 0;
    check_launch(seen.at(next++), "forward", 11, 64, 1000, forward);
    if (deterministic) check_launch(seen.at(next++), "fixup_forward", 11, 64, 0, {workspace, kL3});
    check_launch(seen.at(next++), "backward", 22, 96, 2000, backward);
    if (deterministic) check_launch(seen.at(next++), "fixup_backward", 22, 96, 0, {workspace, kL1Grad});
    check_launch(seen.at(next++), "double_backward_A", 11, 64, 1000, double_backward);
    if (deterministic) check_launch(seen.at(next++), "fixup_forward", 11, 64, 0, {workspace, kL3Dgrad});
    check_launch(seen.at(next++), "double_backward_B", 33, 128, 3000, double_backward);
    if (deterministic) check_launch(seen.at(next++), "fixup_double_backwardB", 33, 128, 0, {workspace, kL1Grad});
    CHECK(seen.size() == next);
  }
}

TEST(every_result_is_zeroed_as_a_whole_before_any_kernel) {
  for (const Family family : {Family::kTensorProduct, Family::kConvolution}) {
    for (const bool shared_weights : {false, true}) {
      const auto loaded = load(family, false, shared_weights);
      const size_t rows = family == Family::kConvolution ? kNodes : kProducts;
      const size_t weight_rows = shared_weights ? 1 : kProducts;
      run(*loaded, Order::kForward);
      CHECK(zeroed(kL3) == rows * 5 * 4);
      CHECK(fake_cuda::record().order == std::vector<std::string>({"memset", "forward"}));

      fake_cuda::record().memsets.clear();
      fake_cuda::record().order.clear();
      run(*loaded, Order::kDoubleBackward);
      CHECK(zeroed(kL1Grad) == rows * 3 * 4);
      CHECK(zeroed(kL2Grad) == kProducts * 4 * 4);
      CHECK(zeroed(kWGrad) == weight_rows * 2 * 8);  // weights are float64 here
      CHECK(zeroed(kL3Dgrad) == rows * 5 * 4);
      CHECK(fake_cuda::record().memsets.size() == 4);
      const auto &order = fake_cuda::record().order;
      CHECK(std::count(order.begin(), order.begin() + 4, "memset") == 4);
    }
  }
}

TEST(a_call_without_products_only_zeroes) {
  const auto loaded = load(Family::kConvolution, true);
  run(*loaded, Order::kBackward, 0);
  CHECK(seen.empty());
  CHECK(zeroed(kL1Grad) == kNodes * 3 * 4);
  CHECK(fake_cuda::record().memsets.size() == 1);  // the others are empty arrays
}

TEST(a_launch_that_fails_is_an_error_with_cudas_name_for_it) {
  const auto loaded = load(Family::kTensorProduct);
  fake_cuda::record().fail_launch = 700;
  CHECK_THROWS("cuLaunchKernel failed: CUDA_ERROR_FAKE", run(*loaded, Order::kForward));
}
