// SPDX-License-Identifier: BSD-3-Clause
#include "cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <tuple>
#include <vector>

#include "error.h"
#include "hash.h"
#include "unique_fd.h"

namespace stablemd {
namespace {

namespace fs = std::filesystem;

/// In front of the key and the blob.
struct EntryHeader {
  char magic[8];
  uint64_t key_bytes;
  uint64_t blob_bytes;
  Hash checksum;  // of key and blob
};
constexpr const char *kEntry = ".exe";
constexpr char kMagic[8] = {'S', 'M', 'D', 'E', 'X', 'E', '0', '1'};

std::string environment(const char *name) {
  const char *value = std::getenv(name);
  return value ? value : "";
}

/// Reasons not to use the cache; they end in one warning.
class CacheProblem : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] void problem(const std::string &path) { throw CacheProblem(path + ": " + std::strerror(errno)); }

/// Executables are machine code, so nobody else may be able to write them.
void require_private_directory(const std::string &directory) {
  std::error_code failure;
  fs::create_directories(fs::path(directory).parent_path(), failure);
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) problem(directory);
  struct stat status;
  if (stat(directory.c_str(), &status) != 0) problem(directory);
  if (!S_ISDIR(status.st_mode)) throw CacheProblem(directory + ": is not a directory");
  if (status.st_uid != geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH))) {
    throw CacheProblem(directory + ": belongs to, or can be written by, somebody else");
  }
}

/// Exclusive until destruction, or until the process ends however it ends.
UniqueFd lock(const std::string &path, const std::function<void()> &before_waiting) {
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) problem(path);
  if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  if (errno != EWOULDBLOCK) problem(path);
  before_waiting();
  while (flock(file.get(), LOCK_EX) != 0) {
    if (errno != EINTR) problem(path);
  }
  return file;
}

void write_all(int file, std::string_view bytes, const std::string &path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) problem(path);
    bytes.remove_prefix(written);
  }
}

std::string read_all(int file, size_t bytes) {
  std::string content(bytes, '\0');
  size_t filled = 0;
  while (filled < bytes) {
    const ssize_t got = ::read(file, content.data() + filled, bytes - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return {};
    filled += got;
  }
  return content;
}

}  // namespace

std::string default_cache_directory() {
  const std::string chosen = environment("STABLEMD_CACHE");
  if (chosen == "off") return "";
  if (!chosen.empty()) return chosen;
  const std::string caches = environment("XDG_CACHE_HOME");
  if (!caches.empty()) return caches + "/stablemd";
  const std::string home = environment("HOME");
  return home.empty() ? "" : home + "/.cache/stablemd";
}

