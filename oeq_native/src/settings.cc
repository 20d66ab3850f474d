// SPDX-License-Identifier: BSD-3-Clause
#include "settings.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "backend.h"
#include "oeq_native.h"

namespace oeq {
namespace {

constexpr long kMostDefaultThreads = 16;

/// The variable as a whole number between `least` and `most`; `otherwise` where it is unset.
long whole_number(const char *variable, long least, long most, long otherwise) {
  const char *text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  char *end = nullptr;
  errno = 0;
  const long value = std::strtol(text, &end, 10);
  const bool digits_only = *text != '\0' && std::strspn(text, "0123456789") == std::strlen(text);
  if (!digits_only || errno != 0 || value < least || value > most) {
    throw KernelError(std::string(variable) + "=" + text + ": must be a whole number from " + std::to_string(least) +
                      " to " + std::to_string(most));
  }
  return value;
}

std::string cache_directory() {
  if (const char *folder = std::getenv("OEQ_CACHE"); folder != nullptr && *folder != '\0') {
    if (std::strcmp(folder, "off") == 0) return "";
    if (*folder != '/') throw KernelError(std::string("OEQ_CACHE=") + folder + ": must be an absolute path or \"off\"");
    return folder;
  }
  if (const char *base = std::getenv("XDG_CACHE_HOME"); base != nullptr && *base == '/') {
    return std::string(base) + "/oeq_native";
  }
  if (const char *home = std::getenv("HOME"); home != nullptr && *home == '/') {
    return std::string(home) + "/.cache/oeq_native";
  }
  return "";
}

}  // namespace

int available_cores() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) return std::max(1, CPU_COUNT(&mask));
  return std::max(1u, std::thread::hardware_concurrency());  // more cores than cpu_set_t holds
}

Settings read_settings() {
  Settings settings;
  const long cores = std::min<long>(available_cores(), kMostDefaultThreads);
  settings.threads = static_cast<int>(whole_number("OEQ_COMPILE_THREADS", 1, 256, cores));
  settings.queue_limit = static_cast<size_t>(whole_number("OEQ_COMPILE_QUEUE", 1, 65536, 1024));
  settings.verbose = whole_number("OEQ_VERBOSE", 0, 1, 0) != 0;
  settings.cache_directory = cache_directory();
  return settings;
}

}  // namespace oeq

extern "C" OEQ_API const char *oeq_cache_directory(char *reason, size_t size) {
  thread_local std::string directory;
  try {
    directory = oeq::read_settings().cache_directory;
    return directory.c_str();
  } catch (const std::exception &error) {
    std::snprintf(reason, size, "%s", error.what());
    return nullptr;
  }
}
