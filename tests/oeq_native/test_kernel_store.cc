// SPDX-License-Identifier: BSD-3-Clause
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "check.h"
#include "kernel_store.h"
#include "temporary_folder.h"
#include "toy_backend.h"

using namespace oeq;

namespace {

Settings settings(int threads, std::string cache = "") {
  Settings s;
  s.threads = threads;
  s.cache_directory = std::move(cache);
  return s;
}

KernelStore::BackendFactory backend_for(ToyScript &script) {
  return [&script](Platform) { return std::make_unique<ToyBackend>(script); };
}

OeqStats stats_of(const KernelStore &store) {
  OeqStats stats{};
  stats.struct_size = sizeof(stats);
  store.fill(stats);
  return stats;
}

const std::string &image_of(const Kernel &kernel) { return dynamic_cast<const ToyKernel &>(kernel).image; }

KernelSlot &requested(KernelStore &store, const std::string &tag, Order order = Order::kForward, int32_t device = 0,
                      int64_t hash = 7) {
  return store.request(Platform::kHost, store.intern(Family::kTensorProduct, hash, toy_payload(tag)), order, device);
}

/// Files of a folder, sorted.
std::vector<std::string> files(const std::string &folder) {
  std::vector<std::string> names;
  for (const auto &entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST(equal_payloads_share_a_record_and_a_colliding_hash_does_not_alias) {
  ToyScript script;
  KernelStore store(settings(2), backend_for(script));
  constexpr int64_t kHash = 42;
  KernelRecord &a = store.intern(Family::kTensorProduct, kHash, toy_payload("a"));
  KernelRecord &b = store.intern(Family::kTensorProduct, kHash, toy_payload("b"));
  KernelRecord &conv = store.intern(Family::kConvolution, kHash, toy_payload("a"));
  CHECK(&store.intern(Family::kTensorProduct, kHash, toy_payload("a")) == &a);
  CHECK(&a != &b);
  CHECK(&a != &conv);
  CHECK(stats_of(store).records == 3);
  const Kernel &kernel_a = store.wait(store.request(Platform::kHost, a, Order::kForward, 0));
  const Kernel &kernel_b = store.wait(store.request(Platform::kHost, b, Order::kForward, 0));
  CHECK_CONTAINS(image_of(kernel_a), "\"tag\": \"a\"");
  CHECK_CONTAINS(image_of(kernel_b), "\"tag\": \"b\"");
}

TEST(many_threads_asking_for_equal_kernels_compile_once) {
  ToyScript script;
  script.duration = std::chrono::milliseconds(30);
  KernelStore store(settings(4), backend_for(script));
  constexpr int kThreads = 16;
  std::vector<const Kernel *> kernels(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] { kernels[t] = &store.wait(requested(store, "same")); });
  }
  for (std::thread &thread : threads) thread.join();
  CHECK(script.compilations == 1);
  for (const Kernel *kernel : kernels) CHECK(kernel == kernels[0]);
  const OeqStats stats = stats_of(store);
  CHECK(stats.requests == kThreads);
  CHECK(stats.records == 1);
  CHECK(stats.compilations == 1);
  // In flight is over: done counts as well.
  requested(store, "same");
  CHECK(script.compilations == 1);
}

TEST(orders_and_architectures_are_kernels_of_their_own) {
  ToyScript script;
  KernelStore store(settings(2), backend_for(script));
  const Kernel &forward = store.wait(requested(store, "x"));
  const Kernel &backward = store.wait(requested(store, "x", Order::kBackward));
  const Kernel &elsewhere = store.wait(requested(store, "x", Order::kForward, 1));
  const Kernel &same_there = store.wait(requested(store, "x", Order::kForward, 2));
  CHECK(&forward != &backward);
  CHECK(&forward != &elsewhere);
  CHECK(&elsewhere == &same_there);  // equal architecture
  CHECK(script.compilations == 3);
}

TEST(a_backend_with_one_image_for_all_orders_compiles_once) {
  ToyScript script;
  script.one_image = true;
  KernelStore store(settings(2), backend_for(script));
  CHECK(&store.wait(requested(store, "x")) == &store.wait(requested(store, "x", Order::kDoubleBackward)));
  CHECK(script.compilations == 1);
}

TEST(distinct_kernels_compile_at_once) {
  ToyScript script;
  script.duration = std::chrono::milliseconds(60);
  KernelStore store(settings(4), backend_for(script));
  std::vector<KernelSlot *> slots;
  for (int i = 0; i < 8; ++i) slots.push_back(&requested(store, std::to_string(i), Order::kForward, 0, i));
  for (KernelSlot *slot : slots) store.wait(*slot);
  CHECK(script.most_running == 4);
}

TEST(every_waiter_learns_of_a_failure_and_the_next_request_tries_again) {
  ToyScript script;
  script.duration = std::chrono::milliseconds(40);
  script.failures_left = 1;
  KernelStore store(settings(2), backend_for(script));
  std::atomic<int> told{0};
  KernelSlot &slot = requested(store, "x");
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&] {
      try {
        store.wait(slot);
      } catch (const KernelError &error) {
        if (std::strstr(error.what(), "toy compiler: line 1") != nullptr) ++told;
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  CHECK(told == 6);
  CHECK(slot.ready() == nullptr);
  CHECK_THROWS("deliberate error", store.wait(slot));  // not retried by waiting
  CHECK(script.compilations == 1);
  CHECK(&requested(store, "x") == &slot);
  store.wait(slot);
  CHECK(slot.ready() != nullptr);
  CHECK(script.compilations == 2);
  CHECK(stats_of(store).failures == 1);
}

TEST(a_compilation_may_ask_for_other_kernels) {
  ToyScript script;
  KernelStore *store_pointer = nullptr;
  std::atomic<bool> nested{false};
  script.during_compilation = [&] {
    if (!nested.exchange(true)) store_pointer->wait(requested(*store_pointer, "inner"));
  };
  KernelStore store(settings(1), backend_for(script));
  store_pointer = &store;
  store.wait(requested(store, "outer"));
  CHECK(script.compilations == 2);
}

TEST(stopping_with_work_queued_tells_who_waits) {
  ToyScript script;
  script.duration = std::chrono::seconds(20);  // cut short by the flag
  KernelStore store(settings(1), backend_for(script));
  requested(store, "running");
  while (script.running == 0) std::this_thread::yield();
  KernelSlot &queued = requested(store, "queued");
  std::string message;
  std::thread waiter([&] { message = check::thrown(__FILE__, __LINE__, [&] { store.wait(queued); }); });
  store.stop();
  waiter.join();
  CHECK_CONTAINS(message, "about to end");
  CHECK_THROWS("about to end", store.wait(requested(store, "late")));
}

TEST(a_second_process_finds_images_on_disk) {
  const TemporaryFolder folder;
  ToyScript first, second;
  std::string image;
  {
    KernelStore store(settings(2, folder.path() + "/deep/er"), backend_for(first));
    image = image_of(store.wait(requested(store, "x")));
    CHECK(stats_of(store).disk_hits == 0);
  }
  KernelStore store(settings(2, folder.path() + "/deep/er"), backend_for(second));
  CHECK(image_of(store.wait(requested(store, "x"))) == image);
  CHECK(second.compilations == 0);
  CHECK(stats_of(store).disk_hits == 1);
  store.wait(requested(store, "y"));
  CHECK(second.compilations == 1);
}

TEST(another_process_finds_images_on_disk) {
  if (const char *cache = std::getenv("OEQ_TEST_CACHE")) {  // this is the other process
    ToyScript script;
    KernelStore store(settings(1, cache), backend_for(script));
    CHECK_CONTAINS(image_of(store.wait(requested(store, "x"))), "\"tag\": \"x\"");
    CHECK(script.compilations == 0);
    CHECK(stats_of(store).disk_hits == 1);
    return;
  }
  const TemporaryFolder folder;
  ToyScript script;
  KernelStore store(settings(1, folder.path()), backend_for(script));
  store.wait(requested(store, "x"));
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const check::Environment cache("OEQ_TEST_CACHE", folder.path().c_str());
  CHECK(std::system(("'" + self + "' another_process_finds_images_on_disk").c_str()) == 0);
}

TEST(another_hash_of_the_same_payload_finds_the_image_in_memory) {
  ToyScript script;
  KernelStore store(settings(1), backend_for(script));
  store.wait(requested(store, "x", Order::kForward, 0, 1));
  store.wait(requested(store, "x", Order::kForward, 0, 2));
  CHECK(script.compilations == 1);
  CHECK(stats_of(store).memory_hits == 1);
}

TEST(damaged_cache_files_are_compiled_anew_and_replaced) {
  const TemporaryFolder folder;
  const auto compile_once = [&] {
    ToyScript script;
    KernelStore store(settings(1, folder.path()), backend_for(script));
    store.wait(requested(store, "x"));
    return script.compilations.load();
  };
  CHECK(compile_once() == 1);
  CHECK(files(folder.path()).size() == 1);
  const std::string file = files(folder.path())[0];
  const auto size = std::filesystem::file_size(file);

  std::filesystem::resize_file(file, size - 1);
  CHECK(compile_once() == 1);
  CHECK(std::filesystem::file_size(file) == size);
  std::filesystem::resize_file(file, 0);
  CHECK(compile_once() == 1);
  {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(size) - 3);
    stream.put('\x01');
  }
  CHECK(compile_once() == 1);
  CHECK(compile_once() == 0);
  CHECK(files(folder.path()) == std::vector<std::string>{file});  // no temporary files left
}

TEST(files_that_others_may_write_are_not_run) {
  const TemporaryFolder folder;
  ToyScript first, second;
  {
    KernelStore store(settings(1, folder.path()), backend_for(first));
    store.wait(requested(store, "x"));
  }
  CHECK(::chmod(files(folder.path())[0].c_str(), 0666) == 0);
  KernelStore store(settings(1, folder.path()), backend_for(second));
  store.wait(requested(store, "x"));
  CHECK(second.compilations == 1);
}

TEST(an_image_that_does_not_load_is_compiled_anew) {
  const TemporaryFolder folder;
  ToyScript first, second;
  {
    KernelStore store(settings(1, folder.path()), backend_for(first));
    store.wait(requested(store, "x"));
  }
  second.unloadable_left = 1;
  KernelStore store(settings(1, folder.path()), backend_for(second));
  store.wait(requested(store, "x"));
  CHECK(second.compilations == 1);
  CHECK(second.loads == 2);
  CHECK(stats_of(store).disk_hits == 0);
}

TEST(a_cache_that_cannot_be_written_is_no_error) {
  ToyScript script;
  KernelStore store(settings(1, "/proc/none/such"), backend_for(script));
  store.wait(requested(store, "x"));
  CHECK(script.compilations == 1);
}

TEST(keys_depend_on_all_that_decides_the_image_and_on_nothing_else) {
  ToyScript script;
  KernelStore store(settings(1), backend_for(script));
  const Payload &a = store.intern(Family::kTensorProduct, 1, toy_payload("a")).payload;
  const Payload &b = store.intern(Family::kTensorProduct, 1, toy_payload("b")).payload;
  const Payload &conv = store.intern(Family::kConvolution, 1, toy_payload("a")).payload;
  std::vector<std::string> keys;
  for (const Payload *payload : {&a, &b, &conv}) {
    for (const Order order : {Order::kForward, Order::kBackward}) {
      for (const char *architecture : {"x", "xy"}) {
        for (const char *toolchain : {"yz", "z"}) {
          for (const char *platform : {"Host", "CUDA"}) {
            keys.push_back(ImageCache::key(platform, toolchain, architecture, {payload, order}));
          }
        }
      }
    }
  }
  CHECK(keys[0] == ImageCache::key("Host", "yz", "x", {&a, Order::kForward}));
  std::sort(keys.begin(), keys.end());
  CHECK(std::unique(keys.begin(), keys.end()) == keys.end());
}

TEST(bad_payloads_are_refused_by_name) {
  ToyScript script;
  KernelStore store(settings(1), backend_for(script));
  const auto refused = [&](const std::string &text) {
    return check::thrown(__FILE__, __LINE__, [&] { store.intern(Family::kConvolution, 1, text); });
  };
  CHECK_CONTAINS(refused("{"), "not valid JSON");
  CHECK_CONTAINS(refused("[]"), "must be a JSON object");
  CHECK_CONTAINS(refused("{}"), "kernel_prop");
  const auto without = [](const std::string &part) {
    std::string text = toy_payload("x");
    text.replace(text.find(part), part.size(), "\"other\"");
    return text;
  };
  CHECK_CONTAINS(refused(without("\"L2_dim\"")), "kernel_prop.L2_dim is missing");
  CHECK_CONTAINS(refused(without("\"idx_dtype\"")), "kernel_prop.idx_dtype is missing");
  CHECK_CONTAINS(refused(without("\"problem\"")), "neither kernel");
  std::string negative = toy_payload("x");
  negative.replace(negative.find("\"L1_dim\": 3"), 11, "\"L1_dim\":-3");
  CHECK_CONTAINS(refused(negative), "L1_dim is out of range: -3");
  std::string source = toy_payload("x");
  source.insert(1, R"("kernel": "__global__ void forward() {}", )");
  CHECK_CONTAINS(refused(source), "forward_config is missing");
  CHECK(stats_of(store).records == 0);
}
