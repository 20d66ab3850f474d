// SPDX-License-Identifier: BSD-3-Clause
#include "generic.h"

#include <algorithm>

#include "coupling.h"

namespace oeq::cpu {
namespace {

constexpr int64_t kFlush = 4;  // products per partial sum: few, for one product is a long sum here already

/// One product: rows of the operands, null where the op has none.
template <class T>
struct Row {
  const T *x = nullptr, *y = nullptr, *w = nullptr, *z = nullptr, *xd = nullptr, *yd = nullptr, *wd = nullptr;
  T *out = nullptr, *gx = nullptr, *gy = nullptr, *gw = nullptr, *gz = nullptr;
};

/// Where channel `u` of a block lies, and how far apart its components are.
struct Place {
  int64_t first, step;
};

Place place(const Problem &problem, const IrrepBlock &block, int64_t u) {
  if (problem.layout == Layout::kMulIr) return {block.offset + u * block.dim(), 1};
  return {block.offset + u, block.mul};
}

/// Calls visit(channels of in1, in2, out, position of the weight or -1, couplings) for all channels of all paths.
template <class Visitor>
void for_each_channel(const GenericTables &tables, Visitor visit) {
  const Problem &problem = tables.problem;
  const int64_t *weight = tables.weight_positions.data();
  for (size_t p = 0; p < problem.instructions.size(); ++p) {
    const Instruction &path = problem.instructions[p];
    const IrrepBlock &a = problem.block1(path), &b = problem.block2(path), &c = problem.block3(path);
    const bool uvw = path.mode == Mode::kUvw;
    for (int64_t u = 0; u < a.mul; ++u)
      for (int64_t v = 0; v < b.mul; ++v)
        for (int64_t w = uvw ? 0 : u; w < (uvw ? c.mul : u + 1); ++w)
          visit(place(problem, a, u), place(problem, b, v), place(problem, c, w), path.has_weight ? *weight++ : -1,
                tables.couplings[p]);
  }
}

template <class T>
void forward(const GenericTables &tables, const Row<T> &r) {
  for_each_channel(tables, [&](Place a, Place b, Place c, int64_t weight, const std::vector<TableEntry> &couplings) {
    const T w = weight < 0 ? T(1) : r.w[weight];
    for (const TableEntry &e : couplings)
      r.out[c.first + e.k * c.step] +=
          static_cast<T>(e.value) * w * r.x[a.first + e.i * a.step] * r.y[b.first + e.j * b.step];
  });
}

template <class T>
void backward(const GenericTables &tables, const Row<T> &r) {
  for_each_channel(tables, [&](Place a, Place b, Place c, int64_t weight, const std::vector<TableEntry> &couplings) {
    const T w = weight < 0 ? T(1) : r.w[weight];
    T gw = 0;
    for (const TableEntry &e : couplings) {
      const int64_t i = a.first + e.i * a.step, j = b.first + e.j * b.step;
      const T cz = static_cast<T>(e.value) * r.z[c.first + e.k * c.step];
      gw += cz * r.x[i] * r.y[j];
      r.gx[i] += cz * w * r.y[j];
      r.gy[j] += cz * w * r.x[i];
    }
    if (weight >= 0) r.gw[weight] += gw;
  });
}

/// Gradients of Q(xd, y, w, z) + Q(x, yd, w, z) + Q(x, y, wd, z), Q = <z, f(x, y, w)>, by the null-checked outputs.
template <class T>
void double_backward(const GenericTables &tables, const Row<T> &r) {
  for_each_channel(tables, [&](Place a, Place b, Place c, int64_t weight, const std::vector<TableEntry> &couplings) {
    const T w = weight < 0 ? T(1) : r.w[weight], wd = weight < 0 ? T(0) : r.wd[weight];
    T gw = 0;
    for (const TableEntry &e : couplings) {
      const int64_t i = a.first + e.i * a.step, j = b.first + e.j * b.step, k = c.first + e.k * c.step;
      const T value = static_cast<T>(e.value), x = r.x[i], y = r.y[j], xd = r.xd[i], yd = r.yd[j];
      if (r.gz) r.gz[k] += value * (w * (xd * y + x * yd) + wd * x * y);
      if (!r.gx) continue;
      const T cz = value * r.z[k];
      gw += cz * (xd * y + x * yd);
      r.gx[i] += cz * (w * yd + wd * y);
      r.gy[j] += cz * (w * xd + wd * x);
    }
    if (weight >= 0 && r.gx) r.gw[weight] += gw;
  });
}

template <class T>
class Runner {
 public:
  explicit Runner(const Task &task)
      : t_(task), tables_(*static_cast<const GenericTables *>(task.tables)), problem_(tables_.problem) {}

