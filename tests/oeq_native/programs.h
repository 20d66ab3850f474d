// SPDX-License-Identifier: BSD-3-Clause
//
// StableHLO programs of custom calls, as text.
#pragma once

#include <string>

namespace programs {

/// An MLIR string attribute's contents.
inline std::string quoted(const std::string &text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

/// One custom call with the attributes of an OEQ op. `has_side_effect` keeps equal calls apart.
inline std::string call(const std::string &result, const std::string &target, const std::string &operands,
                        const std::string &type, const std::string &payload, long hash) {
  return "  " + result + " = stablehlo.custom_call @" + target + "(" + operands +
         ") {api_version = 4 : i32, has_side_effect = true, backend_config = {hash = " + std::to_string(hash) +
         " : i64, kernel = \"" + quoted(payload) + "\"}} : " + type + "\n";
}

inline std::string module(const std::string &parameters, const std::string &results, const std::string &body,
                          const std::string &returned) {
  return "module @test attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {\n"
         "func.func public @main(" +
         parameters + ") -> (" + results + ") {\n" + body + "  return " + returned + " : " + results + "\n}\n}\n";
}

}  // namespace programs
