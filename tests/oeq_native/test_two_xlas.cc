// SPDX-License-Identifier: BSD-3-Clause
//
// Two XLAs in one process (as when JAX and a PJRT plugin are used together) share one provider and its kernels.
// Usage: test_two_xlas <plugin> <other plugin> <toy provider>
#define CHECK_NO_MAIN
#include <memory>

#include "check.h"
#include "pjrt_host.h"
#include "programs.h"
#include "provider.h"

namespace {

constexpr char kPayload[] =
    R"({"problem": {"does": "count", "items": 9}, "kernel_prop": {"L1_dim": 3, "L2_dim": 4, "L3_dim": 5, "weight_numel": 2, )"
    R"("shared_weights": 1, "irrep_dtype": 1, "weight_dtype": 1}})";

std::string program() {
  const std::string body =
      "  %x = stablehlo.constant dense<0.0> : tensor<1x3xf32>\n"
      "  %y = stablehlo.constant dense<0.0> : tensor<1x4xf32>\n"
      "  %w = stablehlo.constant dense<0.0> : tensor<2xf32>\n" +
      programs::call("%z", "tp_forward", "%x, %y, %w",
                     "(tensor<1x3xf32>, tensor<1x4xf32>, tensor<2xf32>) -> tensor<1x5xf32>", kPayload, 1);
  return programs::module("", "tensor<1x5xf32>", body, "%z");
}

struct Xla {
  Xla(const char *path, const Provider &provider) : plugin(path) {
    if (provider.register_ffi(plugin.ffi_api("Host"), "Host") != 0) throw std::runtime_error("the provider failed");
    client = std::make_unique<pjrt::Client>(plugin);
    executable = std::make_unique<pjrt::Executable>(*client, program(), 1);
  }

  float items_run() const {
    float items = 0;
    for (PJRT_Buffer *result : executable->run({})) {
      items = client->download(result, 5)[0];
      client->free(result);
    }
    return items;
  }

  pjrt::Plugin plugin;
  std::unique_ptr<pjrt::Client> client;
  std::unique_ptr<pjrt::Executable> executable;
};

const char *plugin_paths[2];
const char *provider_path;

}  // namespace

TEST(both_run_and_share_kernels) {
  const Provider provider(provider_path);
  const Xla first(plugin_paths[0], provider), second(plugin_paths[1], provider);
  for (int repeat = 0; repeat < 3; ++repeat) {
    CHECK(first.items_run() == 9);
    CHECK(second.items_run() == 9);
  }
  CHECK(provider.stats().compilations == 1);
  CHECK(provider.stats().requests == 2);
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  plugin_paths[0] = argv[1], plugin_paths[1] = argv[2], provider_path = argv[3];
  const check::Environment cache("OEQ_CACHE", "off");
  return check::run(nullptr);
}
