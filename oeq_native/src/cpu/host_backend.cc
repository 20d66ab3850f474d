// SPDX-License-Identifier: BSD-3-Clause
//
// The CPU backend: what the core's workers call.
#include <cstdio>
#include <fstream>
#include <mutex>
#include <string>
#include <utility>

#include "../backend.h"
#include "contraction.h"
#include "generator.h"
#include "host_compiler.h"
#include "host_kernel.h"
#include "problem.h"

namespace oeq {
namespace cpu {
namespace {

const char *const kGenericImage = "generic kernel";
const char *const kBuiltInImage = "built-in kernel";

/// FNV-1a: names the architecture; collisions of two CPUs' feature lists are not a concern at 64 bits.
std::string short_hash(const std::string &text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

/// The lines of /proc/cpuinfo that decide what -march=native means, of the first CPU.
std::string cpu_description() {
  std::ifstream file("/proc/cpuinfo");
  std::string description, line;
  while (std::getline(file, line) && !line.empty())
    for (const char *key : {"vendor_id", "cpu family", "model\t", "flags", "CPU implementer", "CPU part", "Features"})
      if (line.rfind(key, 0) == 0) description += line + '\n';
  return description;
}

class HostBackend final : public Backend {
 public:
  const char *name() const override { return "Host"; }

  bool one_image_for_all_orders() const override { return false; }

  std::string architecture(int32_t) const override {
    return "host-" + std::to_string(this_vector_unit().bytes * 8) + "-" + short_hash(cpu_description());
  }

  std::string toolchain() const override {
    return "generator " + std::to_string(kGeneratorVersion) + ", " +
           (compiler_.identity().empty() ? "no compiler" : compiler_.identity());
  }

  Image compile(const Unit &unit, const std::string &, const StopFlag &stop) const override {
    const Payload &payload = *unit.payload;
    if (payload.family == Family::kContraction) return {kBuiltInImage, false};
    const Problem problem = parse_problem(payload.problem, payload.properties, payload.family);
    if (compiler_.identity().empty()) return generic(compiler_.failure());
    try {
      return {compiler_.compile(generate(problem, payload.family, unit.order, this_vector_unit()), stop), true};
    } catch (const KernelError &error) {
      if (stop.load()) throw;
      const std::string reason = error.what();
      return generic(reason.substr(0, reason.find('\n')));
    }
  }

  std::unique_ptr<Kernel> load(const Unit &unit, const Image &image, int32_t) const override {
    const Payload &payload = *unit.payload;
    if (payload.family == Family::kContraction)
      return std::make_unique<ContractionKernel>(parse_contraction(payload.problem, payload.properties), unit.order);
    const Problem problem = parse_problem(payload.problem, payload.properties, payload.family);
    std::unique_ptr<SharedLibrary> library;
    if (image.bytes != kGenericImage) library = std::make_unique<SharedLibrary>(image.bytes);
    return std::make_unique<HostKernel>(problem, payload.family, unit.order, std::move(library));
  }

 private:
  /// Says once per process that, and why, kernels are slow.
  Image generic(const std::string &reason) const {
    std::call_once(noticed_,
                   [&] { std::fprintf(stderr, "stablemd: using slow generic CPU kernels: %s\n", reason.c_str()); });
    return {kGenericImage, false};
  }

  const HostCompiler compiler_;
  mutable std::once_flag noticed_;
};

}  // namespace
}  // namespace cpu

std::unique_ptr<Backend> make_host_backend() { return std::make_unique<cpu::HostBackend>(); }

}  // namespace oeq
