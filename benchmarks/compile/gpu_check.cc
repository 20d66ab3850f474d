// SPDX-License-Identifier: BSD-3-Clause
//
// Every CUDA op of some payloads against the CPU kernel made from the same payload's problem, and the time of one
// dispatch. Needs a GPU with its driver, and NVRTC; see gpu_check.py. Payload files are named tp_*.json or conv_*.json.
// Usage: gpu_check <payload>...; exits with 1 where an op differs.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <vector>

#include "cuda/driver.h"
#include "kernel_store.h"

namespace {

using namespace oeq;

constexpr int64_t kNodes = 200, kProducts = 3000;
constexpr int kDispatches = 2000;
// Of the largest number of an array. CUDA kernels use fast math and, unless deterministic, atomics in any order.
constexpr double kFloatTolerance = 1e-5, kDoubleTolerance = 1e-12;

/// The memory functions of the driver, which the library itself does not need.
class DeviceMemory {
 public:
  DeviceMemory() : library_({"libcuda.so.1"}, "a GPU is needed") {
    library_.resolve(allocate_, "cuMemAlloc_v2");
    library_.resolve(upload_, "cuMemcpyHtoD_v2");
    library_.resolve(download_, "cuMemcpyDtoH_v2");
    library_.resolve(synchronize_, "cuCtxSynchronize");
  }
  void *upload(const void *data, size_t bytes) const {
    uint64_t memory = 0;
    check(allocate_(&memory, std::max<size_t>(bytes, 1)));
    if (bytes > 0) check(upload_(memory, data, bytes));
    return reinterpret_cast<void *>(memory);
  }
  void download(void *to, const void *from, size_t bytes) const {
    if (bytes > 0) check(download_(to, reinterpret_cast<uint64_t>(from), bytes));
  }
  void synchronize() const { check(synchronize_()); }

 private:
  static void check(int result) {
    if (result != 0) throw KernelError("a CUDA memory function failed with code " + std::to_string(result));
  }
  cuda::Library library_;
  int (*allocate_)(uint64_t *, size_t);
  int (*upload_)(uint64_t, const void *, size_t);
  int (*download_)(void *, uint64_t, size_t);
  int (*synchronize_)();
};

/// Runs everything on the calling thread.
class OneThread final : public Executor {
 public:
  int64_t threads() const override { return 1; }
  void run(int64_t count, void (*work)(void *, int64_t), void *context) override {
    for (int64_t item = 0; item < count; ++item) work(context, item);
  }
};

/// One array on both sides; results are compared.
struct Array {
  const char *name;
  std::vector<char> host;
  void *device;
  bool is_result;
};

class Problem {
 public:
  Problem(const Payload &payload, Order order, const DeviceMemory &memory, std::mt19937_64 &random)
      : p_(payload.properties), memory_(memory), random_(random) {
    const bool convolution = payload.family == Family::kConvolution;
    const int64_t rows = convolution ? kNodes : kProducts;
    host.products = device.products = kProducts;
    host.nodes = device.nodes = convolution ? kNodes : 0;
    const int64_t weights = (p_.shared_weights ? 1 : kProducts) * p_.weight_numel;
    input("L1", host.L1, device.L1, rows * p_.l1_dim);
    input("L2", host.L2, device.L2, kProducts * p_.l2_dim);
    input("W", host.W, device.W, weights);
    if (order == Order::kForward) {
      result("L3", host.L3, device.L3, rows * p_.l3_dim);
    } else {
      input("L3_grad", host.L3_grad, device.L3_grad, rows * p_.l3_dim);
      result("L1_grad", host.L1_grad, device.L1_grad, rows * p_.l1_dim);
      result("L2_grad", host.L2_grad, device.L2_grad, kProducts * p_.l2_dim);
      result("W_grad", host.W_grad, device.W_grad, weights);
    }
    if (order == Order::kDoubleBackward) {
      input("L1_dgrad", host.L1_dgrad, device.L1_dgrad, rows * p_.l1_dim);
      input("L2_dgrad", host.L2_dgrad, device.L2_dgrad, kProducts * p_.l2_dim);
      input("W_dgrad", host.W_dgrad, device.W_dgrad, weights);
      result("L3_dgrad", host.L3_dgrad, device.L3_dgrad, rows * p_.l3_dim);
    }
    if (convolution) make_graph();
  }

  /// Largest difference of any result, relative to that result's largest number.
  double error() {
    double worst = 0;
    for (Array &array : arrays_) {
      if (!array.is_result) continue;
      std::vector<char> theirs(array.host.size());
      memory_.download(theirs.data(), array.device, theirs.size());
      worst =
          std::max(worst, is_double() ? difference<double>(array.host, theirs) : difference<float>(array.host, theirs));
    }
    return worst;
  }

  bool is_double() const { return p_.irrep_dtype == DType::kFloat64; }

  OeqCall host{}, device{};

