// SPDX-License-Identifier: BSD-3-Clause
// The executable cache: what is kept, for whom, and what happens to files that are damaged, foreign or unreachable.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "bundle_bytes.h"
#include "c_api.h"
#include "cache.h"
#include "check.h"
#include "hash.h"
#include "random_graph.h"

namespace {

namespace fs = std::filesystem;
using stablemd::ExecutableCache;
using stablemd::Log;

/// A folder that is empty at first and gone at last.
struct TemporaryFolder {
  explicit TemporaryFolder(const std::string &name) : path(fs::absolute("test_cache_" + name)) { fs::remove_all(path); }
  ~TemporaryFolder() { fs::remove_all(path); }
  std::string string() const { return path.string(); }

  std::vector<fs::path> files(const std::string &extension) const {
    std::vector<fs::path> found;
    for (const auto &entry : fs::directory_iterator(path)) {
      if (entry.path().extension() == extension) found.push_back(entry.path());
    }
    return found;
  }

  const fs::path path;
};

using Outcome = ExecutableCache::Outcome;

struct Asked {
  bool stored, kept;
  std::string loaded;
  int made = 0;
};

Asked ask(const ExecutableCache &cache, const std::string &key, const std::string &blob) {
  Asked asked{};
  const Outcome outcome = cache.obtain(
      key, [&](std::string_view bytes) { return asked.loaded = bytes, true; }, [&] { return ++asked.made, blob; });
  asked.stored = outcome == Outcome::loaded;
  asked.kept = outcome == Outcome::made_and_kept;
  CHECK_EQUAL(asked.stored, asked.made == 0);
  return asked;
}

mode_t mode_of(const fs::path &path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
}

const std::string kBlob = std::string("machine\0code", 12) + std::string(5000, 'x');

}  // namespace

TEST(what_is_made_is_found_again) {
  const TemporaryFolder folder("found");
  const ExecutableCache cache(folder.string() + "/a/b", Log());
  CHECK(ask(cache, "key", kBlob).kept);
  const Asked again = ask(cache, "key", "");
  CHECK(again.stored);
  CHECK(again.loaded == kBlob);
  CHECK(!ask(cache, "other key", kBlob).stored);
  CHECK(ask(ExecutableCache(folder.string() + "/a/b", Log()), "key", "").stored);
}

TEST(files_are_private) {
  const TemporaryFolder folder("private");
  const mode_t before = umask(0);
  ask(ExecutableCache(folder.string(), Log()), "key", kBlob);
  umask(before);
  CHECK_EQUAL(mode_of(folder.path), mode_t{0700});
  for (const auto &entry : fs::directory_iterator(folder.path)) CHECK_EQUAL(mode_of(entry.path()), mode_t{0600});
  CHECK_EQUAL(folder.files(".exe").size(), size_t{1});
  CHECK_EQUAL(folder.files(".tmp").size(), size_t{0});
}

TEST(damaged_entries_are_replaced) {
  const TemporaryFolder folder("damaged");
  const ExecutableCache cache(folder.string(), Log());
  ask(cache, "key", kBlob);
  const fs::path entry = folder.files(".exe").at(0);
  const std::vector<char> whole = test::read_file(entry);
  std::vector<std::vector<char>> damaged = {{}, std::vector<char>(whole.size(), 'x'), whole, whole, whole};
  damaged[2].pop_back();
  damaged[3].push_back('x');
  damaged[4][damaged[4].size() - 100] ^= 1;
  for (size_t length : {1, 7, 8, 23, 39, 40, 41, 50}) damaged.emplace_back(whole.begin(), whole.begin() + length);
  for (size_t byte = 0; byte < 60; ++byte) {
    damaged.push_back(whole);
    damaged.back()[byte] ^= 0x10;
  }
  for (const std::vector<char> &bytes : damaged) {
    test::write_file(entry, bytes);
    CHECK_EQUAL(ask(cache, "key", kBlob).made, 1);
    CHECK(test::read_file(entry) == whole);
    CHECK(ask(cache, "key", "").stored);
  }
}

TEST(an_entry_of_another_key_is_not_used) {
  const TemporaryFolder folder("foreign");
  const ExecutableCache cache(folder.string(), Log());
  ask(cache, "first key", "first");
  const fs::path first = folder.files(".exe").at(0);
  ask(cache, "other key", "other");
  for (const fs::path &entry : folder.files(".exe")) {
    if (entry != first) fs::copy_file(first, entry, fs::copy_options::overwrite_existing);
  }
  CHECK_EQUAL(ask(cache, "other key", "other").made, 1);
  CHECK_EQUAL(ask(cache, "other key", "").loaded, "other");
}

