// SPDX-License-Identifier: BSD-3-Clause
// Size expressions and program templates.
#include "check.h"
#include "error.h"
#include "program.h"

namespace {

using stablemd::Error;
using stablemd::ProgramTemplate;
using stablemd::SizeExpression;
using stablemd::Sizes;

Sizes two_layer_sizes() {
  Sizes sizes;
  sizes.rows_in_all() = 100;
  sizes.rows(1) = 80;
  sizes.rows(2) = 30;
  sizes.edges(1) = 1000;
  sizes.edges(2) = 400;
  return sizes;
}

int64_t value(const char *expression) { return SizeExpression::parse(expression, 2).value(two_layer_sizes()); }

template <class Action>
std::string complaint(Action action) {
  try {
    action();
  } catch (const Error &error) {
    CHECK_EQUAL(error.status, SMD_ERROR_FORMAT);
    return error.what();
  }
  return "no complaint";
}

}  // namespace

TEST(values_of_expressions) {
  CHECK_EQUAL(value("N"), 100);
  CHECK_EQUAL(value("+N"), 100);
  CHECK_EQUAL(value("E1"), 1000);
  CHECK_EQUAL(value("C1-C2"), 50);
  CHECK_EQUAL(value("2*N-1"), 199);
  CHECK_EQUAL(value("-1+E2"), 399);
  CHECK_EQUAL(value("+1*C1+1*C2-10"), 100);
  CHECK_EQUAL(value("N-N"), 0);
  CHECK_EQUAL(value("7"), 7);
  CHECK_EQUAL(value("E1-E2-500-100"), 0);
}

TEST(order_of_terms_does_not_matter) {
  CHECK(SizeExpression::parse("N-1+C1", 2) == SizeExpression::parse("C1+N-1", 2));
  CHECK(!(SizeExpression::parse("N", 2) == SizeExpression::parse("C1", 2)));
}

TEST(what_is_no_expression) {
  for (const char *text : {"",
                           "X",
                           "N1",
                           "C3",
                           "C0",
                           "E9",
                           "E",
                           "n",
                           "N N",
                           "2N",
                           "*N",
                           "2*",
                           "2*3",
                           "N+",
                           "+",
                           "N--1",
                           "N*2",
                           "1e3",
                           "0x10",
                           "N+C",
                           "C12",
                           " N",
                           "99999999999999999999",
                           "9223372036854775807+1"}) {
    CHECK_CONTAINS(complaint([&] { SizeExpression::parse(text, 2); }), "size expression");
  }
}

TEST(values_that_do_not_fit) {
  CHECK_CONTAINS(complaint([] { value("N-101"); }), "negative value -1");
  CHECK_CONTAINS(complaint([] { value("9223372036854775807*N"); }), "64 bits");
  CHECK_CONTAINS(complaint([] { value("9223372036854775807+N"); }), "64 bits");
}

TEST(templates) {
  const auto instantiate = [](const char *text) { return ProgramTemplate(text, 2).instantiate(two_layer_sizes()); };
  CHECK_EQUAL(instantiate(""), "");
  CHECK_EQUAL(instantiate("plain"), "plain");
  CHECK_EQUAL(instantiate("@{N}"), "100");
  CHECK_EQUAL(instantiate("tensor<@{E1}x3xf32> @main @{C1-C2}@{N} {a} @ {"), "tensor<1000x3xf32> @main 50100 {a} @ {");
}

TEST(broken_templates) {
  CHECK_CONTAINS(complaint([] { ProgramTemplate("tensor<@{N", 2); }), "ends inside");
  CHECK_CONTAINS(complaint([] { ProgramTemplate("@{}", 2); }), "is empty");
  CHECK_CONTAINS(complaint([] { ProgramTemplate("@{Q}", 2); }), "C1..C2");
}

CHECK_MAIN
