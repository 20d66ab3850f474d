// SPDX-License-Identifier: BSD-3-Clause
// A JSON value that knows where it stands, so that every complaint names the file and the field.
#pragma once

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "error.h"

namespace stablemd {

class JsonField {
 public:
  JsonField(const nlohmann::json &value, std::string where) : value_(value), where_(std::move(where)) {}

  template <class... Parts>
  [[noreturn]] void complain(const Parts &...parts) const {
    fail(SMD_ERROR_FORMAT, where_, ": ", parts...);
  }

  const std::string &where() const { return where_; }
  bool is_text() const { return value_.is_string(); }
  bool is_null() const { return value_.is_null(); }
  bool has(const char *key) const { return value_.is_object() && value_.contains(key); }

  JsonField at(const std::string &key) const {
    if (!value_.is_object()) complain("must be an object");
    const auto found = value_.find(key);
    if (found == value_.end()) complain("lacks `", key, "`");
    return {*found, where_ + "." + key};
  }

  std::vector<std::pair<std::string, JsonField>> members() const {
    if (!value_.is_object()) complain("must be an object");
    std::vector<std::pair<std::string, JsonField>> result;
    for (const auto &[key, member] : value_.items()) result.emplace_back(key, JsonField(member, where_ + "." + key));
    return result;
  }

  std::vector<JsonField> items() const {
    if (!value_.is_array()) complain("must be a list");
    std::vector<JsonField> result;
    for (const auto &item : value_) result.emplace_back(item, where_ + "[" + std::to_string(result.size()) + "]");
    return result;
  }

  bool boolean() const {
    if (!value_.is_boolean()) complain("must be true or false");
    return value_.get<bool>();
  }

  std::string string() const {
    if (!value_.is_string()) complain("must be a string");
    return value_.get<std::string>();
  }

  /// An integer from `least` to `most`.
  int64_t integer(int64_t least, int64_t most) const {
    const bool fits =
        value_.is_number_unsigned() ? value_.get<uint64_t>() <= uint64_t{INT64_MAX} : value_.is_number_integer();
    if (!fits || value_.get<int64_t>() < least || value_.get<int64_t>() > most) {
      complain("must be an integer from ", least, " to ", most);
    }
    return value_.get<int64_t>();
  }

  double number() const {
    if (!value_.is_number() || !std::isfinite(value_.get<double>())) complain("must be a finite number");
    return value_.get<double>();
  }

 private:
  const nlohmann::json &value_;
  std::string where_;
};

/// Parses JSON and refuses what a reader could misunderstand: a key given twice, or deep nesting.
inline nlohmann::json parse_json(std::string_view source, const std::string &where) {
  constexpr int kDeepest = 32;
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json &parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > kDeepest) fail(SMD_ERROR_FORMAT, where, ": JSON is nested more than ", kDeepest, " deep");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second) {
      fail(SMD_ERROR_FORMAT, where, ": key `", parsed.get<std::string>().substr(0, 60), "` is given twice");
    }
    return true;
  };
  try {
    return nlohmann::json::parse(source.begin(), source.end(), watch);
  } catch (const nlohmann::json::exception &) {
    fail(SMD_ERROR_FORMAT, where, ": not valid JSON; the file is damaged or not a bundle");
  }
}

}  // namespace stablemd
