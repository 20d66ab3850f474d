// SPDX-License-Identifier: BSD-3-Clause
#include "host_kernel.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "segments.h"

namespace oeq::cpu {
namespace {

constexpr int64_t kCacheLine = 64;
constexpr int64_t kProductsPerItem = 256;  // enough that an item's start-up is small, few enough to balance threads
constexpr int64_t kMostItems = 512;
constexpr int64_t kLargestTile = 2048;  // products: a sender's partial sum has no more terms
constexpr int64_t kTilesAtLeast = 16;   // unless they became smaller than kProductsPerItem
constexpr int64_t kMostPartialBytes = 32 << 20;

}  // namespace

void *thread_work(int64_t bytes) {
  thread_local std::unique_ptr<AlignedMemory> work;
  if (!work || work->size() < static_cast<size_t>(bytes))
    work = std::make_unique<AlignedMemory>(static_cast<size_t>(bytes));
  return work->data();
}

AlignedMemory::AlignedMemory(size_t bytes) : size_(std::max<size_t>(bytes, 1)) {
  size_ = (size_ + kCacheLine - 1) / kCacheLine * kCacheLine;
  data_ = static_cast<char *>(std::aligned_alloc(kCacheLine, size_));
  if (!data_)
    throw KernelError("out of memory: a kernel needs " + std::to_string(size_ >> 20) + " MiB beside its operands");
}

AlignedMemory::~AlignedMemory() { std::free(data_); }

std::unique_ptr<AlignedMemory> SpareMemory::take(size_t bytes) {
  std::unique_ptr<AlignedMemory> memory(spare_.exchange(nullptr));
  if (!memory || memory->size() < bytes) memory = std::make_unique<AlignedMemory>(bytes);
  return memory;
}

/// Offsets of a call's own arrays in one allocation.
struct HostKernel::Memory {
  int64_t items = 1;
  int64_t bytes = 0;
  int64_t receiver_start = 0, sender_start = 0, receiver_order = 0, sender_order = 0;
  int64_t receiver_cut = 0, sender_cut = 0;
  int64_t tile_items = 0, tile_cut = 0, tile_start = 0, tile_row = 0, sender_rows = 0, sender_rows_start = 0;
  int64_t seen = 0, terms = 0, owner = 0;
  int64_t x = 0, xd = 0, z = 0, w = 0, wd = 0, partial = 0;