 private:
  template <typename Real>
  static double difference(const std::vector<char> &ours, const std::vector<char> &theirs) {
    const auto *a = reinterpret_cast<const Real *>(ours.data());
    const auto *b = reinterpret_cast<const Real *>(theirs.data());
    double largest = 0, worst = 0;
    for (size_t i = 0; i < ours.size() / sizeof(Real); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(a[i])));
      const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
      worst = std::isnan(d) ? INFINITY : std::max(worst, d);
    }
    return largest > 0 ? worst / largest : worst;
  }

  template <typename Real>
  std::vector<char> numbers(int64_t count, bool poison) {
    std::vector<char> bytes(static_cast<size_t>(count) * sizeof(Real));
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < count; ++i)
      reinterpret_cast<Real *>(bytes.data())[i] = static_cast<Real>(poison ? NAN : normal(random_));
    return bytes;
  }

  Array &add(const char *name, std::vector<char> bytes, bool is_result) {
    void *on_device = memory_.upload(bytes.data(), bytes.size());
    arrays_.push_back({name, std::move(bytes), on_device, is_result});
    return arrays_.back();
  }

  Array &add_real(const char *name, int64_t count, bool is_result) {
    return add(name, is_double() ? numbers<double>(count, is_result) : numbers<float>(count, is_result), is_result);
  }

  template <typename Pointer>
  void input(const char *name, Pointer &on_host, Pointer &on_device, int64_t count) {
    Array &array = add_real(name, count, false);
    on_host = array.host.data(), on_device = array.device;
  }

  void result(const char *name, void *&on_host, void *&on_device, int64_t count) {
    Array &array = add_real(name, count, true);
    on_host = array.host.data(), on_device = array.device;
  }

  void indices(const std::vector<int32_t> &values, const void *&on_host, const void *&on_device) {
    const char *bytes = reinterpret_cast<const char *>(values.data());
    Array &array = add("index", {bytes, bytes + values.size() * sizeof(int32_t)}, false);
    on_host = array.host.data(), on_device = array.device;
  }

  /// Receivers sorted, some nodes without edges.
  void make_graph() {
    std::vector<int32_t> receivers(kProducts), senders(kProducts), order(kProducts);
    std::uniform_int_distribution<int32_t> node(0, kNodes - 1);
    for (int32_t &r : receivers) r = node(random_) / 3 * 3;
    for (int32_t &s : senders) s = node(random_);
    std::sort(receivers.begin(), receivers.end());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return senders[a] < senders[b]; });
    indices(receivers, host.receivers, device.receivers);
    indices(senders, host.senders, device.senders);
    indices(order, host.sender_order, device.sender_order);
    host.sender_order_count = device.sender_order_count = kProducts;
    Array &workspace = add("workspace", std::vector<char>(static_cast<size_t>(p_.workspace_size)), false);
    host.workspace = workspace.host.data(), device.workspace = workspace.device;
    host.workspace_bytes = device.workspace_bytes = p_.workspace_size;
  }

  const KernelProperties &p_;
  const DeviceMemory &memory_;
  std::mt19937_64 &random_;
  std::deque<Array> arrays_;
};

std::string contents(const char *path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Microseconds that a call takes on the calling thread, and with the kernels' own time.
std::pair<double, double> time_dispatch(const Kernel &kernel, const OeqCall &call, const Launch &launch,
                                        const DeviceMemory &memory) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kDispatches; ++i) kernel.run(call, launch);
  const std::chrono::duration<double, std::micro> issued = std::chrono::steady_clock::now() - start;
  memory.synchronize();
  const std::chrono::duration<double, std::micro> finished = std::chrono::steady_clock::now() - start;
  return {issued.count() / kDispatches, finished.count() / kDispatches};
}

bool check_payload(KernelStore &store, const char *path, int64_t number, const DeviceMemory &memory,
                   std::mt19937_64 &random) {
  const std::string name = std::string(path).substr(std::string(path).rfind('/') + 1);
  const Family family = name.rfind("tp", 0) == 0 ? Family::kTensorProduct : Family::kConvolution;
  KernelRecord &record = store.intern(family, number, contents(path));
  bool good = true;
  for (const Order order : {Order::kForward, Order::kBackward, Order::kDoubleBackward}) {
    static constexpr const char *kNames[] = {"forward", "backward", "double backward"};
    const Kernel &cpu = store.wait(store.request(Platform::kHost, record, order, 0));
    const Kernel &gpu = store.wait(store.request(Platform::kCuda, record, order, 0));
    Problem problem(record.payload, order, memory, random);
    OneThread executor;
    Launch launch;
    launch.executor = &executor;
    launch.order = order;
    cpu.run(problem.host, launch);
    gpu.run(problem.device, launch);
    memory.synchronize();
    const double error = problem.error();
    const bool fine = error <= (problem.is_double() ? kDoubleTolerance : kFloatTolerance);
    const auto [issue, finish] = time_dispatch(gpu, problem.device, launch, memory);
    std::printf("%-28s %-16s %10.2e %-6s %10.2f %10.2f\n", name.c_str(), kNames[static_cast<int>(order)], error,
                fine ? "ok" : "WRONG", issue, finish);
    std::fflush(stdout);
    good = good && fine;
  }
  return good;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  try {
    cuda::driver().ensure_context(0);
    const DeviceMemory memory;
    KernelStore store(read_settings(), [](Platform platform) {
      return platform == Platform::kHost ? make_host_backend() : make_cuda_backend();
    });
    const unsigned seed = std::random_device{}();
    std::mt19937_64 random(seed);
    std::printf("seed %u, sm_%d\n", seed, cuda::driver().compute_capability(0));
    std::printf("%-28s %-16s %10s %-6s %10s %10s\n", "payload", "op", "rel.error", "", "us issue", "us total");
    bool good = true;
    for (int i = 1; i < argc; ++i) good = check_payload(store, argv[i], i, memory, random) && good;
    return good ? 0 : 1;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "gpu_check: %s\n", error.what());
    return 1;
  }
}
