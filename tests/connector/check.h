// SPDX-License-Identifier: BSD-3-Clause
// The least of a test framework: TEST(name) { CHECK(...); }, and CHECK_MAIN once per program.
#pragma once

#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace check {

struct Case {
  const char *name;
  std::function<void()> body;
};

inline std::vector<Case> &cases() {
  static std::vector<Case> all;
  return all;
}

inline int failures = 0;

struct Registration {
  Registration(const char *name, std::function<void()> body) { cases().push_back({name, std::move(body)}); }
};

template <class... Parts>
void report(const char *file, int line, const Parts &...parts) {
  ++failures;
  std::cerr << file << ":" << line << ": ";
  (std::cerr << ... << parts) << std::endl;
}

/// Runs the tests whose name contains the first argument, all without one.
inline int run(int argc, char **argv) {
  int ran = 0;
  for (const Case &test : cases()) {
    if (argc > 1 && std::string(test.name).find(argv[1]) == std::string::npos) continue;
    const int before = failures;
    try {
      test.body();
    } catch (const std::exception &error) {
      report(test.name, 0, "threw: ", error.what());
    }
    std::cout << (failures == before ? "ok      " : "FAILED  ") << test.name << std::endl;
    ++ran;
  }
  if (ran == 0) std::cerr << "no test ran" << std::endl;
  return failures || ran == 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

}  // namespace check

#define TEST(name)                                                   \
  static void name();                                                \
  static const check::Registration name##_registration(#name, name); \
  static void name()

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) check::report(__FILE__, __LINE__, "not true: ", #condition); \
  } while (false)

#define CHECK_EQUAL(left, right)                                                                       \
  do {                                                                                                 \
    const auto left_value = (left);                                                                    \
    const auto right_value = (right);                                                                  \
    if (!(left_value == right_value))                                                                  \
      check::report(__FILE__, __LINE__, #left, " is ", left_value, ", ", #right, " is ", right_value); \
  } while (false)

#define CHECK_CONTAINS(whole, part)                                                           \
  do {                                                                                        \
    const std::string whole_value = (whole);                                                  \
    if (whole_value.find(part) == std::string::npos)                                          \
      check::report(__FILE__, __LINE__, "`", whole_value, "` does not contain `", part, "`"); \
  } while (false)

#define CHECK_MAIN \
  int main(int argc, char **argv) { return check::run(argc, argv); }
