// SPDX-License-Identifier: BSD-3-Clause
#include "escape.h"

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace stablemd {
namespace {

struct Character {
  uint32_t code;
  size_t bytes;  // 0: no UTF-8
};

Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xf0 && lead < 0xf5 ? 4 : lead >= 0xe0 && lead < 0xf0 ? 3 : lead >= 0xc2 ? 2 : 0;
  if (bytes == 0 || lead >= 0xf5 || bytes > text.size()) return {lead, 0};
  uint32_t code = lead & (0xff >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {lead, 0};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (code < kLeast[bytes] || code > 0x10ffff || surrogate) return {lead, 0};
  return {code, bytes};
}

bool is_shown(uint32_t code) {
  const auto within = [code](uint32_t first, uint32_t last) { return code >= first && code <= last; };
  const bool control = code < 0x20 || within(0x7f, 0x9f) || within(0x2028, 0x2029);
  const bool invisible = code == 0xad || code == 0x61c || within(0x200b, 0x200f) || within(0x202a, 0x202e) ||
                         within(0x2060, 0x206f) || code == 0xfeff || within(0xfff9, 0xfffb) || within(0xe0000, 0xe007f);
  return !control && !invisible;
}

/// Calls `take` with each character, or with what stands for it.
template <class Take>
void each_piece(std::string_view text, Take take) {
  char code[12];
  while (!text.empty()) {
    const auto [value, bytes] = first_character(text);
    const size_t used = bytes > 0 ? bytes : 1;
    if (bytes > 0 && is_shown(value)) {
      take(text.substr(0, used));
    } else {
      const char *form = value == '\n'     ? "\\n"
                         : value == '\r'   ? "\\r"
                         : value == '\t'   ? "\\t"
                         : value < 0x100   ? "\\x%02x"
                         : value < 0x10000 ? "\\u%04x"
                                           : "\\U%08x";
      std::snprintf(code, sizeof code, form, value);
      take(std::string_view(code));
    }
    text.remove_prefix(used);
  }
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  each_piece(text, [&](std::string_view piece) { result += piece; });
  return result;
}

void escape_into(char *to, size_t size, std::string_view text) {
  size_t used = 0;
  bool full = false;
  each_piece(text, [&](std::string_view piece) {
    full = full || used + piece.size() >= size;
    if (full) return;
    std::memcpy(to + used, piece.data(), piece.size());
    used += piece.size();
  });
  to[used] = '\0';
}

}  // namespace stablemd
