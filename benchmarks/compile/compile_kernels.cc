// SPDX-License-Identifier: BSD-3-Clause
//
// Wall time of making distinct kernels, for bench_compile.py; prints seconds. Workers by OEQ_COMPILE_THREADS.
//   compile_kernels xla <PJRT plugin> <provider> <payload>...
//       one executable with a conv_double_backward call per payload, compiled by XLA and run once
//   compile_kernels nvrtc <architecture> <payload>...
//       the same executable for CUDA: its calls' stages as XLA makes them, on a stand-in for the GPU
//   compile_kernels mutex <architecture> <payload>...
//       OpenEquivariance's scheme: one compilation at a time, NVRTC splits it over all cores
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

#include "cuda/nvrtc.h"
#include "payload.h"
#include "pjrt_host.h"
#include "programs.h"
#include "provider.h"
#include "stand_in_xla.h"

namespace {

using namespace oeq;

std::string contents(const char *path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::string zeros(const std::string &name, const std::string &type) {
  return "  " + name + " = stablehlo.constant dense<0" +
         (type.back() == '>' && type.find('f') != std::string::npos ? ".0" : "") + "> : " + type + "\n";
}

/// Statements that call conv_double_backward, whose kernels are the long ones, for one node and one edge.
std::string convolution(const std::string &text, size_t number) {
  const KernelProperties p = parse_payload(Family::kConvolution, text).properties;
  const std::string n = std::to_string(number);
  const auto row = [](int64_t width) { return "tensor<1x" + std::to_string(width) + "xf32>"; };
  const std::string x = row(p.l1_dim), y = row(p.l2_dim), w = row(p.weight_numel), z = row(p.l3_dim);
  const std::string index = "tensor<1xi32>", workspace = "tensor<" + std::to_string(p.workspace_size) + "xui8>";
  std::string statements, operands, types;
  const auto operand = [&](const std::string &name, const std::string &type) {
    statements += zeros(name + n, type);
    operands += (operands.empty() ? "" : ", ") + name + n;
    types += (types.empty() ? "" : ", ") + type;
  };
  operand("%x", x);
  operand("%y", y);
  operand("%w", w);
  operand("%z", z);
  operand("%xd", x);
  operand("%yd", y);
  operand("%wd", w);
  operand("%r", index);
  operand("%s", index);
  operand("%u", workspace);
  operand("%o", index);
  return statements + programs::call("%g" + n + ":4", "conv_double_backward", operands,
                                     "(" + types + ") -> (" + x + ", " + y + ", " + w + ", " + z + ")", text,
                                     static_cast<long>(number));
}

double through_xla(const char *plugin_path, const char *provider_path, const std::vector<std::string> &payloads) {
  const pjrt::Plugin plugin(plugin_path);
  const Provider provider(provider_path);
  if (provider.register_ffi(plugin.ffi_api("Host"), "Host") != 0) throw std::runtime_error("the provider failed");
  const pjrt::Client client(plugin);
  std::string body;
  for (size_t i = 0; i < payloads.size(); ++i) body += convolution(payloads[i], i);
  const std::string program = programs::module("", "tensor<1xi32>", body, "%r0");
  const Stopwatch stopwatch;
  const pjrt::Executable executable(client, program, 1);
  for (PJRT_Buffer *result : executable.run({})) client.free(result);
  const double seconds = stopwatch.seconds();
  const OeqStats stats = provider.stats();
  if (stats.compilations != static_cast<int64_t>(payloads.size()))
    throw std::runtime_error("not every kernel was compiled");
  return seconds;
}

/// The stand-in's device of an architecture, see fake_cuda.h.
int32_t device_of(const std::string &architecture) {
  if (architecture == "sm_90") return 0;
  if (architecture == "sm_80") return 2;
  throw std::runtime_error("the architecture must be sm_80 or sm_90");
}

double through_handlers(const std::string &architecture, const std::vector<std::string> &payloads) {
  cuda::nvrtc();  // opening it does not count
  std::vector<std::unique_ptr<stand_in::CustomCall>> calls;
  for (const std::string &payload : payloads) {
    const KernelProperties properties = parse_payload(Family::kConvolution, payload).properties;
    calls.push_back(stand_in::convolution("CUDA", payload, properties, 1, 1, nullptr));
    calls.back()->context.device = device_of(architecture);
  }
  const Stopwatch stopwatch;
  for (const auto &call : calls) call->instantiate();
  for (const auto &call : calls) call->initialize();
  for (const auto &call : calls) call->execute();
  return stopwatch.seconds();
}

double one_at_a_time(const std::string &architecture, const std::vector<std::string> &payloads) {
  const std::vector<std::string> kernels = {
      "forward",       "backward",       "double_backward_A",     "double_backward_B",
      "fixup_forward", "fixup_backward", "fixup_double_backwardB"};
  const std::vector<std::string> options = {"--std=c++17", "-arch=" + architecture, "--split-compile=0",
                                            "--use_fast_math"};
  const StopFlag never{false};
  cuda::nvrtc();
  const Stopwatch stopwatch;
  for (const std::string &text : payloads) {
    cuda::nvrtc().compile(parse_payload(Family::kConvolution, text).cuda_source, kernels, options, never);
  }
  return stopwatch.seconds();
}

}  // namespace

int main(int argc, char **argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const int first = mode == "xla" ? 4 : 3;  // of the payloads
  if (argc <= first) return 2;
  try {
    std::vector<std::string> payloads;
    for (int i = first; i < argc; ++i) payloads.push_back(contents(argv[i]));
    double seconds = 0;
    if (mode == "xla") {
      seconds = through_xla(argv[2], argv[3], payloads);
    } else if (mode == "nvrtc") {
      seconds = through_handlers(argv[2], payloads);
    } else if (mode == "mutex") {
      seconds = one_at_a_time(argv[2], payloads);
    } else {
      return 2;
    }
    std::printf("%.3f\n", seconds);
    return 0;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "compile_kernels: %s\n", error.what());
    return 1;
  }
}