  int64_t take(int64_t size) {
    const int64_t offset = bytes;
    bytes += (size + kCacheLine - 1) / kCacheLine * kCacheLine;
    return offset;
  }
};

HostKernel::HostKernel(const Problem &problem, Family family, Order order, std::unique_ptr<SharedLibrary> library)
    : problem_(problem),
      family_(family),
      order_(order),
      layout_(kernel_layout(problem, this_vector_unit())),
      library_(std::move(library)) {
  const int64_t size = problem_.double_precision ? 8 : 4;
  if (library_) {
    function_ = reinterpret_cast<KernelFunction *>(library_->symbol(OEQ_KERNEL_SYMBOL));
    work_bytes_ = layout_.work * size;
    return;
  }
  tables_ = std::make_unique<GenericTables>(make_generic_tables(problem_, family_, order_));
  function_ = run_generic;
  work_bytes_ = generic_work(problem_) * size;
}

bool HostKernel::needs_packing() const {
  if (tables_) return false;
  const bool shared = problem_.shared_weights && !layout_.direct_weights;
  const bool nodes = !layout_.direct1 || (order_ != Order::kForward && !layout_.direct3);
  return shared || (convolves() && nodes);
}

/// Items that may have a partial gradient of shared weights each.
int64_t HostKernel::most_partials() const {
  if (!has_partials()) return std::numeric_limits<int64_t>::max();
  const int64_t row = std::max<int64_t>(layout_.weight_row, problem_.weight_numel) * 8;
  return std::max<int64_t>(kMostPartialBytes / std::max<int64_t>(row, 1), 1);
}

/// Depends on the sizes alone, so that sums over items do not depend on the number of threads.
int64_t HostKernel::item_count(const OeqCall &call) const {
  int64_t items = std::min((call.products + call.nodes) / kProductsPerItem, kMostItems);
  return std::max<int64_t>(std::min(items, most_partials()), 1);
}

HostKernel::Memory HostKernel::plan_memory(const OeqCall &call) const {
  Memory m;
  m.items = item_count(call);
  const int64_t size = problem_.double_precision ? 8 : 4, index = problem_.wide_indices ? 8 : 4;
  const bool twice = order_ == Order::kDoubleBackward;
  m.receiver_cut = m.take((m.items + 1) * 8);
  if (convolves()) {
    m.sender_cut = m.take((m.items + 1) * 8);
    m.receiver_start = m.take((call.nodes + 1) * 8);
    m.sender_start = m.take((call.nodes + 1) * 8);
    m.receiver_order = m.take(call.products * index);
    m.sender_order = m.take(call.products * index);
    if (!tables_ && !layout_.direct1) m.x = m.take(call.nodes * layout_.row1 * size);
    if (!tables_ && !layout_.direct1 && twice) m.xd = m.take(call.nodes * layout_.row1 * size);
    if (!tables_ && !layout_.direct3 && order_ != Order::kForward) m.z = m.take(call.nodes * layout_.row3 * size);
  }
  if (convolves() && !tables_ && layout_.tiles && order_ != Order::kForward) {
    const int64_t tile = std::clamp(call.products / kTilesAtLeast, kProductsPerItem, kLargestTile);
    m.tile_items = std::min((call.products + tile - 1) / tile, most_partials());
    m.tile_cut = m.take((m.tile_items + 1) * 8);
    m.tile_start = m.take((m.tile_items + 1) * 8);
    m.tile_row = m.take(call.products * 4);
    m.sender_rows = m.take(most_tile_rows(call) * 4);
    m.sender_rows_start = m.take((call.nodes + 1) * 8);
    m.seen = m.take(call.nodes * 4);
    m.terms = m.take(call.nodes * 4);
    m.owner = m.take(most_tile_rows(call) * 4);
  }
  m.w = m.take(layout_.weight_row * size);
  m.wd = m.take(layout_.weight_row * size);
  if (has_partials())
    m.partial = m.take(std::max(m.items, m.tile_items) * std::max(layout_.weight_row, problem_.weight_numel) * size);
  return m;
}

Task HostKernel::make_task(const OeqCall &call, const Memory &m, char *base) const {
  Task t = {};
  t.x = call.L1, t.y = call.L2, t.w = call.W, t.z = call.L3_grad;
  t.xd = call.L1_dgrad, t.yd = call.L2_dgrad, t.wd = call.W_dgrad;
  t.out = call.L3, t.gx = call.L1_grad, t.gy = call.L2_grad, t.gw = call.W_grad, t.gz = call.L3_dgrad;
  t.products = call.products, t.nodes = call.nodes;
  auto packed = [&](bool direct, const void *operand, int64_t offset) {
    return direct ? const_cast<void *>(operand) : base + offset;
  };
  t.packed_x = packed(layout_.direct1, call.L1, m.x);
  t.packed_xd = packed(layout_.direct1, call.L1_dgrad, m.xd);
  t.packed_z = packed(layout_.direct3, call.L3_grad, m.z);
  t.packed_w = packed(layout_.direct_weights, call.W, m.w);
  t.packed_wd = packed(layout_.direct_weights, call.W_dgrad, m.wd);
  t.receivers = call.receivers, t.senders = call.senders;
  t.partial = base + m.partial;
  t.partials = m.items;
  t.tables = tables_.get();
  return t;
}

void HostKernel::group(const OeqCall &call, const Memory &m, char *base, Task &task) const {
  auto *receiver_cut = reinterpret_cast<long long *>(base + m.receiver_cut);
  task.receiver_cut = receiver_cut;
  if (!convolves()) {
    for (int64_t item = 0; item <= m.items; ++item) receiver_cut[item] = call.products * item / m.items;
    return;
  }
  // Both are grouped always: that also checks every index that the kernel will follow.
  auto *sender_cut = reinterpret_cast<long long *>(base + m.sender_cut);
  const bool given = call.sender_order && call.sender_order_count == call.products;
  const Segments receivers =
      group_edges(call.receivers, problem_.wide_indices, call.products, call.nodes, nullptr, base + m.receiver_order,
                  reinterpret_cast<long long *>(base + m.receiver_start), "receiver");
  const Segments senders =
      group_edges(call.senders, problem_.wide_indices, call.products, call.nodes, given ? call.sender_order : nullptr,
                  base + m.sender_order, reinterpret_cast<long long *>(base + m.sender_start), "sender");
  task.receiver_order = receivers.order, task.receiver_start = receivers.start;
  task.sender_order = senders.order, task.sender_start = senders.start;
  task.sender_cut = sender_cut;
  cut_evenly(receivers.start, call.nodes, m.items, receiver_cut);
  cut_evenly(senders.start, call.nodes, m.items, sender_cut);
}

/// False: each sender occurs in so many items that tiles would be as good as a gradient of every edge.
bool HostKernel::make_tiles(const OeqCall &call, const Memory &m, char *base, Task &task) const {
  if (m.tile_items == 0) return false;
  auto *cut = reinterpret_cast<long long *>(base + m.tile_cut);
  for (int64_t item = 0; item <= m.tile_items; ++item) cut[item] = call.products * item / m.tile_items;
  Tiles tiles;
  tiles.row = reinterpret_cast<int *>(base + m.tile_row);
  tiles.sender_rows = reinterpret_cast<int *>(base + m.sender_rows);
  tiles.start = reinterpret_cast<long long *>(base + m.tile_start);
  tiles.sender_start = reinterpret_cast<long long *>(base + m.sender_rows_start);
  if (!plan_tiles(call.senders, task.receiver_order, problem_.wide_indices, call.nodes, cut, m.tile_items,
                  most_tile_rows(call), reinterpret_cast<int *>(base + m.seen), reinterpret_cast<int *>(base + m.terms),
                  reinterpret_cast<int *>(base + m.owner), tiles))
    return false;
  task.tile_cut = cut, task.tile_start = tiles.start, task.tile_row = tiles.row;
  task.sender_rows = tiles.sender_rows, task.sender_rows_start = tiles.sender_start;
  task.partials = m.tile_items;
  return true;
}

void HostKernel::run_phase(Phase phase, int64_t items, const Task &task, Executor *executor) const {
  struct Context {
    Task task;
    KernelFunction *function;
    int64_t work_bytes;
  } context{task, function_, work_bytes_};
  context.task.phase = phase;
  context.task.items = items;
  auto piece = [](void *data, int64_t item) {
    const auto &shared = *static_cast<const Context *>(data);
    Task own = shared.task;
    own.item = item;
    own.work = thread_work(shared.work_bytes);
    shared.function(&own);
  };
  if (items == 1 || !executor) {
    for (int64_t item = 0; item < items; ++item) piece(&context, item);
    return;
  }
  executor->run(items, piece, &context);
}

void HostKernel::run(const OeqCall &call, const Launch &launch) const {
  const Memory memory = plan_memory(call);
  std::unique_ptr<AlignedMemory> held = spare_.take(static_cast<size_t>(memory.bytes)), tile;
  Task task = make_task(call, memory, held->data());
  group(call, memory, held->data(), task);
  if (make_tiles(call, memory, held->data(), task)) {
    const int64_t bytes = task.tile_start[memory.tile_items] * layout_.row1 * (problem_.double_precision ? 8 : 4);
    tile = spare_tile_.take(static_cast<size_t>(bytes));
    task.tile = tile->data();
  }
  if (needs_packing()) run_phase(kPack, memory.items, task, launch.executor);
  if (!convolves()) run_phase(kRows, memory.items, task, launch.executor);
  if (tile) {
    run_phase(kTiles, memory.tile_items, task, launch.executor);
    run_phase(kGather, memory.items, task, launch.executor);
  } else if (convolves() && order_ != Order::kForward) {
    run_phase(kSend, memory.items, task, launch.executor);
  }
  if (convolves() && order_ != Order::kBackward) run_phase(kReceive, memory.items, task, launch.executor);
  if (has_partials()) run_phase(kReduce, 1, task, launch.executor);
  spare_.give_back(std::move(held));
  if (tile) spare_tile_.give_back(std::move(tile));
}

}  // namespace oeq::cpu
