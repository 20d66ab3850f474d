// SPDX-License-Identifier: BSD-3-Clause
#include "nvrtc.h"

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>

#include "../kernel_store.h"

namespace oeq::cuda {
namespace {

// Newest first; the driver decides in the end whether it can load what they make.
const std::vector<std::string> kNames = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};

std::vector<std::string> subfolders(const std::string &folder) {
  std::vector<std::string> found;
  const std::unique_ptr<DIR, int (*)(DIR *)> directory(::opendir(folder.c_str()), ::closedir);
  if (!directory) return found;
  while (const dirent *entry = ::readdir(directory.get())) {
    if (entry->d_name[0] != '.') found.push_back(folder + "/" + entry->d_name);
  }
  std::sort(found.rbegin(), found.rend());  // cu13 before cu12, and the same order every time
  return found;
}

/// The folders "site-packages" that hold a library of this process: this one, or a PJRT plugin.
std::set<std::string> python_package_folders() {
  std::set<std::string> folders;
  const auto add = [](dl_phdr_info *info, size_t, void *data) {
    static const std::string kFolder = "/site-packages/";
    const std::string path = info->dlpi_name;
    const size_t at = path.find(kFolder);
    if (at != std::string::npos) {
      static_cast<std::set<std::string> *>(data)->insert(path.substr(0, at + kFolder.size() - 1));
    }
    return 0;
  };
  ::dl_iterate_phdr(add, &folders);
  return folders;
}

std::vector<std::string> candidates() {
  if (const char *path = std::getenv("OEQ_NVRTC"); path != nullptr && *path != '\0') return {path};
  std::vector<std::string> paths = kNames;  // on the loader's path, or loaded already
  const auto add_folder = [&](const std::string &folder) {
    for (const std::string &name : kNames) paths.push_back(folder + "/" + name);
  };
  for (const char *variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char *home = std::getenv(variable)) add_folder(std::string(home) + "/lib64");
  }
  add_folder("/usr/local/cuda/lib64");
  for (const std::string &packages : python_package_folders()) {
    for (const std::string &package : subfolders(packages + "/nvidia")) add_folder(package + "/lib");
  }
  return paths;
}

/// NVRTC opens libnvrtc-builtins by its bare name when it first compiles, which finds nothing in a wheel's folder
/// unless it is loaded already. Failing is no error: the loader's path may hold it.
void open_builtins(const void *nvrtc_function, const std::string &version) {
  Dl_info info{};
  if (::dladdr(nvrtc_function, &info) == 0 || info.dli_fname == nullptr) return;
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return;
  ::dlopen((path.substr(0, slash + 1) + "libnvrtc-builtins.so." + version).c_str(), RTLD_NOW | RTLD_LOCAL);
}

/// Called by NVRTC now and then; 1 cancels the compilation.
int cancelled(void *stop, void *) { return static_cast<const StopFlag *>(stop)->load() ? 1 : 0; }

}  // namespace

class Nvrtc::Program {
 public:
  Program(const Nvrtc &nvrtc, const std::string &source) : nvrtc_(nvrtc) {
    nvrtc.check(nvrtc.create_program_(&handle_, source.c_str(), "kernel.cu", 0, nullptr, nullptr),
                "nvrtcCreateProgram");
  }
  ~Program() { nvrtc_.destroy_program_(&handle_); }
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;
  Handle get() const { return handle_; }

 private:
  const Nvrtc &nvrtc_;
  Handle handle_ = nullptr;
};

Nvrtc::Nvrtc()
    : library_(candidates(),
               "install CUDA's toolkit or `pip install nvidia-cuda-nvrtc`, or set OEQ_NVRTC to its path") {
  library_.resolve(get_error_string_, "nvrtcGetErrorString");
  library_.resolve(version_, "nvrtcVersion");
  library_.resolve(get_num_supported_archs_, "nvrtcGetNumSupportedArchs");
  library_.resolve(get_supported_archs_, "nvrtcGetSupportedArchs");
  library_.resolve(create_program_, "nvrtcCreateProgram");
  library_.resolve(destroy_program_, "nvrtcDestroyProgram");
  library_.resolve(add_name_expression_, "nvrtcAddNameExpression");
  library_.resolve(compile_program_, "nvrtcCompileProgram");
  library_.resolve(get_lowered_name_, "nvrtcGetLoweredName");
  library_.resolve(get_log_size_, "nvrtcGetProgramLogSize");
  library_.resolve(get_log_, "nvrtcGetProgramLog");
  library_.resolve(get_cubin_size_, "nvrtcGetCUBINSize");
  library_.resolve(get_cubin_, "nvrtcGetCUBIN");
  set_flow_callback_ = reinterpret_cast<decltype(set_flow_callback_)>(library_.find("nvrtcSetFlowCallback"));
  open_builtins(reinterpret_cast<const void *>(version_), version());
  stop_workers_at_exit();  // before NVRTC's own exit handlers
}

void Nvrtc::check(int result, const char *what) const {
  if (result != 0) throw KernelError(std::string(what) + " failed: " + get_error_string_(result));
}

std::string Nvrtc::version() const {
  int major = 0, minor = 0;
  check(version_(&major, &minor), "nvrtcVersion");
  return std::to_string(major) + "." + std::to_string(minor);
}

std::vector<int> Nvrtc::architectures() const {
  int count = 0;
  check(get_num_supported_archs_(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> architectures(static_cast<size_t>(count));
  check(get_supported_archs_(architectures.data()), "nvrtcGetSupportedArchs");
  return architectures;
}

Nvrtc::Compiled Nvrtc::compile(const std::string &source, const std::vector<std::string> &kernels,
                               const std::vector<std::string> &options, const StopFlag &stop) const {
  const Program program(*this, source);
  for (const std::string &kernel : kernels) {
    check(add_name_expression_(program.get(), kernel.c_str()), "nvrtcAddNameExpression");
  }
  if (set_flow_callback_ != nullptr) {
    check(set_flow_callback_(program.get(), cancelled, const_cast<StopFlag *>(&stop)), "nvrtcSetFlowCallback");
  }
  std::vector<const char *> texts;
  for (const std::string &option : options) texts.push_back(option.c_str());
  const int result = compile_program_(program.get(), static_cast<int>(texts.size()), texts.data());

  size_t size = 0;
  if (result != 0) {
    if (stop) throw KernelError("kernel not compiled: the process is about to end");
    check(get_log_size_(program.get(), &size), "nvrtcGetProgramLogSize");
    std::string log(size, '\0');
    check(get_log_(program.get(), log.data()), "nvrtcGetProgramLog");
    throw KernelError("NVRTC " + version() + " cannot compile the kernel: " + get_error_string_(result) + "\n" +
                      log.c_str());
  }
  Compiled compiled;
  check(get_cubin_size_(program.get(), &size), "nvrtcGetCUBINSize");
  compiled.cubin.resize(size);
  check(get_cubin_(program.get(), compiled.cubin.data()), "nvrtcGetCUBIN");
  for (const std::string &kernel : kernels) {
    const char *symbol = nullptr;
    check(get_lowered_name_(program.get(), kernel.c_str(), &symbol), "nvrtcGetLoweredName");
    compiled.symbols.push_back(symbol);
  }
  return compiled;
}

const Nvrtc &nvrtc() {
  static const Nvrtc *const instance = new Nvrtc;  // never closed
  return *instance;
}

}  // namespace oeq::cuda
