// SPDX-License-Identifier: BSD-3-Clause
//
// What a call of an op costs besides its kernel: ops whose kernel does nothing against an FFI handler that does
// nothing, with the same operands, many calls in one program so that the cost of executing the program itself hardly
// counts. Usage: bench_dispatch <PJRT plugin> <provider with kernels that do nothing>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "pjrt_host.h"
#include "programs.h"
#include "provider.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

constexpr int kCallSites[] = {100, 1000};  // in one program
constexpr int kCallsPerRound = 100000;
constexpr int kRounds = 15;  // the best counts

ffi::Error nothing(ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); }

XLA_FFI_Error *empty_handler(XLA_FFI_CallFrame *frame) {
  static const auto *handler = ffi::Ffi::Bind().RemainingArgs().RemainingRets().To(nothing).release();
  return handler->Call(frame);
}

void register_empty(const XLA_FFI_Api *api) {
  XLA_FFI_Handler_Register_Args args{};
  args.struct_size = XLA_FFI_Handler_Register_Args_STRUCT_SIZE;
  args.name = {"empty", 5};
  args.platform = {"Host", 4};
  args.bundle.execute = empty_handler;
  if (api->XLA_FFI_Handler_Register(&args) != nullptr) throw std::runtime_error("the empty handler was refused");
}

constexpr char kPayload[] =
    R"({"problem": {"does": "empty"}, "kernel_prop": {"L1_dim": 3, "L2_dim": 4, "L3_dim": 5, "weight_numel": 2, )"
    R"("shared_weights": 0, "irrep_dtype": 1, "weight_dtype": 1, "workspace_size": 1, "deterministic": 0, "idx_dtype": 3}})";

// Arrays of the ops below; the payload above says their widths.
const std::string kX = "tensor<2x3xf32>", kY = "tensor<6x4xf32>", kW = "tensor<6x2xf32>", kZ = "tensor<2x5xf32>",
                  kIndex = "tensor<6xi32>", kWorkspace = "tensor<1xui8>", kDummy = "tensor<1xi32>";
const std::string kParameters = "%a: tensor<6x3xf32>, %x: " + kX + ", %y: " + kY + ", %w: " + kW + ", %z: " + kZ +
                                ", %i: " + kIndex + ", %u: " + kWorkspace + ", %d: " + kDummy;

struct Op {
  const char *target;
  std::string operands;
  std::string type;
};

const std::vector<Op> kOps = {
    {"tp_forward", "%a, %y, %w", "(tensor<6x3xf32>, " + kY + ", " + kW + ") -> tensor<6x5xf32>"},
    {"conv_double_backward", "%x, %y, %w, %z, %x, %y, %w, %i, %i, %u, %d",
     "(" + kX + ", " + kY + ", " + kW + ", " + kZ + ", " + kX + ", " + kY + ", " + kW + ", " + kIndex + ", " + kIndex +
         ", " + kWorkspace + ", " + kDummy + ") -> (" + kX + ", " + kY + ", " + kW + ", " + kZ + ")"},
};

/// A program of equal calls; returns one of its parameters.
std::string program(const std::string &target, const Op &op, int call_sites) {
  std::string body;
  for (int i = 0; i < call_sites; ++i) {
    const std::string results = op.type.find("-> (") == std::string::npos ? "" : ":4";
    body += programs::call("%c" + std::to_string(i) + results, target, op.operands, op.type, kPayload, 7);
  }
  return programs::module(kParameters, kX, body, "%x");
}

/// Microseconds per call.
double time_per_call(const pjrt::Client &client, const pjrt::Executable &executable,
                     const std::vector<PJRT_Buffer *> &arguments, int call_sites) {
  const int repeats = kCallsPerRound / call_sites;
  const auto start = std::chrono::steady_clock::now();
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (PJRT_Buffer *result : executable.run(arguments)) client.free(result);
  }
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / (repeats * call_sites);
}

/// Measures one op; returns the overhead in microseconds. Rounds of both in turn, so that a slow moment hits both.
double measure(const pjrt::Client &client, const Op &op, int call_sites, const std::vector<PJRT_Buffer *> &arguments) {
  const pjrt::Executable empty(client, program("empty", op, call_sites), 1);
  const pjrt::Executable oeq(client, program(op.target, op, call_sites), 1);
  double empty_time = 1e30, op_time = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    empty_time = std::min(empty_time, time_per_call(client, empty, arguments, call_sites));
    op_time = std::min(op_time, time_per_call(client, oeq, arguments, call_sites));
  }
  const double overhead = op_time - empty_time;
  std::printf("%-22s %10d %14.3f %14.3f %14.3f\n", op.target, call_sites, empty_time, op_time, overhead);
  return overhead;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  const pjrt::Plugin plugin(argv[1]);
  const Provider provider(argv[2]);
  const XLA_FFI_Api *api = plugin.ffi_api("Host");
  register_empty(api);
  if (provider.register_ffi(api, "Host") != 0) return 1;
  const pjrt::Client client(plugin);

  const std::vector<int64_t> zeros(64, 0);
  const auto upload = [&](std::vector<int64_t> dims, PJRT_Buffer_Type type) {
    return client.upload({std::move(dims), zeros.data(), type});
  };
  const std::vector<PJRT_Buffer *> arguments = {
      upload({6, 3}, PJRT_Buffer_Type_F32), upload({2, 3}, PJRT_Buffer_Type_F32), upload({6, 4}, PJRT_Buffer_Type_F32),
      upload({6, 2}, PJRT_Buffer_Type_F32), upload({2, 5}, PJRT_Buffer_Type_F32), upload({6}, PJRT_Buffer_Type_S32),
      upload({1}, PJRT_Buffer_Type_U8),     upload({1}, PJRT_Buffer_Type_S32)};

  std::printf("%-22s %10s %14s %14s %14s\n", "us per call", "call sites", "empty handler", "op", "overhead");
  double worst = 0;
  for (const int call_sites : kCallSites) {
    for (const Op &op : kOps) worst = std::max(worst, measure(client, op, call_sites, arguments));
  }
  for (PJRT_Buffer *argument : arguments) client.free(argument);
  std::printf("dispatch_overhead_us=%.3f\n", worst);
}
