// SPDX-License-Identifier: BSD-3-Clause
//
// Wall time of making distinct kernels, for bench_compile.py; prints seconds.
//   compile_kernels xla <PJRT plugin> <provider> <payload>...
//       one executable with a conv_forward call per payload, compiled by XLA and run once; workers by
//       OEQ_COMPILE_THREADS
//   compile_kernels nvrtc <workers> <architecture> <payload>...
//       the CUDA backend's compilations on this library's worker pool; no GPU needed
//   compile_kernels mutex <callers> <architecture> <payload>...
//       OpenEquivariance's scheme: callers compile under one mutex, NVRTC splits each compilation over all cores
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/nvrtc.h"
#include "payload.h"
#include "pjrt_host.h"
#include "programs.h"
#include "provider.h"
#include "worker_pool.h"

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

/// Statements that call conv_forward for one node and one edge.
std::string convolution(const std::string &text, size_t number) {
  const KernelProperties p = parse_payload(Family::kConvolution, text).properties;
  const std::string n = std::to_string(number);
  const auto row = [](int64_t width) { return "tensor<1x" + std::to_string(width) + "xf32>"; };
  const std::string index = "tensor<1xi32>", workspace = "tensor<" + std::to_string(p.workspace_size) + "xui8>";
  const std::string type = "(" + row(p.l1_dim) + ", " + row(p.l2_dim) + ", " + row(p.weight_numel) + ", " + index +
                           ", " + index + ", " + workspace + ", " + index + ") -> " + row(p.l3_dim);
  return zeros("%x" + n, row(p.l1_dim)) + zeros("%y" + n, row(p.l2_dim)) + zeros("%w" + n, row(p.weight_numel)) +
         zeros("%i" + n, index) + zeros("%u" + n, workspace) +
         programs::call("%r" + n, "conv_forward",
                        "%x" + n + ", %y" + n + ", %w" + n + ", %i" + n + ", %i" + n + ", %u" + n + ", %i" + n, type,
                        text, static_cast<long>(number));
}

double through_xla(const char *plugin_path, const char *provider_path, const std::vector<std::string> &payloads) {
  const pjrt::Plugin plugin(plugin_path);
  const Provider provider(provider_path);
  if (provider.register_ffi(plugin.ffi_api("Host"), "Host") != 0) throw std::runtime_error("the provider failed");
  const pjrt::Client client(plugin);
  std::string body;
  for (size_t i = 0; i < payloads.size(); ++i) body += convolution(payloads[i], i);
  const std::string program = programs::module("", "tensor<1xi32>", body, "%i0");
  const Stopwatch stopwatch;
  const pjrt::Executable executable(client, program, 1);
  for (PJRT_Buffer *result : executable.run({})) client.free(result);
  const double seconds = stopwatch.seconds();
  const OeqStats stats = provider.stats();
  if (stats.compilations != static_cast<int64_t>(payloads.size()))
    throw std::runtime_error("not every kernel was compiled");
  return seconds;
}

std::vector<Payload> parsed(const std::vector<std::string> &texts) {
  std::vector<Payload> payloads;
  for (const std::string &text : texts) payloads.push_back(parse_payload(Family::kConvolution, text));
  return payloads;
}

double on_worker_pool(int workers, const std::string &architecture, const std::vector<std::string> &texts) {
  const std::vector<Payload> payloads = parsed(texts);
  const cuda::CudaBackend backend;
  backend.toolchain();  // opens NVRTC
  WorkerPool pool(workers, 1024);
  std::atomic<size_t> bytes{0};
  const Stopwatch stopwatch;
  std::vector<WorkerPool::TicketPointer> tickets;
  for (const Payload &payload : payloads) {
    tickets.push_back(WorkerPool::prepare([&](const StopFlag &stop) {
      bytes += backend.compile({&payload, Order::kForward}, architecture, stop).bytes.size();
    }));
    pool.submit(tickets.back());
  }
  for (const auto &ticket : tickets) pool.wait(ticket);
  return stopwatch.seconds();
}

double under_one_mutex(int callers, const std::string &architecture, const std::vector<std::string> &texts) {
  const std::vector<Payload> payloads = parsed(texts);
  const std::vector<std::string> kernels = {
      "forward",       "backward",       "double_backward_A",     "double_backward_B",
      "fixup_forward", "fixup_backward", "fixup_double_backwardB"};
  const std::vector<std::string> options = {"--std=c++17", "-arch=" + architecture, "--split-compile=0",
                                            "--use_fast_math"};
  const StopFlag never{false};
  cuda::nvrtc();
  std::mutex mutex;
  std::atomic<size_t> next{0};
  const Stopwatch stopwatch;
  std::vector<std::thread> threads;
  for (int t = 0; t < callers; ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < payloads.size(); i = next++) {
        const std::lock_guard lock(mutex);
        cuda::nvrtc().compile(payloads[i].cuda_source, kernels, options, never);
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  return stopwatch.seconds();
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 5) return 2;
  try {
    const std::string mode = argv[1];
    std::vector<std::string> payloads;
    for (int i = 4; i < argc; ++i) payloads.push_back(contents(argv[i]));
    double seconds = 0;
    if (mode == "xla") {
      seconds = through_xla(argv[2], argv[3], payloads);
    } else if (mode == "nvrtc") {
      seconds = on_worker_pool(std::atoi(argv[2]), argv[3], payloads);
    } else if (mode == "mutex") {
      seconds = under_one_mutex(std::atoi(argv[2]), argv[3], payloads);
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