uint64_t cache_limit() {
  constexpr uint64_t kDefault = 4'000'000'000;
  const std::string chosen = environment("STABLEMD_CACHE_LIMIT");
  if (chosen.empty()) return kDefault;
  if (chosen == "off") return 0;
  uint64_t number = 0;
  const char *end = chosen.data() + chosen.size();
  const auto read = std::from_chars(chosen.data(), end, number);
  const std::string unit(read.ptr, end);
  for (const auto &[name, factor] : {std::pair<const char *, uint64_t>{"", 1},
                                     {"kB", 1000},
                                     {"MB", 1'000'000},
                                     {"GB", 1'000'000'000},
                                     {"TB", 1'000'000'000'000}}) {
    uint64_t bytes;
    if (read.ec == std::errc() && number > 0 && unit == name && !__builtin_mul_overflow(number, factor, &bytes))
      return bytes;
  }
  fail(SMD_ERROR_ARGUMENT, "STABLEMD_CACHE_LIMIT is `", chosen.substr(0, 60),
       "`: give a size such as 500MB or 4GB, or `off` for no limit");
}

void ExecutableCache::warn_once(const std::string &why) const {
  if (!warned_.exchange(true)) log_.warning("executable cache not used, programs are compiled anew each time: " + why);
}

std::optional<std::string> ExecutableCache::read(const std::string &path, const std::string &key) const {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat status;
  if (!file || fstat(file.get(), &status) != 0 || status.st_uid != geteuid()) return std::nullopt;
  const std::string content = read_all(file.get(), status.st_size);
  EntryHeader header;
  if (content.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, content.data(), sizeof header);
  const std::string_view payload = std::string_view(content).substr(sizeof header);
  const bool intact = std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 && header.key_bytes == key.size() &&
                      key.size() <= payload.size() && header.blob_bytes == payload.size() - key.size() &&
                      header.checksum == hash_bytes(payload) && payload.substr(0, key.size()) == key;
  if (!intact) return std::nullopt;
  futimens(file.get(), nullptr);  // the time of its last use, by which keep_limit() chooses
  return std::string(payload.substr(key.size()));
}

/// Call with the entry's lock held: the temporary name is the same for all.
void ExecutableCache::write(const std::string &path, const std::string &key, std::string_view blob) const {
  std::string payload = key;
  payload += blob;
  EntryHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.key_bytes = key.size();
  header.blob_bytes = blob.size();
  header.checksum = hash_bytes(payload);
  const std::string temporary = path + ".tmp";
  try {
    const UniqueFd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) problem(temporary);
    write_all(file.get(), {reinterpret_cast<const char *>(&header), sizeof header}, temporary);
    write_all(file.get(), payload, temporary);
    if (rename(temporary.c_str(), path.c_str()) != 0) problem(path);
  } catch (const CacheProblem &) {
    unlink(temporary.c_str());
    throw;
  }
}

/// One process at a time; others may read, write and lock entries meanwhile. An entry that goes while somebody reads it
/// stays whole for that reader.
void ExecutableCache::keep_limit(const std::string &newest) const {
  if (limit_ == 0) return;
  const UniqueFd held = lock(directory_ + "/limit.lock", [] {});
  struct Entry {
    timespec used;
    uint64_t bytes;
    std::string path;
    bool operator<(const Entry &other) const {
      return std::tie(used.tv_sec, used.tv_nsec) < std::tie(other.used.tv_sec, other.used.tv_nsec);
    }
  };
  std::vector<Entry> others;
  uint64_t total = 0;
  std::error_code failure;
  for (fs::directory_iterator at(directory_, failure), end; !failure && at != end; at.increment(failure)) {
    struct stat status;
    if (at->path().extension() != kEntry || lstat(at->path().c_str(), &status) != 0) continue;
    total += status.st_size;
    if (at->path() != newest)
      others.push_back({status.st_mtim, static_cast<uint64_t>(status.st_size), at->path().string()});
  }
  std::sort(others.begin(), others.end());
  for (auto oldest = others.begin(); total > limit_ && oldest != others.end(); ++oldest) {
    if (unlink(oldest->path.c_str()) == 0 || errno == ENOENT) total -= oldest->bytes;
  }
}

ExecutableCache::Outcome ExecutableCache::obtain(const std::string &key,
                                                 const std::function<bool(std::string_view)> &load,
                                                 const std::function<std::string()> &make) const {
  if (!enabled()) {
    make();
    return Outcome::made;
  }
  const std::string name = hash_bytes(key).hex();
  const std::string path = directory_ + "/" + name + kEntry;
  UniqueFd held;
  try {
    require_private_directory(directory_);
    const auto use_stored = [&] {
      const std::optional<std::string> blob = read(path, key);
      return blob && load(*blob);
    };
    if (use_stored()) return Outcome::loaded;
    held = lock(directory_ + "/" + name.substr(0, 2) + ".lock",
                [&] { log_.info("waiting for another process that compiles this program"); });
    if (use_stored()) return Outcome::loaded;
  } catch (const CacheProblem &error) {
    warn_once(error.what());
  }
  const std::string blob = make();
  Outcome outcome = Outcome::made;
  try {
    if (held && !blob.empty()) {
      write(path, key, blob);
      outcome = Outcome::made_and_kept;
      keep_limit(path);
    }
  } catch (const CacheProblem &error) {
    warn_once(error.what());
  }
  return outcome;
}

}  // namespace stablemd
