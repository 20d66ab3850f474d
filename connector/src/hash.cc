// SPDX-License-Identifier: BSD-3-Clause
#include "hash.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "error.h"
#include "unique_fd.h"

namespace stablemd {
namespace {

// Odd numbers without pattern: fractional parts of the square roots of the first primes.
constexpr std::array<uint64_t, 5> kSalt = {0x6a09e667f3bcc909, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
                                           0xa54ff53a5f1d36f1, 0x510e527fade682d1};
constexpr size_t kLanes = 4;
constexpr size_t kBlock = kLanes * 16;

/// The 128-bit product, folded: every bit of both factors reaches every bit of the result.
uint64_t mix(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t load(const char *bytes) {
  uint64_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

/// Independent lanes keep the multipliers of a core busy. Adding the input keeps a zero product from erasing the state.
void absorb(std::array<uint64_t, kLanes> &lanes, const char *block) {
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const uint64_t a = load(block + 16 * lane);
    const uint64_t b = load(block + 16 * lane + 8);
    lanes[lane] = mix(a ^ kSalt[lane], b ^ lanes[lane]) + a + (b << 32 | b >> 32);
  }
}

}  // namespace

std::string Hash::hex() const {
  char digits[33];
  std::snprintf(digits, sizeof digits, "%016llx%016llx", static_cast<unsigned long long>(high),
                static_cast<unsigned long long>(low));
  return digits;
}

Hash hash_bytes(std::string_view bytes) {
  std::array<uint64_t, kLanes> lanes = {kSalt[1], kSalt[2], kSalt[3], kSalt[4]};
  size_t at = 0;
  for (; at + kBlock <= bytes.size(); at += kBlock) absorb(lanes, bytes.data() + at);
  char last[kBlock] = {};
  if (at < bytes.size()) std::memcpy(last, bytes.data() + at, bytes.size() - at);
  absorb(lanes, last);
  const uint64_t length = bytes.size();
  const uint64_t a = mix(lanes[0] ^ kSalt[0], lanes[1] ^ length);
  const uint64_t b = mix(lanes[2] ^ kSalt[1], lanes[3] ^ kSalt[2]);
  return {mix(a ^ kSalt[3], b ^ length), mix(a + kSalt[4], b ^ kSalt[0]) ^ a};
}

Hash hash_file(const std::string &path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (!file || fstat(file.get(), &status) != 0) fail(SMD_ERROR_FILE, path, ": cannot be read: ", std::strerror(errno));
  if (status.st_size == 0) return hash_bytes({});
  const size_t size = status.st_size;
  void *mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file.get(), 0);
  if (mapped == MAP_FAILED) fail(SMD_ERROR_FILE, path, ": cannot be mapped: ", std::strerror(errno));
  const Hash hash = hash_bytes({static_cast<const char *>(mapped), size});
  munmap(mapped, size);
  return hash;
}

}  // namespace stablemd
