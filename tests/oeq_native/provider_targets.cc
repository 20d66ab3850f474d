// SPDX-License-Identifier: BSD-3-Clause
//
// Loads the providers on $STABLEMD_FFI_PATH as the connector does, with no client and so with no device, and tells
// which of the targets given are registered. Usage: provider_targets <PJRT plugin> cpu|cuda <target>...
#include <cstdio>
#include <string>

#include "error.h"
#include "providers.h"

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  try {
    const stablemd::Plugin &plugin = stablemd::Plugin::load(argv[1]);
    stablemd::Providers providers(plugin, argv[2], [](const std::string &) {});
    std::printf("providers: %d\n", providers.count());
    for (int i = 3; i < argc; ++i) {
      std::printf("%s: %s\n", argv[i], providers.provide(argv[i]) ? "registered" : "missing");
    }
    return 0;
  } catch (const std::exception &error) {
    std::printf("error: %s\n", error.what());
    return 1;
  }
}