TEST(an_entry_that_cannot_be_loaded_is_replaced) {
  const TemporaryFolder folder("unloadable");
  const ExecutableCache cache(folder.string(), Log());
  ask(cache, "key", "old");
  int made = 0;
  const Outcome outcome =
      cache.obtain("key", [](std::string_view) { return false; }, [&] { return ++made, std::string("new"); });
  CHECK(outcome == Outcome::made_and_kept);
  CHECK_EQUAL(made, 1);
  CHECK_EQUAL(ask(cache, "key", "").loaded, "new");
}

TEST(no_directory_no_cache) {
  const ExecutableCache cache("", Log());
  CHECK(!cache.enabled());
  for (int i = 0; i < 2; ++i) CHECK_EQUAL(ask(cache, "key", kBlob).made, 1);
  CHECK(!ask(cache, "key", kBlob).kept);
}

TEST(a_directory_that_cannot_be_used) {
  const TemporaryFolder folder("unusable");
  fs::create_directories(folder.path);
  const std::string file = folder.string() + "/file";
  test::write_file(file, {'x'});
  const std::string open = folder.string() + "/open";
  fs::create_directories(open);
  fs::permissions(open, fs::perms::all);
  for (const std::string &directory : {file, file + "/below", std::string("/proc/none"), open}) {
    std::vector<test::LogLine> lines;
    const ExecutableCache cache(directory, Log(test::keep_line, &lines));
    for (int i = 0; i < 3; ++i) {
      const Asked asked = ask(cache, "key", kBlob);
      CHECK_EQUAL(asked.made, 1);
      CHECK(!asked.kept);
    }
    CHECK_EQUAL(lines.size(), size_t{1});
    CHECK_EQUAL(lines.at(0).level, SMD_LOG_WARNING);
    CHECK_CONTAINS(lines.at(0).line, directory);
  }
}