  void run() {
    switch (t_.phase) {
      case kSend:
        return for_nodes(t_.sender_cut, &Runner::send_node);
      case kReceive:
        return for_nodes(t_.receiver_cut, &Runner::receive_node);
      case kRows:
        return for_nodes(t_.receiver_cut, &Runner::one_row);
      case kReduce:
        return reduce();
      default:
        return;
    }
  }

 private:
  int64_t index(const void *indices, int64_t k) const {
    return problem_.wide_indices ? static_cast<const int64_t *>(indices)[k] : static_cast<const int32_t *>(indices)[k];
  }

  static T *row(const void *base, int64_t n, int64_t length) {
    return base ? static_cast<T *>(const_cast<void *>(base)) + n * length : nullptr;
  }

  void for_nodes(const long long *cut, void (Runner::*work)(int64_t)) {
    if (shares_gradient()) std::fill_n(row(t_.partial, t_.item, problem_.weight_numel), problem_.weight_numel, T(0));
    for (int64_t n = cut[t_.item]; n < cut[t_.item + 1]; ++n) (this->*work)(n);
  }

  bool shares_gradient() const {
    return problem_.shared_weights && tables_.order != Order::kForward && t_.phase != kReceive;
  }

  void set_edge(Row<T> &r, int64_t e) const {
    const int64_t w = problem_.shared_weights ? 0 : e;
    r.y = row(t_.y, e, problem_.in2.dim), r.yd = row(t_.yd, e, problem_.in2.dim);
    r.w = row(t_.w, w, problem_.weight_numel), r.wd = row(t_.wd, w, problem_.weight_numel);
  }

  void set_edge_gradients(Row<T> &r, int64_t e) const {
    r.gy = row(t_.gy, e, problem_.in2.dim);
    std::fill_n(r.gy, problem_.in2.dim, T(0));
    r.gw = problem_.shared_weights ? row(t_.partial, t_.item, problem_.weight_numel)
                                   : row(t_.gw, e, problem_.weight_numel);
    if (!problem_.shared_weights) std::fill_n(r.gw, problem_.weight_numel, T(0));
  }

  /// Sums product(edge, sum) over a segment into `total`, kFlush edges at a time.
  template <class Product>
  void sum_segment(const long long *start, int64_t n, T *total, int64_t length, Product product) {
    T *part = static_cast<T *>(t_.work);
    std::fill_n(total, length, T(0));
    for (int64_t first = start[n]; first < start[n + 1]; first += kFlush) {
      std::fill_n(part, length, T(0));
      for (int64_t k = first; k < std::min<int64_t>(first + kFlush, start[n + 1]); ++k) product(k, part);
      for (int64_t i = 0; i < length; ++i) total[i] += part[i];
    }
  }

  void send_node(int64_t n) {
    const int64_t d1 = problem_.in1.dim;
    sum_segment(t_.sender_start, n, row(t_.gx, n, d1), d1, [&](int64_t k, T *part) {
      const int64_t e = t_.sender_order ? index(t_.sender_order, k) : k;
      Row<T> r;
      r.x = row(t_.x, n, d1), r.xd = row(t_.xd, n, d1), r.gx = part;
      r.z = row(t_.z, index(t_.receivers, e), problem_.out.dim);
      set_edge(r, e);
      set_edge_gradients(r, e);
      tables_.order == Order::kBackward ? backward(tables_, r) : double_backward(tables_, r);
    });
  }

