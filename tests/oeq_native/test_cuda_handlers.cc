// SPDX-License-Identifier: BSD-3-Clause
//
// The CUDA handlers from the table, stage by stage, as XLA calls them: against a stand-in for XLA's context and one for
// libcuda, with the real NVRTC. Skipped where there is no NVRTC.
#define CHECK_NO_MAIN
#include <atomic>
#include <memory>
#include <string>

#include "check.h"
#include "cuda/nvrtc.h"
#include "cuda_payload.h"
#include "fake_cuda.h"
#include "payload.h"
#include "stand_in_xla.h"

namespace {

char stream_of_xla;  // its address is the stream

/// One custom call to conv_forward; its operands are never touched.
std::unique_ptr<stand_in::CustomCall> call_site(const std::string &payload) {
  const auto properties = oeq::parse_payload(oeq::Family::kConvolution, payload).properties;
  auto call = stand_in::convolution("CUDA", payload, properties, 3, 7, reinterpret_cast<void *>(0x1000));
  call->context.stream = &stream_of_xla;
  return call;
}

OeqStats stats() {
  OeqStats s{};
  s.struct_size = sizeof(s);
  oeq_get_stats(&s);
  return s;
}

void require_nvrtc() {
  try {
    oeq::cuda::nvrtc();
  } catch (const oeq::KernelError &error) {
    throw check::Skipped(error.what());
  }
}

void start() {
  require_nvrtc();
  fake_cuda::record() = {};
}

std::string payload(const std::string &comment) {
  nlohmann::json json = nlohmann::json::parse(cuda_payload(oeq::Family::kConvolution));
  json["kernel"] = json["kernel"].get<std::string>() + "// " + comment + "\n";
  return json.dump();
}

}  // namespace

TEST(compilation_starts_in_initialize_and_execute_launches_on_xlas_stream) {
  start();
  static std::atomic<int> launches;
  launches = 0;
  fake_cuda::record().on_launch = [](const fake_cuda::Launch &launch) {
    CHECK(launch.stream == &stream_of_xla);
    CHECK(launch.kernel.find("forward") != std::string::npos);  // a mangled name
    CHECK(launch.blocks == 11);
    ++launches;
  };
  const OeqStats before = stats();
  const auto site = call_site(payload("one"));
  site->instantiate();
  CHECK(stats().requests == before.requests);  // no device is known yet
  site->initialize();
  CHECK(stats().requests == before.requests + 1);
  site->execute();
  CHECK(launches == 1);
  for (int step = 0; step < 3; ++step) {
    site->initialize();  // as XLA does before every execution
    site->execute();
  }
  CHECK(launches == 4);
  const OeqStats after = stats();
  CHECK(after.requests == before.requests + 1);
  CHECK(after.compilations == before.compilations + 1);
  CHECK(fake_cuda::record().libraries_loaded == 1);
}

TEST(call_sites_and_devices_of_one_architecture_share_a_kernel) {
  start();
  const OeqStats before = stats();
  const auto first = call_site(payload("two")), second = call_site(payload("two"));
  second->context.device = 1;  // sm_90 as device 0
  for (auto *site : {first.get(), second.get()}) site->instantiate();
  for (auto *site : {first.get(), second.get()}) site->initialize();
  for (auto *site : {first.get(), second.get()}) site->execute();
  CHECK(stats().compilations == before.compilations + 1);
  CHECK(stats().records == before.records + 1);
  second->context.device = 2;  // sm_80
  second->initialize();
  second->execute();
  CHECK(stats().compilations == before.compilations + 2);
}

TEST(a_kernel_that_does_not_compile_is_an_error_of_execute_with_the_log) {
  start();
  nlohmann::json json = nlohmann::json::parse(cuda_payload(oeq::Family::kConvolution));
  json["kernel"] = json["kernel"].get<std::string>() + "__global__ void broken() { no_such_name(); }";
  const auto site = call_site(json.dump());
  site->instantiate();
  site->initialize();
  CHECK_THROWS("conv_forward: NVRTC", site->execute());
  CHECK_THROWS("no_such_name", site->execute());
}

TEST(a_device_that_cannot_be_asked_is_an_error_of_initialize) {
  start();
  const auto site = call_site(payload("three"));
  site->instantiate();
  site->context.device = 9;
  CHECK_THROWS("conv_forward: cuDeviceGet failed", site->initialize());
}

TEST(a_launch_that_fails_is_an_xla_error) {
  start();
  const auto site = call_site(payload("four"));
  site->instantiate();
  site->initialize();
  site->execute();
  fake_cuda::record().fail_launch = 719;
  CHECK_THROWS("conv_forward: cuLaunchKernel failed: CUDA_ERROR_FAKE", site->execute());
}

int main(int argc, char **argv) {
  const check::Environment cache("OEQ_CACHE", "off");  // read at the first kernel
  return check::run(argc > 1 ? argv[1] : nullptr);
}