TEST(a_disk_that_is_full) {
  const TemporaryFolder folder("full");
  std::vector<test::LogLine> lines;
  const ExecutableCache cache(folder.string(), Log(test::keep_line, &lines));
  rlimit before;
  CHECK_EQUAL(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1000;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // else the process ends
  CHECK_EQUAL(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Asked asked = ask(cache, "key", kBlob);
  CHECK_EQUAL(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  CHECK(!asked.kept);
  CHECK_EQUAL(lines.size(), size_t{1});
  CHECK(folder.files(".exe").empty() && folder.files(".tmp").empty());
  CHECK(ask(cache, "key", kBlob).kept);
}

TEST(a_link_in_place_of_an_entry_is_not_followed) {
  const TemporaryFolder folder("link");
  const ExecutableCache cache(folder.string(), Log());
  ask(cache, "key", kBlob);
  const fs::path entry = folder.files(".exe").at(0);
  const fs::path elsewhere = folder.path / "elsewhere";
  fs::rename(entry, elsewhere);
  fs::create_symlink(elsewhere, entry);
  CHECK_EQUAL(ask(cache, "key", "new").made, 1);
  CHECK(!fs::is_symlink(entry));
}

TEST(many_processes_make_one) {
  const TemporaryFolder folder("processes");
  const std::string made = folder.string() + "_made";
  fs::remove(made);
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const ExecutableCache cache(folder.string(), Log());
      std::string loaded = "nothing";
      cache.obtain(
          "key", [&](std::string_view blob) { return loaded = blob, true; },
          [&] {
            const int file = open(made.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
            if (write(file, "x", 1) != 1) _exit(2);
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            return loaded = kBlob;
          });
      _exit(loaded == kBlob ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
  }
  CHECK_EQUAL(fs::file_size(made), uintmax_t{1});
  fs::remove(made);
}

TEST(a_process_that_dies_with_the_lock_holds_up_nobody) {
  const TemporaryFolder folder("dead");
  std::vector<test::LogLine> lines;
  const pid_t child = fork();
  if (child == 0) {
    ExecutableCache(folder.string(), Log())
        .obtain(
            "key", [](std::string_view) { return true; },
            []() -> std::string {
              pause();
              return "";
            });
    _exit(0);
  }
  while (!fs::exists(folder.path) || folder.files(".lock").empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::thread killer([child] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  });
  const ExecutableCache cache(folder.string(), Log(test::keep_line, &lines));
  CHECK_EQUAL(ask(cache, "key", kBlob).made, 1);
  killer.join();
  CHECK_EQUAL(lines.size(), size_t{1});
  CHECK_CONTAINS(lines.at(0).line, "waiting for another process");
  CHECK(ask(cache, "key", "").stored);
}

TEST(entries_not_used_for_longest_go) {
  const TemporaryFolder folder("limit");
  const ExecutableCache unlimited(folder.string(), Log());
  for (const char *key : {"a", "b", "c", "d"}) {
    ask(unlimited, key, kBlob);
    // each an hour younger than the one before, all in the past
    for (const fs::path &entry : folder.files(".exe"))
      fs::last_write_time(entry, fs::last_write_time(entry) - std::chrono::hours(1));
  }
  CHECK_EQUAL(folder.files(".exe").size(), size_t{4});
  const uint64_t size = fs::file_size(folder.files(".exe").at(0));
  const ExecutableCache limited(folder.string(), Log(), 3 * size);
  CHECK(ask(limited, "a", "").stored);  // used again: now b is the oldest
  ask(limited, "e", kBlob);
  CHECK_EQUAL(folder.files(".exe").size(), size_t{3});
  for (const char *key : {"a", "d", "e"}) CHECK(ask(limited, key, "").stored);
  ask(ExecutableCache(folder.string(), Log(), 10), "f", kBlob);  // larger than the limit itself
  CHECK_EQUAL(folder.files(".exe").size(), size_t{1});
  CHECK(ask(limited, "f", "").stored);
}

TEST(other_files_do_not_go) {
  const TemporaryFolder folder("limit_others");
  const ExecutableCache cache(folder.string(), Log(), 1);
  ask(cache, "a", kBlob);
  const std::string mine = folder.string() + "/mine.txt";
  test::write_file(mine, std::vector<char>(10000, 'x'));
  ask(cache, "b", kBlob);
  CHECK(fs::exists(mine));
  CHECK(ask(cache, "b", "").stored);
}

// Each process asks for its own and for common keys, in an order of its own, while all of them make entries go.
TEST(many_processes_keep_the_limit) {
  const TemporaryFolder folder("limit_race");
  const auto blob_of = [](int key) { return std::to_string(key) + std::string(5000, 'x'); };
  constexpr uint64_t kLimit = 40'000;
  std::vector<pid_t> children;
  for (unsigned number = 0; number < 5; ++number) {
    const pid_t child = fork();
    if (child == 0) {
      std::vector<test::LogLine> lines;
      const ExecutableCache cache(folder.string(), Log(test::keep_line, &lines), kLimit);
      std::mt19937 random(number);
      bool right = true;
      for (int i = 0; i < 150; ++i) {
        const int key = static_cast<int>(random() % 25);
        std::string got;
        cache.obtain(
            std::to_string(key), [&](std::string_view blob) { return got = blob, true; },
            [&] { return got = blob_of(key); });
        right = right && got == blob_of(key);
      }
      const bool warned = std::any_of(lines.begin(), lines.end(),
                                      [](const test::LogLine &line) { return line.level == SMD_LOG_WARNING; });
      _exit(right && !warned ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
  }
  uint64_t total = 0;
  for (const fs::path &entry : folder.files(".exe")) total += fs::file_size(entry);
  CHECK(total <= kLimit);
  CHECK(total > kLimit / 2);
  CHECK_EQUAL(folder.files(".tmp").size(), size_t{0});
}

TEST(limits) {
  const auto with = [](const char *text) {
    setenv("STABLEMD_CACHE_LIMIT", text, 1);
    uint64_t bytes = 1;
    const smd_status status = smd_cache_limit(&bytes);
    unsetenv("STABLEMD_CACHE_LIMIT");
    return status == SMD_OK ? std::to_string(bytes) : std::string(smd_last_error());
  };
  CHECK_EQUAL(with(""), "4000000000");
  CHECK_EQUAL(with("off"), "0");
  CHECK_EQUAL(with("12345"), "12345");
  CHECK_EQUAL(with("20kB"), "20000");
  CHECK_EQUAL(with("500MB"), "500000000");
  CHECK_EQUAL(with("2TB"), "2000000000000");
  for (const char *text : {"0", "-1", "1.5GB", "GB", "5 GB", "5gb", "5GiB", "99999999999TB", "99999999999999999999"}) {
    CHECK_CONTAINS(with(text), "STABLEMD_CACHE_LIMIT is `");
    CHECK_CONTAINS(with(text), "such as 500MB or 4GB, or `off`");
  }
  CHECK_EQUAL(smd_cache_limit(nullptr), SMD_ERROR_ARGUMENT);
}

TEST(default_directory) {
  const auto with = [](const char *chosen, const char *caches, const char *home) {
    setenv("STABLEMD_CACHE", chosen, 1);
    setenv("XDG_CACHE_HOME", caches, 1);
    setenv("HOME", home, 1);
    return std::string(smd_cache_directory());
  };
  const std::string home = test::environment("HOME");
  CHECK_EQUAL(with("/chosen", "/caches", "/home/a"), "/chosen");
  CHECK_EQUAL(with("", "/caches", "/home/a"), "/caches/stablemd");
  CHECK_EQUAL(with("", "", "/home/a"), "/home/a/.cache/stablemd");
  CHECK_EQUAL(with("off", "/caches", "/home/a"), "");
  CHECK_EQUAL(with("", "", ""), "");
  setenv("HOME", home.c_str(), 1);
  unsetenv("STABLEMD_CACHE");
  unsetenv("XDG_CACHE_HOME");
}

TEST(hashes_differ) {
  std::vector<std::string> seen;
  std::string bytes(300, '\0');
  for (size_t length = 0; length < bytes.size(); ++length)
    seen.push_back(stablemd::hash_bytes({bytes.data(), length}).hex());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    seen.push_back(stablemd::hash_bytes(bytes).hex());
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
  }
  std::sort(seen.begin(), seen.end());
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
  std::string a(128, 'a'), b = a;  // blocks that change places
  for (size_t i = 0; i < 16; ++i) a[i] = b[64 + i] = 'z';
  CHECK(!(stablemd::hash_bytes(a) == stablemd::hash_bytes(b)));
}

// ---- with a plugin -------------------------------------------------------------------------------------------------

namespace {

/// Whether the program came from the cache.
bool evaluates_from_cache(const test::Runtime &runtime) {
  std::mt19937_64 random(3);
  const auto graph = test::random_graph(random, {20, 13, 9}, {90, 40});
  test::Model model(runtime, test::bundle_path("layers2_float64"));
  CHECK(test::evaluate<double>(model, graph) < 1e-13);
  CHECK_EQUAL(model.stats().compilations + model.stats().cache_hits, 1);
  return model.stats().cache_hits == 1;
}

}  // namespace

TEST(executables_of_a_plugin) {
  const TemporaryFolder folder("plugin");
  for (const bool stored : {false, true, true}) {
    const test::Runtime runtime(folder.string());
    CHECK_EQUAL(evaluates_from_cache(runtime), stored);
    CHECK_EQUAL(runtime.log.size(), size_t{stored ? 0u : 2u});
    if (stored) continue;
    CHECK_CONTAINS(runtime.log.at(0).line, "compiling the program for N=");
    CHECK_CONTAINS(runtime.log.at(1).line, " s, kept in the cache");
  }
  {
    const test::Runtime more_threads(folder.string(), 2);
    CHECK(!evaluates_from_cache(more_threads));
  }
  const fs::path entry = folder.files(".exe").at(0);
  std::vector<char> bytes = test::read_file(entry);
  for (const fs::path &path : folder.files(".exe"))
    test::write_file(path, std::vector<char>(bytes.begin(), bytes.begin() + 2000));
  const test::Runtime runtime(folder.string());
  CHECK(!evaluates_from_cache(runtime));
  CHECK_EQUAL(runtime.warnings(), 0);
}

TEST(a_blob_that_the_plugin_refuses_is_replaced) {
  const TemporaryFolder folder("refused");
  {
    evaluates_from_cache(test::Runtime(folder.string()));
  }
  const fs::path entry = folder.files(".exe").at(0);
  std::vector<char> bytes = test::read_file(entry);
  // A valid entry whose blob is not an executable: the header holds the lengths of key and blob, and a checksum.
  uint64_t key_bytes;
  std::memcpy(&key_bytes, bytes.data() + 8, sizeof key_bytes);
  const std::string key(bytes.data() + 40, key_bytes);
  fs::remove(entry);
  ask(ExecutableCache(folder.string(), Log()), key, "no executable");
  CHECK(fs::exists(entry));
  const test::Runtime runtime(folder.string());
  CHECK(!evaluates_from_cache(runtime));
  CHECK_EQUAL(runtime.warnings(), 0);
  CHECK_CONTAINS(runtime.log.at(0).line, "stored executable is replaced");
  CHECK(evaluates_from_cache(test::Runtime(folder.string())));
}

TEST(a_plugin_without_a_usable_directory) {
  const test::Runtime runtime("/proc/none");
  CHECK(!evaluates_from_cache(runtime));
  CHECK_EQUAL(runtime.warnings(), 1);
}

TEST(nothing_is_said_to_be_kept_that_is_not) {
  for (const char *folder : {"", "/proc/none"}) {
    const test::Runtime runtime(folder);
    CHECK(!evaluates_from_cache(runtime));
    CHECK_CONTAINS(runtime.log.back().line, " s, not kept in a cache");
    for (const test::LogLine &line : runtime.log) CHECK(line.line.find("cached afterwards") == std::string::npos);
  }
}

CHECK_MAIN