  void receive_node(int64_t n) {
    const int64_t d1 = problem_.in1.dim, d3 = problem_.out.dim;
    const bool twice = tables_.order == Order::kDoubleBackward;
    sum_segment(t_.receiver_start, n, row(twice ? t_.gz : t_.out, n, d3), d3, [&](int64_t k, T *part) {
      const int64_t e = t_.receiver_order ? index(t_.receiver_order, k) : k;
      const int64_t sender = index(t_.senders, e);
      Row<T> r;
      r.x = row(t_.x, sender, d1), r.xd = row(t_.xd, sender, d1);
      set_edge(r, e);
      (twice ? r.gz : r.out) = part;
      twice ? double_backward(tables_, r) : forward(tables_, r);
    });
  }

  void one_row(int64_t e) {
    const int64_t d1 = problem_.in1.dim, d3 = problem_.out.dim;
    Row<T> r;
    r.x = row(t_.x, e, d1), r.xd = row(t_.xd, e, d1), r.z = row(t_.z, e, d3);
    r.out = row(t_.out, e, d3), r.gx = row(t_.gx, e, d1), r.gz = row(t_.gz, e, d3);
    set_edge(r, e);
    if (r.out) std::fill_n(r.out, d3, T(0));
    if (r.gz) std::fill_n(r.gz, d3, T(0));
    if (tables_.order == Order::kForward) return forward(tables_, r);
    std::fill_n(r.gx, d1, T(0));
    set_edge_gradients(r, e);
    tables_.order == Order::kBackward ? backward(tables_, r) : double_backward(tables_, r);
  }

  void reduce() {
    T *sum = static_cast<T *>(t_.gw);
    const int64_t n = problem_.weight_numel;
    std::fill_n(sum, n, T(0));
    for (int64_t item = 0; item < t_.partials; ++item)
      for (int64_t i = 0; i < n; ++i) sum[i] += row(t_.partial, item, n)[i];
  }

  const Task &t_;
  const GenericTables &tables_;
  const Problem &problem_;
};

}  // namespace

GenericTables make_generic_tables(const Problem &problem, Family family, Order order) {
  GenericTables tables{problem, family, order, {}, {}};
  for (const Instruction &path : problem.instructions) {
    const IrrepBlock &a = problem.block1(path), &b = problem.block2(path), &c = problem.block3(path);
    const std::vector<double> values = real_clebsch_gordan(a.l, b.l, c.l);
    std::vector<TableEntry> couplings;
    size_t index = 0;
    for (int i = 0; i < a.dim(); ++i)
      for (int j = 0; j < b.dim(); ++j)
        for (int k = 0; k < c.dim(); ++k, ++index)
          if (values[index] != 0) couplings.push_back({i, j, k, values[index] * path.path_weight});
    tables.couplings.push_back(std::move(couplings));
    if (!path.has_weight) continue;
    for (int64_t u = 0; u < a.mul; ++u)
      for (int64_t v = 0; v < b.mul; ++v)
        for (int64_t w = 0; w < (path.mode == Mode::kUvw ? c.mul : 1); ++w)
          tables.weight_positions.push_back(path.weight_offset + weight_position(problem, path, u, v, w));
  }
  return tables;
}

void run_generic(const Task *task) {
  const auto &tables = *static_cast<const GenericTables *>(task->tables);
  if (tables.problem.double_precision) return Runner<double>(*task).run();
  Runner<float>(*task).run();
}

int64_t generic_work(const Problem &problem) { return std::max(problem.in1.dim, problem.out.dim); }

}  // namespace oeq::cpu
