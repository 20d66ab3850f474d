// SPDX-License-Identifier: BSD-3-Clause
#include "sizes.h"

#include <algorithm>
#include <charconv>

#include "error.h"

namespace stablemd {
namespace {

[[noreturn]] void not_an_expression(std::string_view expression, const char *why) {
  fail(SMD_ERROR_FORMAT, "size expression `", std::string(expression.substr(0, 60)), "` ", why);
}

/// Index into Sizes::values, or -1.
int symbol_index(std::string_view name, int layers) {
  if (name == "N") return 0;
  if (name.size() != 2 || name[1] < '1' || name[1] > '0' + layers) return -1;
  const int layer = name[1] - '0';
  if (name[0] == 'C') return layer;
  if (name[0] == 'E') return SMD_MAX_LAYERS + layer;
  return -1;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

void SizeExpression::add(int symbol, int64_t factor) {
  auto term = std::find_if(terms_.begin(), terms_.end(), [&](const auto &t) { return t.first == symbol; });
  if (term == terms_.end()) {
    terms_.emplace_back(symbol, factor);
  } else if (__builtin_add_overflow(term->second, factor, &term->second)) {
    fail(SMD_ERROR_FORMAT, "a factor in a size expression is too large");
  }
  terms_.erase(std::remove_if(terms_.begin(), terms_.end(), [](const auto &t) { return t.second == 0; }), terms_.end());
  std::sort(terms_.begin(), terms_.end());
}

SizeExpression SizeExpression::parse(std::string_view expression, int layers) {
  SizeExpression result;
  const char *at = expression.data();
  const char *end = at + expression.size();
  if (at == end) not_an_expression(expression, "is empty");
  while (at != end) {
    int64_t factor = 1;
    const bool first = at == expression.data();
    if (*at != '+' && *at != '-' && !first) not_an_expression(expression, "lacks a + or - between two terms");
    const bool negative = *at == '-';
    if (*at == '+' || *at == '-') ++at;
    if (at != end && is_digit(*at)) {
      const auto number = std::from_chars(at, end, factor);
      if (number.ec != std::errc()) not_an_expression(expression, "has a number that is too large");
      at = number.ptr;
      if (at == end || *at != '*') {
        const int64_t term = negative ? -factor : factor;
        if (__builtin_add_overflow(result.constant_, term, &result.constant_)) {
          not_an_expression(expression, "has a number that is too large");
        }
        continue;
      }
      ++at;
    }
    const char *name_end = std::find_if(at, end, [](char c) { return c == '+' || c == '-'; });
    const int symbol = symbol_index(std::string_view(at, name_end - at), layers);
    if (symbol < 0) {
      not_an_expression(expression, text("has a symbol other than N, C1..C", layers, ", E1..E", layers).c_str());
    }
    result.add(symbol, negative ? -factor : factor);
    at = name_end;
  }
  return result;
}

int64_t SizeExpression::value(const Sizes &sizes) const {
  int64_t sum = constant_;
  for (const auto &[symbol, factor] : terms_) {
    int64_t term;
    if (__builtin_mul_overflow(factor, sizes.values[symbol], &term) || __builtin_add_overflow(sum, term, &sum)) {
      fail(SMD_ERROR_FORMAT, "a size expression does not fit into 64 bits");
    }
  }
  if (sum < 0) fail(SMD_ERROR_FORMAT, "a size expression has the negative value ", sum);
  return sum;
}

bool SizeExpression::operator==(const SizeExpression &other) const {
  return constant_ == other.constant_ && terms_ == other.terms_;
}

}  // namespace stablemd
