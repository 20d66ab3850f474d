// SPDX-License-Identifier: BSD-3-Clause
#include "runtime.h"

#include <sched.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "heap.h"
#include "plugin_search.h"

namespace stablemd {
namespace {

constexpr size_t kMostInUse = 16;
constexpr int kMostThreads = 1024;  // far more, and XLA ends the process

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int available_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 0;
}

/// Model and instruction sets of the first core: XLA compiles for exactly these.
std::string cpu_features() {
  std::ifstream info("/proc/cpuinfo");
  std::string features;
  for (std::string line; std::getline(info, line) && !line.empty();) {
    for (const char *field : {"vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part"}) {
      if (line.compare(0, std::string_view(field).size(), field) == 0) features += line + "\n";
    }
  }
  return features;
}

std::string environment(const char *name) {
  const char *value = std::getenv(name);
  return value ? value : "";
}

ClientOptions client_options(const RuntimeOptions &options) {
  ClientOptions result;
  result.device = options.device;
  result.ordinal = options.ordinal;
  result.threads = options.device == "cpu" ? options.threads : 0;
  return result;
}

/// Whether a capacity is at most as much larger than the wanted one as the grid may waste anyway.
bool nearly(const HopCounts &wanted, const HopCounts &capacity) {
  constexpr double kMost = 1.12;
  return static_cast<double>(capacity.all_rows()) <= kMost * static_cast<double>(wanted.all_rows()) &&
         static_cast<double>(capacity.all_edges()) <= kMost * static_cast<double>(wanted.all_edges());
}

std::string seconds_text(double seconds) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.2f s", seconds);
  return digits;
}

}  // namespace

Runtime::Runtime(const RuntimeOptions &options)
    : options_(options), cache_(options.cache_directory, options.log, options.cache_limit) {
  if (options_.device != "cpu" && options_.device != "cuda") {
    fail(SMD_ERROR_ARGUMENT, "device `", options_.device, "`: must be `cpu` or `cuda`");
  }
  if (options_.threads < 0) fail(SMD_ERROR_ARGUMENT, "threads: ", options_.threads, " is negative");
  if (options_.threads > kMostThreads) {
    fail(SMD_ERROR_ARGUMENT, "threads: ", options_.threads, " is more than ", kMostThreads);
  }
  if (options_.ordinal < 0) fail(SMD_ERROR_ARGUMENT, "device_ordinal: ", options_.ordinal, " is negative");
  if (options_.device == "cpu") keep_freed_memory();
  const Plugin &plugin = Plugin::load(find_plugin(options_.device, options_.plugin));
  client_ = Client::create(plugin, client_options(options_));
  const auto log_info = [this](const std::string &line) { log().info(line); };
  providers_ = std::make_unique<Providers>(plugin, options_.device, log_info);
  if (cache_.enabled()) environment_key_ = environment_key();
}

std::string Runtime::environment_key() const {
  const Plugin &plugin = client_->plugin();
  const bool cpu = options_.device == "cpu";
  // XLA splits loops among the threads that it finds while it compiles.
  const std::string threads = options_.threads > 0 ? text(options_.threads)
                                                   : text(available_cores(), " PJRT_NPROC=", environment("PJRT_NPROC"),
                                                          " NPROC=", environment("NPROC"));
  return text("plugin ", hash_file(plugin.path()).hex(), " PJRT ", plugin.major(), ".", plugin.minor(), "\n", "device ",
              client_->platform(), " ", client_->platform_version(), " ", client_->device_kind(), "\n",
              cpu ? cpu_features() : "", "threads ", threads, "\n", "XLA_FLAGS=", environment("XLA_FLAGS"), "\n");
}

SizedExecutable Runtime::in_use(const Program &program, const HopCounts &need, const HopCounts &wanted) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto best = in_use_.end();
  for (auto at = in_use_.begin(); at != in_use_.end(); ++at) {
    const HopCounts &capacity = at->sized.capacity;
    if (!(at->program == program.hash) || !fits(need, capacity)) continue;
    if (!nearly(wanted, capacity)) continue;
    if (best == in_use_.end() || capacity.all_edges() < best->sized.capacity.all_edges()) best = at;
  }
  if (best == in_use_.end()) return {};
  in_use_.splice(in_use_.begin(), in_use_, best);
  return in_use_.front().sized;
}

SizedExecutable Runtime::executable(const Program &program, const HopCounts &wanted, CompileStats &stats) {
  SizedExecutable result{wanted, load_or_compile(program, program_sizes(wanted), stats)};
  const std::lock_guard<std::mutex> lock(mutex_);
  in_use_.push_front({program.hash, result});
  if (in_use_.size() > kMostInUse) in_use_.pop_back();
  return result;
}

std::shared_ptr<const Executable> Runtime::load_or_compile(const Program &program, const Sizes &sizes,
                                                           CompileStats &stats) const {
  const auto start = std::chrono::steady_clock::now();
  std::string key = environment_key_ + "program " + program.hash.hex() + "\nsizes";
  for (const int64_t size : sizes.values) key += " " + std::to_string(size);

  std::shared_ptr<const Executable> executable;
  const auto load = [&](std::string_view blob) {
    try {
      executable = client_->deserialize(blob);
      return true;
    } catch (const Error &error) {
      log().info(std::string("stored executable is replaced: ") + error.what());
      return false;
    }
  };
  double compile_seconds = 0;
  const auto make = [&]() -> std::string {
    const auto begun = std::chrono::steady_clock::now();
    executable = compile(program, sizes);
    compile_seconds = seconds_since(begun);
    return cache_.enabled() ? serialized(*executable) : "";
  };
  using Outcome = ExecutableCache::Outcome;
  const Outcome outcome = cache_.obtain(key, load, make);
  if (outcome != Outcome::loaded)
    log().info(text("compiled in ", seconds_text(compile_seconds),
                    outcome == Outcome::made_and_kept ? ", kept in the cache" : ", not kept in a cache"));
  ++(outcome == Outcome::loaded ? stats.cache_hits : stats.compilations);
  stats.seconds += seconds_since(start);
  return executable;
}

/// "" where the plugin cannot: then the executable is not kept.
std::string Runtime::serialized(const Executable &executable) const {
  try {
    return executable.serialize();
  } catch (const Error &error) {
    log().info(error.what());
    return "";
  }
}

std::shared_ptr<const Executable> Runtime::compile(const Program &program, const Sizes &sizes) const {
  log().info(
      text("compiling the program for N=", sizes.rows_in_all(), ", E=", sizes.edges(1), " (first use of this size)"));
  return client_->compile(program.source.instantiate(sizes));
}

}  // namespace stablemd
