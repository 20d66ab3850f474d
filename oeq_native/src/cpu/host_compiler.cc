// SPDX-License-Identifier: BSD-3-Clause
#include "host_compiler.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <thread>

extern char **environ;

namespace oeq::cpu {
namespace {

namespace fs = std::filesystem;

/// Contraction to fused multiply-add is wanted; nothing else that changes results is.
const char *const kOptions[] = {"-x",    "c++",     "-std=gnu++17",        "-O3", "-march=native", "-ffp-contract=fast",
                                "-fPIC", "-shared", "-fvisibility=hidden", "-w"};

const std::string kFolderPrefix = "stablemd-compile-";

/// An open folder of this user's, closed at the end. Its lock tells others that somebody works in it, until the process
/// that holds it ends, however it ends.
class OpenFolder {
 public:
  explicit OpenFolder(const fs::path &path)
      : file_(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {}
  ~OpenFolder() {
    if (file_ >= 0) close(file_);
  }
  OpenFolder(const OpenFolder &) = delete;
  OpenFolder &operator=(const OpenFolder &) = delete;

  bool is_ours() const {
    struct stat status;
    return file_ >= 0 && fstat(file_, &status) == 0 && status.st_uid == geteuid();
  }

  /// False where somebody else has locked it, or the file system knows no locks.
  bool try_lock() const { return file_ >= 0 && flock(file_, LOCK_EX | LOCK_NB) == 0; }

  void lock() const {
    while (file_ >= 0 && flock(file_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }

 private:
  int file_;
};

/// A folder of this process's own, gone with everything in it at the end.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const fs::path &base) {
    std::error_code failure;
    do {  // again where another process swept the folder away in the moment before it was locked
      std::string pattern = (base / (kFolderPrefix + "XXXXXX")).string();
      if (!mkdtemp(pattern.data()))
        throw KernelError("cannot make a temporary folder " + pattern + ": " + std::strerror(errno));
      path_ = pattern;
      open_ = std::make_unique<OpenFolder>(path_);
      open_->lock();
    } while (!fs::exists(path_, failure) && !failure);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder &) = delete;
  TemporaryFolder &operator=(const TemporaryFolder &) = delete;

  fs::path operator/(const char *name) const { return path_ / name; }

 private:
  fs::path path_;
  std::unique_ptr<OpenFolder> open_;
};

/// Removes what processes left that were killed while they compiled.
void sweep(const fs::path &base) {
  std::error_code failure;
  for (fs::directory_iterator at(base, failure), end; !failure && at != end; at.increment(failure)) {
    if (at->path().filename().string().rfind(kFolderPrefix, 0) != 0) continue;
    const OpenFolder left(at->path());
    std::error_code ignored;
    if (left.is_ours() && left.try_lock()) fs::remove_all(at->path(), ignored);
  }
}

std::string read_file(const fs::path &path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

using Clock = std::chrono::steady_clock;

std::vector<char *> pointers_to(const std::vector<std::string> &strings) {
  std::vector<char *> pointers;
  for (const std::string &text : strings) pointers.push_back(const_cast<char *>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// Starts a command in a process group of its own with stdout and stderr in `log`; -1 if it cannot be started.
pid_t start(const std::vector<std::string> &command, const std::vector<std::string> &environment, const fs::path &log) {
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t child = 0;
  const int failed = posix_spawn(&child, command[0].c_str(), &actions, &attributes, pointers_to(command).data(),
                                 pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return failed ? -1 : child;
}

/// Ends a command and all that it started: a compiler's driver leaves the work to children.
void end_group(pid_t leader) {
  kill(-leader, SIGKILL);
  int status = 0;
  while (waitpid(leader, &status, 0) < 0 && errno == EINTR) {
  }
}

/// Runs a command with stdout and stderr in `log`; true if it ended with status 0.
bool run(const std::vector<std::string> &command, const std::vector<std::string> &environment, const fs::path &log,
         const StopFlag &stop, std::chrono::milliseconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  const pid_t child = start(command, environment, log);
  if (child < 0) return false;
  int status = 0;
  for (pid_t ended = 0; ended == 0;) {
    ended = waitpid(child, &status, WNOHANG);
    if (ended < 0 && errno == EINTR) ended = 0;
    if (ended < 0) return true;  // the host process reaps children itself: judge by what was written
    if (ended != 0) break;
    const bool late = Clock::now() > deadline;
    if (late || stop.load()) {
      end_group(child);
      throw KernelError(late ? command[0] + " did not end within " + std::to_string(limit.count() / 1000) + " s"
                             : "compilation was stopped because the process ends");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool write_all(int file, const std::string &bytes) {
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t count = write(file, bytes.data() + written, bytes.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    written += static_cast<size_t>(count);
  }
  return true;
}

std::vector<std::string> split(const std::string &text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), std::istream_iterator<std::string>()};
}

fs::path temporary_directory() {
  std::error_code error;
  const fs::path chosen = fs::temp_directory_path(error);
  return error ? fs::path("/tmp") : chosen;
}

std::vector<std::string> copy_of_environment() {
  std::vector<std::string> copy;
  for (char **entry = environ; entry && *entry; ++entry) copy.emplace_back(*entry);
  return copy;
}

/// The file that a shell would run for a command's name; the name itself if there is none.
std::string executable(const std::string &name) {
  if (name.find('/') != std::string::npos) return name;
  const char *path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
    if (access(file.c_str(), X_OK) == 0 && !fs::is_directory(file)) return file;
  }
  return name;
}

}  // namespace

HostCompiler::HostCompiler() : temporary_(temporary_directory()), environment_(copy_of_environment()) {
  const char *chosen = std::getenv("CXX");
  command_ = split(chosen && *chosen ? chosen : "c++");
  if (command_.empty()) command_ = {"c++"};
  command_[0] = executable(command_[0]);
  sweep(temporary_);
  std::vector<std::string> version = command_;
  version.emplace_back("--version");
  std::string answer;
  try {
    const TemporaryFolder folder(temporary_);
    failure_ = "the C++ compiler " + name() + " cannot be run (set CXX)";  // or hangs: as good as none
    if (!run(version, environment_, folder / "log", StopFlag(false), std::chrono::seconds(20))) return;
    answer = read_file(folder / "log");
  } catch (const KernelError &error) {
    if (failure_.empty()) failure_ = error.what();
    return;
  }
  for (const std::string &part : command_) identity_ += part + ' ';
  identity_ += '(' + answer.substr(0, answer.find('\n')) + ')';
  for (const char *option : kOptions) identity_ += std::string(" ") + option;
}

std::string HostCompiler::compile(const std::string &source, const StopFlag &stop,
                                  std::chrono::milliseconds limit) const {
  const TemporaryFolder folder(temporary_);
  const fs::path input = folder / "kernel.cc", output = folder / "kernel.so", log = folder / "log";
  std::ofstream(input, std::ios::binary) << source;
  std::vector<std::string> command = command_;
  command.insert(command.end(), std::begin(kOptions), std::end(kOptions));
  command.insert(command.end(), {"-o", output.string(), input.string()});
  const bool succeeded = run(command, environment_, log, stop, limit);
  std::string bytes = read_file(output);
  if (!succeeded || bytes.empty()) throw KernelError("the host compiler " + command_[0] + " failed\n" + read_file(log));
  return bytes;
}

SharedLibrary::SharedLibrary(const std::string &bytes) {
  if (bytes.compare(0, 4, "\177ELF") != 0) throw KernelError("a cached kernel is not a shared library");
  // In memory, since folders for temporary files are often mounted so that nothing in them may be executed.
  file_ = memfd_create("stablemd-kernel", MFD_CLOEXEC);
  if (file_ < 0) throw KernelError(std::string("memfd_create failed: ") + std::strerror(errno));
  // The file stays open as long as the library: dlopen takes a path that it has seen for the library it had then.
  if (write_all(file_, bytes))
    handle_ = dlopen(("/proc/self/fd/" + std::to_string(file_)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_) return;
  const char *reason = dlerror();
  const std::string text = std::string("cannot load a compiled kernel: ") + (reason ? reason : "out of memory");
  close(file_);
  throw KernelError(text);
}

SharedLibrary::~SharedLibrary() {
  dlclose(handle_);
  close(file_);
}

void *SharedLibrary::symbol(const char *name) const {
  void *address = dlsym(handle_, name);
  if (!address) throw KernelError(std::string("a compiled kernel has no symbol ") + name);
  return address;
}

}  // namespace oeq::cpu
