// SPDX-License-Identifier: BSD-3-Clause
//
// Compiling CUDA source on a machine without a GPU or driver. Skipped where there is no NVRTC.
#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "cuda/cuda_backend.h"
#include "cuda/nvrtc.h"
#include "cuda_payload.h"
#include "payload.h"

using namespace oeq;

namespace {

const StopFlag kGoOn{false};

void require_nvrtc() {
  try {
    cuda::nvrtc();
  } catch (const KernelError &error) {
    CHECK_CONTAINS(error.what(), "pip install nvidia-cuda-nvrtc");
    throw check::Skipped(error.what());
  }
}

/// Where the image's cubin, an ELF file, begins.
size_t elf_offset(const std::string &image) {
  return image.find(
      "\x7f"
      "ELF");
}

/// An ELF header's e_flags: the cubin's architecture is part of it.
uint32_t elf_flags(const std::string &image) {
  uint32_t flags = 0;
  std::memcpy(&flags, image.data() + elf_offset(image) + 48, sizeof(flags));
  return flags;
}

}  // namespace

TEST(compiles_all_kernels_of_a_payload_for_each_architecture) {
  require_nvrtc();
  const cuda::CudaBackend backend;
  for (const Family family : {Family::kTensorProduct, Family::kConvolution}) {
    const Payload payload = parse_payload(family, cuda_payload(family));
    const Unit unit{&payload, Order::kForward};
    const std::string ampere = backend.compile(unit, "sm_80", kGoOn).bytes;
    const std::string hopper = backend.compile(unit, "sm_90", kGoOn).bytes;
    for (const std::string *image : {&ampere, &hopper}) {
      CHECK(elf_offset(*image) != std::string::npos);
      const std::string symbols = image->substr(0, elf_offset(*image));
      CHECK(std::count(symbols.begin(), symbols.end(), '\n') == (family == Family::kConvolution ? 8 : 5));
      CHECK_CONTAINS(symbols, "double_backward_B");
      CHECK_CONTAINS(image->substr(elf_offset(*image)), symbols.substr(0, symbols.find('\n')));
    }
    CHECK(elf_flags(ampere) != elf_flags(hopper));
    CHECK(backend.compile(unit, "sm_90", kGoOn).bytes == hopper);  // the same bytes every time
  }
}

TEST(errors_carry_the_compilers_log) {
  require_nvrtc();
  Payload payload = parse_payload(Family::kTensorProduct, cuda_payload(Family::kTensorProduct));
  payload.cuda_source += "__global__ void broken() { undeclared_name = 1; }\n";
  const cuda::CudaBackend backend;
  const std::string message =
      check::thrown(__FILE__, __LINE__, [&] { backend.compile({&payload, Order::kForward}, "sm_90", kGoOn); });
  CHECK_CONTAINS(message, "cannot compile the kernel");
  CHECK_CONTAINS(message, "undeclared_name");
}

TEST(what_cannot_be_compiled_is_refused_plainly) {
  require_nvrtc();
  Payload payload = parse_payload(Family::kTensorProduct, cuda_payload(Family::kTensorProduct));
  const cuda::CudaBackend backend;
  CHECK_THROWS("does not know sm_10", backend.compile({&payload, Order::kForward}, "sm_10", kGoOn));
  payload.cuda_source.clear();
  CHECK_THROWS("has no CUDA source", backend.compile({&payload, Order::kForward}, "sm_90", kGoOn));
}

TEST(several_threads_compile_at_once) {
  require_nvrtc();
  const cuda::CudaBackend backend;
  const Payload payload = parse_payload(Family::kConvolution, cuda_payload(Family::kConvolution));
  const std::string alone = backend.compile({&payload, Order::kForward}, "sm_90", kGoOn).bytes;
  std::atomic<int> equal{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] { equal += backend.compile({&payload, Order::kForward}, "sm_90", kGoOn).bytes == alone; });
  }
  for (std::thread &thread : threads) thread.join();
  CHECK(equal == 3);
}

TEST(a_compilation_can_be_cut_short) {
  require_nvrtc();
  const StopFlag stop{true};
  const cuda::CudaBackend backend;
  const Payload payload = parse_payload(Family::kConvolution, cuda_payload(Family::kConvolution));
  try {
    backend.compile({&payload, Order::kForward}, "sm_90", stop);
    throw check::Skipped("this NVRTC cannot be interrupted");
  } catch (const KernelError &error) {
    CHECK_CONTAINS(error.what(), "about to end");
  }
}

TEST(a_wrong_path_of_nvrtc_is_named) {
  const check::Environment path("OEQ_NVRTC", "/none/libnvrtc.so");
  CHECK_THROWS("cannot open /none/libnvrtc.so", cuda::Nvrtc());
}
