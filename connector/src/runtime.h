// SPDX-License-Identifier: BSD-3-Clause
// A PJRT client with its providers, its executable cache, and the executables in use.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "cache.h"
#include "capacity.h"
#include "hash.h"
#include "log.h"
#include "pjrt.h"
#include "program.h"
#include "providers.h"

namespace stablemd {

struct RuntimeOptions {
  std::string device = "cpu";
  std::string plugin;  // "": find one
  int threads = 0;     // 0: all cores
  int ordinal = 0;
  std::string cache_directory;  // "": no cache
  uint64_t cache_limit = 0;     // bytes; 0: any number
  Log log;
};

/// A template with its hash, which stands for it in keys.
struct Program {
  ProgramTemplate source;
  Hash hash;
};

struct CompileStats {
  int64_t compilations = 0;
  int64_t cache_hits = 0;
  double seconds = 0;
};

/// A program for one capacity.
struct SizedExecutable {
  HopCounts capacity;
  std::shared_ptr<const Executable> executable;
};

class Runtime {
 public:
  explicit Runtime(const RuntimeOptions &options);

  const std::string &device() const { return options_.device; }
  const Client &client() const { return *client_; }
  const Log &log() const { return options_.log; }
  Providers &providers() const { return *providers_; }
  int threads() const { return options_.threads; }

  /// The smallest program in use that fits what a graph needs and is hardly larger than wanted; without executable if
  /// there is none. Thread-safe.
  SizedExecutable in_use(const Program &program, const HopCounts &need, const HopCounts &wanted);

  /// A program of the wanted capacity, loaded from the cache or compiled. Thread-safe.
  SizedExecutable executable(const Program &program, const HopCounts &wanted, CompileStats &stats);

 private:
  struct InUse {
    Hash program;
    SizedExecutable sized;
  };

  RuntimeOptions options_;
  std::shared_ptr<Client> client_;
  std::unique_ptr<Providers> providers_;
  ExecutableCache cache_;
  std::string environment_key_;  // of everything but the program that an executable depends on
  std::mutex mutex_;
  std::list<InUse> in_use_;  // latest first

  std::string environment_key() const;
  std::shared_ptr<const Executable> load_or_compile(const Program &program, const Sizes &sizes,
                                                    CompileStats &stats) const;
  std::shared_ptr<const Executable> compile(const Program &program, const Sizes &sizes) const;
  std::string serialized(const Executable &executable) const;
};

}  // namespace stablemd
