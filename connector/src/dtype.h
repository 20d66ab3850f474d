// SPDX-License-Identifier: BSD-3-Clause
// Element types by their three names: safetensors', numpy's, PJRT's.
#pragma once

#include <cstddef>
#include <string_view>

#include "pjrt_c_api.h"

namespace stablemd {

struct ElementType {
  const char *safetensors;
  const char *name;
  PJRT_Buffer_Type pjrt;
  size_t bytes;
};

inline constexpr ElementType kElementTypes[] = {
    {"BOOL", "bool", PJRT_Buffer_Type_PRED, 1},     {"I8", "int8", PJRT_Buffer_Type_S8, 1},
    {"I16", "int16", PJRT_Buffer_Type_S16, 2},      {"I32", "int32", PJRT_Buffer_Type_S32, 4},
    {"I64", "int64", PJRT_Buffer_Type_S64, 8},      {"U8", "uint8", PJRT_Buffer_Type_U8, 1},
    {"U16", "uint16", PJRT_Buffer_Type_U16, 2},     {"U32", "uint32", PJRT_Buffer_Type_U32, 4},
    {"U64", "uint64", PJRT_Buffer_Type_U64, 8},     {"F16", "float16", PJRT_Buffer_Type_F16, 2},
    {"BF16", "bfloat16", PJRT_Buffer_Type_BF16, 2}, {"F32", "float32", PJRT_Buffer_Type_F32, 4},
    {"F64", "float64", PJRT_Buffer_Type_F64, 8},
};

/// nullptr where no type has this name.
inline const ElementType *type_by_safetensors_name(std::string_view name) {
  for (const ElementType &type : kElementTypes) {
    if (name == type.safetensors) return &type;
  }
  return nullptr;
}

/// nullptr where no type has this name.
inline const ElementType *type_by_name(std::string_view name) {
  for (const ElementType &type : kElementTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

}  // namespace stablemd
