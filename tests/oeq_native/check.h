// SPDX-License-Identifier: BSD-3-Clause
//
// A test program: TEST(name) { CHECK(...); } as often as needed, and this header's main.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char *name;
  void (*body)();
};

inline std::vector<Test> &tests() {
  static std::vector<Test> all;
  return all;
}

struct Registered {
  Registered(const char *name, void (*body)()) { tests().push_back({name, body}); }
};

/// Thrown by SKIP: the test cannot run here. A program whose tests all skipped exits with 77.
struct Skipped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail(const char *file, int line, const std::string &what) {
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

/// The message of what `action` throws; fails where it throws nothing.
template <typename Action>
std::string thrown(const char *file, int line, Action &&action) {
  try {
    action();
  } catch (const std::exception &error) {
    return error.what();
  }
  fail(file, line, "nothing was thrown");
}

inline void expect_contains(const char *file, int line, const std::string &text, const std::string &part) {
  if (text.find(part) == std::string::npos) fail(file, line, "\"" + part + "\" is not in \"" + text + "\"");
}

/// An environment variable as it was, again, when this goes; null to unset.
class Environment {
 public:
  Environment(const char *name, const char *value) : name_(name) {
    if (const char *before = std::getenv(name)) before_ = before, was_set_ = true;
    set(value);
  }
  ~Environment() { set(was_set_ ? before_.c_str() : nullptr); }
  Environment(const Environment &) = delete;
  Environment &operator=(const Environment &) = delete;

 private:
  void set(const char *value) const {
    if (value == nullptr) {
      ::unsetenv(name_);
    } else {
      ::setenv(name_, value, 1);
    }
  }
  const char *name_;
  std::string before_;
  bool was_set_ = false;
};

inline int run(const char *only) {
  int failures = 0, passes = 0;
  for (const Test &test : tests()) {
    if (only != nullptr && std::strcmp(only, test.name) != 0) continue;
    try {
      test.body();
      ++passes;
      std::printf("ok      %s\n", test.name);
    } catch (const Skipped &why) {
      std::printf("skipped %s: %s\n", test.name, why.what());
    } catch (const std::exception &error) {
      ++failures;
      std::printf("FAILED  %s: %s\n", test.name, error.what());
    }
    std::fflush(stdout);
  }
  if (failures > 0) return 1;
  return passes > 0 ? 0 : 77;
}

}  // namespace check

#define TEST(name)                                                      \
  static void test_##name();                                            \
  static const check::Registered registered_##name{#name, test_##name}; \
  static void test_##name()

#define CHECK(...)                                                     \
  do {                                                                 \
    if (!(__VA_ARGS__)) check::fail(__FILE__, __LINE__, #__VA_ARGS__); \
  } while (false)

/// The action must throw something whose message holds `part`.
#define CHECK_THROWS(part, ...) \
  check::expect_contains(__FILE__, __LINE__, check::thrown(__FILE__, __LINE__, [&] { __VA_ARGS__; }), part)

#define CHECK_CONTAINS(text, part) check::expect_contains(__FILE__, __LINE__, text, part)

#ifndef CHECK_NO_MAIN
int main(int argc, char **argv) { return check::run(argc > 1 ? argv[1] : nullptr); }
#endif
