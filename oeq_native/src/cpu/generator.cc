// SPDX-License-Identifier: BSD-3-Clause
#include "generator.h"

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <utility>

#include "coupling.h"
#include "task.h"

namespace oeq::cpu {
namespace {

constexpr char kSkeleton[] =
#include "skeleton.inc"
    ;
constexpr char kDrivers[] =
#include "drivers.inc"
    ;

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

template <class... Parts>
std::string text(const Parts &...parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

/// One entry (k, i) of the matrix that takes components of x to components of the output: sum of `value` y_j.
struct Entry {
  int k, i;
  std::vector<std::pair<int, double>> terms;
};

/// The entries that no symmetry makes zero, by k, then i.
std::vector<Entry> coupling_entries(const Problem &problem, const Instruction &path) {
  const int l1 = problem.block1(path).l, l2 = problem.block2(path).l, l3 = problem.block3(path).l;
  const int d1 = 2 * l1 + 1, d2 = 2 * l2 + 1, d3 = 2 * l3 + 1;
  const std::vector<double> values = real_clebsch_gordan(l1, l2, l3);
  std::vector<Entry> entries;
  for (int k = 0; k < d3; ++k)
    for (int i = 0; i < d1; ++i) {
      Entry entry{k, i, {}};
      for (int j = 0; j < d2; ++j) {
        const double value = values[static_cast<size_t>((i * d2 + j) * d3 + k)];
        if (value != 0) entry.terms.emplace_back(j, value * path.path_weight);
      }
      if (!entry.terms.empty()) entries.push_back(std::move(entry));
    }
  return entries;
}

bool is_empty(const Problem &problem, const Instruction &path) {
  return problem.block1(path).mul == 0 || problem.block2(path).mul == 0 || problem.block3(path).mul == 0;
}

/// As many lanes as fill a register, fewer where every block of channels is shorter.
int64_t choose_lanes(const Problem &problem, const VectorUnit &unit) {
  const int64_t most = unit.bytes / (problem.double_precision ? 8 : 4);
  int64_t longest = 1, divisor = most;
  for (const Irreps *irreps : {&problem.in1, &problem.out})
    for (const IrrepBlock &block : irreps->blocks) {
      longest = std::max(longest, block.mul);
      while (block.mul % divisor != 0) divisor /= 2;
    }
  int64_t lanes = 2;
  while (lanes < most && lanes < longest) lanes *= 2;
  // Half as many lanes without padding and repacking are faster than all lanes with them.
  return 2 * divisor >= lanes ? std::max<int64_t>(divisor, 2) : lanes;
}

struct PackedBlocks {
  std::vector<int64_t> padded, offset;
  int64_t row = 0;
  bool direct = true;
};

PackedBlocks pack_blocks(const Irreps &irreps, int64_t lanes, Layout layout) {
  PackedBlocks packed;
  for (const IrrepBlock &block : irreps.blocks) {
    packed.padded.push_back(round_up(block.mul, lanes));
    packed.offset.push_back(packed.row);
    packed.row += packed.padded.back() * block.dim();
    packed.direct &= block.mul % lanes == 0 && (layout == Layout::kIrMul || block.l == 0);
  }
  return packed;
}

bool weights_in_place(const Problem &problem, const Instruction &path, int64_t lanes) {
  const int64_t m1 = problem.block1(path).mul, m2 = problem.block2(path).mul, m3 = problem.block3(path).mul;
  const bool tiled = problem.weight_order == WeightOrder::kOeq;
  if (path.mode == Mode::kUvw) return !tiled && m3 % lanes == 0;
  return m1 % lanes == 0 && (m2 == 1 || (tiled && m1 <= kWeightTile));
}

}  // namespace

VectorUnit this_vector_unit() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return {64, 32};
  if (__builtin_cpu_supports("avx2")) return {32, 16};
  return {16, 16};
#else
  return {16, 32};
#endif
}

KernelLayout kernel_layout(const Problem &problem, const VectorUnit &unit) {
  KernelLayout layout;
  layout.lanes = choose_lanes(problem, unit);
  const PackedBlocks in1 = pack_blocks(problem.in1, layout.lanes, problem.layout);
  const PackedBlocks out = pack_blocks(problem.out, layout.lanes, problem.layout);
  layout.padded1 = in1.padded, layout.offset1 = in1.offset, layout.row1 = in1.row, layout.direct1 = in1.direct;
  layout.padded3 = out.padded, layout.offset3 = out.offset, layout.row3 = out.row, layout.direct3 = out.direct;
  layout.direct_weights = true;
  for (const Instruction &path : problem.instructions) {
    const int64_t m1 = problem.block1(path).mul, m2 = problem.block2(path).mul;
    const int64_t p1 = in1.padded[path.in1], p3 = out.padded[path.out], d3 = problem.block3(path).dim();
    layout.weight_offset.push_back(layout.weight_row);
    layout.coupling_offset.push_back(layout.couplings);
    if (is_empty(problem, path)) continue;
    const bool uvw = path.mode == Mode::kUvw;
    if (path.has_weight) layout.weight_row += uvw ? m1 * m2 * p3 : m2 * p1;
    if (path.has_weight) layout.direct_weights &= weights_in_place(problem, path, layout.lanes);
    if (uvw) layout.uvw_scratch = std::max(layout.uvw_scratch, 4 * d3 * m2 * p1);
    layout.couplings += m2 * static_cast<int64_t>(coupling_entries(problem, path).size());
  }
  // In the order of the senders each edge reads a row of L3_grad from afar; in the order of the receivers it reads a
  // row of L1 and updates one of L1_grad instead.
  layout.tiles = layout.row3 > 2 * layout.row1;
  const int64_t most_lanes = unit.bytes / (problem.double_precision ? 8 : 4);
  layout.edge_lanes = layout.couplings * most_lanes <= 16384 ? most_lanes : 1;
  const bool in_place = layout.direct_weights || problem.shared_weights;
  if (in_place && layout.uvw_scratch == 0) layout.together = std::min<int64_t>(layout.edge_lanes, 2);
  const int64_t d2 = problem.in2.dim, edges = layout.edge_lanes;
  auto piece = [](int64_t numbers) { return round_up(numbers, 64); };
  layout.work = 4 * piece(layout.row1) + 3 * piece(layout.row3) + 3 * piece(layout.weight_row) + 2 * piece(d2 * edges) +
                2 * piece(layout.couplings * edges) + piece((d2 + layout.lanes) * layout.lanes) +
                piece(layout.uvw_scratch);
  return layout;
}

namespace {

/// Writes the source. One path is one function, so that the compiler meets many small loops instead of one huge body.
class KernelWriter {
 public:
  KernelWriter(const Problem &problem, Family family, Order order, const VectorUnit &unit)
      : problem_(problem), family_(family), order_(order), unit_(unit), layout_(kernel_layout(problem, unit)) {
    for (const Instruction &path : problem.instructions) entries_.push_back(coupling_entries(problem, path));
  }

  std::string write() {
    write_constants();
    source_ << kSkeleton;
    write_node_packing("pack1", "unpack1", problem_.in1, layout_.padded1, layout_.offset1);
    write_node_packing("pack3", "unpack3", problem_.out, layout_.padded3, layout_.offset3);
    write_weight_packing("pack_weights", true);
    write_weight_packing("unpack_weights", false);
    write_couplings();
    if (has_forward()) write_paths("forward", &KernelWriter::write_forward_uvu, &KernelWriter::write_forward_uvw);
    if (has_backward()) {
      write_lane_sums();
      write_paths("backward", &KernelWriter::write_backward_uvu, &KernelWriter::write_backward_uvw);
    }
    source_ << kDrivers;
    return source_.str();
  }

 private:
  bool twice() const { return order_ == Order::kDoubleBackward; }
  bool has_forward() const { return order_ != Order::kBackward; }
  bool has_backward() const { return order_ != Order::kForward; }

  template <class... Parts>
  void line(const Parts &...parts) {
    (source_ << ... << parts) << '\n';
  }

  void write_constants() {
    line("// Generated by StableMD for one tensor product; changes here are lost.");
    line("typedef ", problem_.double_precision ? "double" : "float", " T;");
    line("typedef ", problem_.wide_indices ? "long long" : "int", " I;");
    line("#define ORDER ", static_cast<int>(order_));
    line("#define CONVOLUTION ", family_ == Family::kConvolution ? 1 : 0);
    const int64_t bytes = layout_.lanes * (problem_.double_precision ? 8 : 4);
    const bool streams = layout_.direct_weights && !problem_.shared_weights && bytes == 64;
    line("#define STREAMS ", int(streams && problem_.weight_numel % layout_.lanes == 0));
    line("enum { L = ", layout_.lanes, ", EB = ", layout_.edge_lanes, ", UB = ", layout_.together,
         ", D1 = ", problem_.in1.dim, ", D2 = ", problem_.in2.dim, ", D3 = ", problem_.out.dim,
         ", WN = ", problem_.weight_numel, ", R1 = ", layout_.row1, ", R3 = ", layout_.row3,
         ", WR = ", layout_.weight_row, ", NM = ", layout_.couplings, ", NS = ", layout_.uvw_scratch,
         ", SHARED = ", int(problem_.shared_weights), ", DIRECT1 = ", int(layout_.direct1),
         ", DIRECT3 = ", int(layout_.direct3), ", DIRECTW = ", int(layout_.direct_weights), " };");
    line(kTaskSource);
  }

  void write_node_packing(const char *pack, const char *unpack, const Irreps &irreps,
                          const std::vector<int64_t> &padded, const std::vector<int64_t> &offset) {
    for (const bool packing : {true, false}) {
      line("static inline void ", packing ? pack : unpack, "(const T *__restrict from, T *__restrict to) {");
      for (size_t b = 0; b < irreps.blocks.size(); ++b) {
        const IrrepBlock &block = irreps.blocks[b];
        const bool mul_ir = problem_.layout == Layout::kMulIr;
        const std::string operand =
            text(block.offset, " + u * ", mul_ir ? block.dim() : 1, " + m * ", mul_ir ? 1 : block.mul);
        const std::string packed = text(offset[b], " + m * ", padded[b], " + u");
        const std::string &to = packing ? packed : operand, &from = packing ? operand : packed;
        line("  for (int u = 0; u < ", block.mul, "; ++u)");
        line("    for (int m = 0; m < ", block.dim(), "; ++m) to[", to, "] = from[", from, "];");
        if (!packing || padded[b] == block.mul) continue;
        line("  for (int m = 0; m < ", block.dim(), "; ++m)");
        line("    for (int u = ", block.mul, "; u < ", padded[b], "; ++u) to[", packed, "] = 0;");
      }
      line("}");
    }
  }

  void write_weight_packing(const char *name, bool packing) {
    line("static inline void ", name, "(const T *__restrict from, T *__restrict to) {");
    for (size_t p = 0; p < problem_.instructions.size(); ++p) {
      const Instruction &path = problem_.instructions[p];
      if (!path.has_weight || is_empty(problem_, path)) continue;
      const int64_t m1 = problem_.block1(path).mul, m2 = problem_.block2(path).mul, m3 = problem_.block3(path).mul;
      const bool uvw = path.mode == Mode::kUvw;
      const int64_t padded = uvw ? layout_.padded3[path.out] : layout_.padded1[path.in1];
      const int64_t inner = uvw ? m3 : m1;
      const int64_t depth = uvw ? m3 : 1;
      const char *position = uvw ? ", u, v, c)" : ", c, v, 0)";
      const std::string e3nn = uvw ? text("(u * ", m2, " + v) * ", m3, " + c") : text("c * ", m2, " + v");
      const std::string operand = text(
          path.weight_offset, " + ",
          problem_.weight_order == WeightOrder::kE3nn ? e3nn : text("tiled(", m1, ", ", m2, ", ", depth, position));
      const std::string packed =
          text(layout_.weight_offset[p], " + ", uvw ? text("(u * ", m2, " + v)") : "v", " * ", padded, " + c");
      if (uvw) line("  for (int u = 0; u < ", m1, "; ++u)");
      line("  for (int v = 0; v < ", m2, "; ++v) {");
      line("    for (int c = 0; c < ", inner, "; ++c) to[", packing ? packed : operand, "] = from[",
           packing ? operand : packed, "];");
      if (packing && padded != inner)
        line("    for (int c = ", inner, "; c < ", padded, "; ++c) to[", packed, "] = 0;");
      line("  }");
    }
    line("}");
  }

  /// Distance between components and between copies of block `b` of L2.
  int64_t component_step(const IrrepBlock &b) const { return problem_.layout == Layout::kMulIr ? 1 : b.mul; }
  int64_t copy_step(const IrrepBlock &b) const { return problem_.layout == Layout::kMulIr ? b.dim() : 1; }

  static std::string number(double value) {
    char buffer[40];
    std::snprintf(buffer, sizeof buffer, "(T)%.17g", value);
    return buffer;
  }

  void write_couplings() {
    line("static void couple(const T *__restrict y, T *__restrict m) {");
    for (size_t p = 0; p < problem_.instructions.size(); ++p) {
      const Instruction &path = problem_.instructions[p];
      if (is_empty(problem_, path)) continue;
      const IrrepBlock &block = problem_.block2(path);
      line("  for (int v = 0; v < ", block.mul, "; ++v) {");
      line("    const T *a = y + (", block.offset, " + v * ", copy_step(block), ") * EB;");
      line("    T *b = m + (", layout_.coupling_offset[p], " + v * ", entries_[p].size(), ") * EB;");
      for (int j = 0; j < block.dim(); ++j)
        line("    const Edges y", j, " = *(const Edges *)(a + ", j * component_step(block), " * EB);");
      for (size_t n = 0; n < entries_[p].size(); ++n) {
        std::string sum;
        for (const auto &[j, value] : entries_[p][n].terms)
          sum += text(sum.empty() ? "" : " + ", number(value), " * y", j);
        line("    *(Edges *)(b + ", n, " * EB) = ", sum, ";");
      }
      line("  }");
    }
    line("}");
  }

  using PathWriter = void (KernelWriter::*)(size_t);

  void write_paths(const char *name, PathWriter uvu, PathWriter uvw) {
    std::string calls;
    for (size_t p = 0; p < problem_.instructions.size(); ++p) {
      const Instruction &path = problem_.instructions[p];
      if (is_empty(problem_, path)) continue;
      line("static __attribute__((noinline)) void ", name, p, "(const Operands *o) {");
      write_path_pointers(p);
      (this->*(path.mode == Mode::kUvu ? uvu : uvw))(p);
      line("}");
      calls += text("  ", name, p, "(o);\n");
    }
    line("static inline void ", name, "_edge(const Operands *o) {\n", calls, "}");
  }

  void write_path_pointers(size_t p) {
    const Instruction &path = problem_.instructions[p];
    const int64_t x = layout_.offset1[path.in1], z = layout_.offset3[path.out], w = layout_.weight_offset[p];
    const int64_t m = layout_.coupling_offset[p];
    line("  const T *x = o->x + ", x, ", *w = o->w + ", w, ", *m = o->m + ", m, " * EB;");
    if (twice()) line("  const T *xd = o->xd + ", x, ", *wd = o->wd + ", w, ", *md = o->md + ", m, " * EB;");
    line("  const T *z = o->z + ", z, ";");
    line("  T *out = o->out + ", z, ", *gx = o->gx + ", x, ", *gw = o->gw + ", w, ";");
    line("  T *gy = o->gy + ", problem_.block2(path).offset, " * L, *s = o->s;");
    line("  const T *next_w = o->next_w + ", w, ", *next_x = o->next_x + ", x, ", *next_z = o->next_z + ", z, ";");
    line("  (void)w, (void)z, (void)out, (void)gx, (void)gw, (void)gy, (void)s;");
    line("  (void)next_w, (void)next_x, (void)next_z;");
    if (twice()) line("  (void)wd, (void)xd, (void)md;");
  }

  void write_coupling_loads(size_t p, const char *from) {
    for (size_t n = 0; n < entries_[p].size(); ++n)
      line("    const T ", from, "_", entries_[p][n].k, "_", entries_[p][n].i, " = ", from, "[", n, " * EB];");
  }

  /// Begins the loop over the copies of the second input and ends it, moving on in what each copy has of its own.
  void begin_copies(size_t p) {
    line("  for (int v = 0; v < ", problem_.block2(problem_.instructions[p]).mul, "; ++v) {");
  }
  void end_copies(size_t p, bool moves_weights) {
    const Instruction &path = problem_.instructions[p];
    const size_t entries = entries_[p].size();
    line("    m += ", entries, " * EB;");
    if (twice()) line("    md += ", entries, " * EB;");
    if (moves_weights && path.has_weight) {
      line("    w += ", layout_.padded1[path.in1], ", gw += ", layout_.padded1[path.in1], ";");
      if (twice()) line("    wd += ", layout_.padded1[path.in1], ";");
    }
    line("    gy += ", copy_step(problem_.block2(path)), " * L;");
    line("  }");
  }

  /// "m_k_i * name_i + ..." for the output component k; empty if there is none.
  std::string row_sum(size_t p, int k, const char *matrix, const std::string &name) const {
    std::string sum;
    for (const Entry &entry : entries_[p])
      if (entry.k == k) sum += text(sum.empty() ? "" : " + ", matrix, "_", k, "_", entry.i, " * ", name, entry.i);
    return sum;
  }

  /// "m_k_i * name_k + ..." for the input component i.
  std::string column_sum(size_t p, int i, const char *matrix, const std::string &name) const {
    std::string sum;
    for (const Entry &entry : entries_[p])
      if (entry.i == i) sum += text(sum.empty() ? "" : " + ", matrix, "_", entry.k, "_", i, " * ", name, entry.k);
    return sum;
  }

  void write_loads(const char *name, const char *from, int count, int64_t step) {
    for (int i = 0; i < count; ++i) line("      const V ", name, i, " = load(", from, " + ", i * step, " + c);");
  }
  void write_loads(const char *name, const char *from, int count, int64_t step, int64_t s) {
    for (int i = 0; i < count; ++i)
      line("      const V ", name, i, " = load(", from, " + ", i * step, " + ", s, " * L);");
  }

  void write_fetches(const char *row, int count, int64_t step, const char *fetch = "FETCH") {
    for (int i = 0; i < count; ++i) line("      ", fetch, "(", row, " + ", i * step, " + c);");
  }

  /// True if no earlier path touches the same block.
  bool is_first_use(size_t p, size_t Instruction::*block) const {
    for (size_t q = 0; q < p; ++q)
      if (problem_.instructions[q].*block == problem_.instructions[p].*block &&
          !is_empty(problem_, problem_.instructions[q]))
        return false;
    return true;
  }

  void write_forward_uvu(size_t p) {
    const Instruction &path = problem_.instructions[p];
    const int d3 = problem_.block3(path).dim();
    const int64_t padded = layout_.padded1[path.in1];
    const int64_t vectors = vectors_together(p);
    begin_copies(p);
    line("    for (int c = 0; c < ", padded, "; c += ", vectors, " * L) {");
    for (int64_t s = 0; s < vectors; ++s)
      for (int k = 0; k < d3; ++k) line("      V z", k, "_", s, " = load(out + ", k * padded, " + c + ", s, " * L);");
    line("      for (i64 q = 0; q < o->count; ++q) {");
    line("      const T *x = o->xs[q] + ", layout_.offset1[path.in1], " + c, *m_q = m + q;");
    if (path.has_weight) line("      const T *w = o->ws[q] + ", layout_.weight_offset[p], " + v * ", padded, " + c;");
    if (twice()) line("      const T *xd = o->xds[q] + ", layout_.offset1[path.in1], " + c, *md_q = md + q;");
    if (twice() && path.has_weight)
      line("      const T *wd = o->wds[q] + ", layout_.weight_offset[p], " + v * ", padded, " + c;");
    write_forward_fetches(p, vectors);
    for (size_t n = 0; n < entries_[p].size(); ++n) {
      const std::string place = text("_", entries_[p][n].k, "_", entries_[p][n].i);
      line("      const T m", place, " = m_q[", n, " * EB];");
      if (twice()) line("      const T md", place, " = md_q[", n, " * EB];");
    }
    for (int64_t s = 0; s < vectors; ++s) write_forward_vector(p, s);
    line("      }");
    for (int64_t s = 0; s < vectors; ++s)
      for (int k = 0; k < d3; ++k) line("      store(out + ", k * padded, " + c + ", s, " * L, z", k, "_", s, ");");
    line("    }");
    end_copies(p, false);
  }

  /// Vectors of channels whose sums stay in registers together: several, so that no chain of additions is waited for.
  int64_t vectors_together(size_t p) const {
    const Instruction &path = problem_.instructions[p];
    const int64_t each = (twice() ? 2 : 1) * problem_.block1(path).dim() + problem_.block3(path).dim();
    int64_t vectors = 4;
    while (vectors > 1 &&
           (vectors * each + 2 > unit_.registers || layout_.padded1[path.in1] % (vectors * layout_.lanes)))
      vectors /= 2;
    return vectors;
  }

  void write_forward_fetches(size_t p, int64_t vectors) {
    const Instruction &path = problem_.instructions[p];
    const int64_t padded = layout_.padded1[path.in1], x = layout_.offset1[path.in1], w = layout_.weight_offset[p];
    for (int64_t s = 0; s < vectors; ++s) {
      if (path.has_weight) line("      FETCH2(o->next_ws[q] + ", w, " + v * ", padded, " + c + ", s, " * L);");
      if (!is_first_use(p, &Instruction::in1)) continue;
      for (int i = 0; i < problem_.block1(path).dim(); ++i)
        line("      FETCH2(o->next_xs[q] + ", x + i * padded, " + c + ", s, " * L);");
    }
  }

  /// Adds vector `s` of channels of one product to the sums z.
  void write_forward_vector(size_t p, int64_t s) {
    const Instruction &path = problem_.instructions[p];
    const int64_t padded = layout_.padded1[path.in1];
    line("      {");
    write_loads("x", "x", problem_.block1(path).dim(), padded, s);
    if (twice()) write_loads("xd", "xd", problem_.block1(path).dim(), padded, s);
    if (path.has_weight) line("      const V w0 = load(w + ", s, " * L);");
    if (path.has_weight && twice()) line("      const V wd0 = load(wd + ", s, " * L);");
    for (int i = 0; i < problem_.block1(path).dim(); ++i) {
      const std::string plain = text(path.has_weight ? "w0 * " : "", "x", i);
      const std::string varied = path.has_weight ? text("w0 * xd", i, " + wd0 * x", i) : text("xd", i);
      line("      const V a", i, " = ", twice() ? varied : plain, ";");
      if (twice()) line("      const V b", i, " = ", plain, ";");
    }
    for (int k = 0; k < problem_.block3(path).dim(); ++k) {
      // Left to right from what is there, so that every term is one fused multiply-add.
      std::string sum = row_sum(p, k, "m", "a");
      if (sum.empty()) continue;
      if (twice()) sum += " + " + row_sum(p, k, "md", "b");
      line("      z", k, "_", s, " = z", k, "_", s, " + ", sum, ";");
    }
    line("      }");
  }

  /// s[k][v][u] = sum_i m_ki x_i of all copies; twice: also s2 of the products with one varied factor.
  void write_unweighted(size_t p) {
    const Instruction &path = problem_.instructions[p];
    const int d1 = problem_.block1(path).dim(), d3 = problem_.block3(path).dim();
    const int64_t padded = layout_.padded1[path.in1], m2 = problem_.block2(path).mul;
    line("  const T *m_first = m;");
    if (twice()) line("  const T *md_first = md;");
    line("  T *s2 = s + ", d3 * m2 * padded, ", *d = s + ", 2 * d3 * m2 * padded, ", *d2 = s + ", 3 * d3 * m2 * padded,
         ";");
    line("  (void)s2, (void)d, (void)d2;");
    line("  for (int v = 0; v < ", m2, "; ++v) {");
    write_coupling_loads(p, "m");
    if (twice()) write_coupling_loads(p, "md");
    line("    for (int c = 0; c < ", padded, "; c += L) {");
    write_loads("x", "x", d1, padded);
    if (twice()) write_loads("xd", "xd", d1, padded);
    for (int k = 0; k < d3; ++k) {
      const std::string sum = row_sum(p, k, "m", "x"), place = text(k * m2 * padded, " + v * ", padded, " + c");
      line("      store(s + ", place, ", ", sum.empty() ? "V{}" : sum, ");");
      if (!twice()) continue;
      const std::string varied = sum.empty() ? "V{}" : row_sum(p, k, "m", "xd") + " + " + row_sum(p, k, "md", "x");
      line("      store(s2 + ", place, ", ", varied, ");");
    }
    line("    }");
    line("    m += ", entries_[p].size(), " * EB;");
    if (twice()) line("    md += ", entries_[p].size(), " * EB;");
    line("  }");
    line("  m = m_first;");
    if (twice()) line("  md = md_first;");
  }

  void write_forward_uvw(size_t p) {
    const Instruction &path = problem_.instructions[p];
    const int d3 = problem_.block3(path).dim();
    const int64_t m1 = problem_.block1(path).mul, m2 = problem_.block2(path).mul;
    const int64_t padded1 = layout_.padded1[path.in1], padded3 = layout_.padded3[path.out];
    write_unweighted(p);
    line("  for (int c = 0; c < ", padded3, "; c += L) {");
    for (int k = 0; k < d3; ++k) line("    V a", k, " = load(out + ", k * padded3, " + c);");
    line("    for (int u = 0; u < ", m1, "; ++u)");
    line("      for (int v = 0; v < ", m2, "; ++v) {");
    line("        const V w0 = load(w + (u * ", m2, " + v) * ", padded3, " + c);");
    if (twice()) line("        const V wd0 = load(wd + (u * ", m2, " + v) * ", padded3, " + c);");
    for (int k = 0; k < d3; ++k) {
      const std::string place = text("[", k * m2 * padded1, " + v * ", padded1, " + u]");
      line("        a", k,
           " += ", twice() ? text("s2", place, " * w0 + s", place, " * wd0") : text("s", place, " * w0"), ";");
    }
    line("      }");
    for (int k = 0; k < d3; ++k) line("    store(out + ", k * padded3, " + c, a", k, ");");
    line("  }");
  }

  /// Input components that share one pass, so that their products with all outputs stay in registers.
  std::vector<std::pair<int, int>> component_groups(int d1, int d3) const {
    const int room = static_cast<int>(unit_.registers) - 6;
    const int size = std::max(1, room / d3);
    const int groups = (d1 + size - 1) / size, even = (d1 + groups - 1) / groups;
    std::vector<std::pair<int, int>> result;
    for (int i = 0; i < d1; i += even) result.emplace_back(i, std::min(d1, i + even));
    return result;
  }

  bool in_group(const Entry &entry, std::pair<int, int> group) const {
    return entry.i >= group.first && entry.i < group.second;
  }

  void write_gy_declarations(size_t p, std::pair<int, int> group) {
    for (const Entry &entry : entries_[p])
      if (in_group(entry, group)) line("    V g_", entry.k, "_", entry.i, " = {};");
  }

  /// gy_j += sum over (k, i) of coupling times g_ki, still one number per lane of channels.
  void write_gy_sums(size_t p, std::pair<int, int> group) {
    const IrrepBlock &block = problem_.block2(problem_.instructions[p]);
    for (int j = 0; j < block.dim(); ++j) {
      std::string sum;
      for (const Entry &entry : entries_[p])
        for (const auto &[component, value] : entry.terms)
          if (component == j && in_group(entry, group))
            sum += text(sum.empty() ? "" : " + ", number(value), " * g_", entry.k, "_", entry.i);
      if (!sum.empty()) line("    add(gy + ", j * component_step(block), " * L, ", sum, ");");
    }
  }

  void write_backward_uvu(size_t p) {
    const Instruction &path = problem_.instructions[p];
    const int d1 = problem_.block1(path).dim(), d3 = problem_.block3(path).dim();
    const int64_t padded = layout_.padded1[path.in1];
    begin_copies(p);
    write_coupling_loads(p, "m");
    if (twice()) write_coupling_loads(p, "md");
    for (const auto &group : component_groups(d1, d3)) {
      line("    {");
      write_gy_declarations(p, group);
      line("    for (int c = 0; c < ", padded, "; c += L) {");
      if (path.has_weight && group.first == 0) line("      FETCH(next_w + c);");
      if (group.first == 0) write_backward_fetches(p);
      write_loads("z", "z", d3, padded);
      if (path.has_weight) line("      const V w0 = load(w + c);");
      if (path.has_weight && twice()) line("      const V wd0 = load(wd + c);");
      if (path.has_weight)
        line("      V weight = ", problem_.shared_weights || group.first > 0 ? "load(gw + c)" : "{}", ";");
      for (int i = group.first; i < group.second; ++i) write_backward_component(p, i);
      const bool once = !problem_.shared_weights && group == std::make_pair(0, d1);
      if (path.has_weight) line("      ", once ? "put" : "store", "(gw + c, weight);");
      line("    }");
      write_gy_sums(p, group);
      line("    }");
    }
    end_copies(p, true);
  }

  void write_backward_fetches(size_t p) {
    const Instruction &path = problem_.instructions[p];
    const int64_t padded = layout_.padded1[path.in1];
    if (!layout_.tiles && is_first_use(p, &Instruction::out))
      write_fetches("next_z", problem_.block3(path).dim(), padded, "FETCH2");
    if (layout_.tiles && is_first_use(p, &Instruction::in1))
      write_fetches("next_x", problem_.block1(path).dim(), padded);
  }

  void write_backward_component(size_t p, int i) {
    const Instruction &path = problem_.instructions[p];
    const int64_t padded = layout_.padded1[path.in1];
    const std::string sum = column_sum(p, i, "m", "z");
    if (sum.empty()) return;
    const std::string place = text(i * padded, " + c");
    line("      {");
    line("      const V t = ", sum, ", xi = load(x + ", place, ");");
    if (twice()) {
      line("      const V td = ", column_sum(p, i, "md", "z"), ", xdi = load(xd + ", place, ");");
      if (path.has_weight) line("      weight += xdi * t + xi * td;");
      line("      add(gx + ", place, ", ", path.has_weight ? "w0 * td + wd0 * t" : "td", ");");
      line("      const V q = ", path.has_weight ? "w0 * xdi + wd0 * xi" : "xdi", ";");
    } else {
      if (path.has_weight) line("      weight += xi * t;");
      line("      add(gx + ", place, ", ", path.has_weight ? "w0 * t" : "t", ");");
      line("      const V q = ", path.has_weight ? "w0 * xi" : "xi", ";");
    }
    for (const Entry &entry : entries_[p])
      if (entry.i == i) line("      g_", entry.k, "_", i, " += z", entry.k, " * q;");
    line("      }");
  }

  /// d[k][v][u] = sum_w z_k w, and the gradient of the weights.
  void write_weight_products(size_t p) {
    const Instruction &path = problem_.instructions[p];
    const int d3 = problem_.block3(path).dim();
    const int64_t m1 = problem_.block1(path).mul, m2 = problem_.block2(path).mul;
    const int64_t padded1 = layout_.padded1[path.in1], padded3 = layout_.padded3[path.out];
    line("  zero(d, ", 2 * d3 * m2 * padded1, ");");
    line("  for (int u = 0; u < ", m1, "; ++u)");
    line("    for (int v = 0; v < ", m2, "; ++v) {");
    for (int k = 0; k < d3; ++k) {
      line("      V a", k, " = {}", twice() ? text(", b", k, " = {}") : "", ";");
      line("      const T s_", k, " = ", twice() ? "s2" : "s", "[", k * m2 * padded1, " + v * ", padded1, " + u];");
    }
    line("      for (int c = 0; c < ", padded3, "; c += L) {");
    line("        const i64 place = (u * ", m2, " + v) * ", padded3, " + c;");
    line("        const V w0 = load(w + place);");
    if (twice()) line("        const V wd0 = load(wd + place);");
    line("        V weight = ", problem_.shared_weights ? "load(gw + place)" : "{}", ";");
    for (int k = 0; k < d3; ++k) {
      line("        const V z", k, " = load(z + ", k * padded3, " + c);");
      line("        a", k, " += z", k, " * w0, weight += s_", k, " * z", k, ";");
      if (twice()) line("        b", k, " += z", k, " * wd0;");
    }
    line("        store(gw + place, weight);");
    line("      }");
    for (int k = 0; k < d3; ++k) {
      line("      d[", k * m2 * padded1, " + v * ", padded1, " + u] = sum_lanes(a", k, ");");
      if (twice()) line("      d2[", k * m2 * padded1, " + v * ", padded1, " + u] = sum_lanes(b", k, ");");
    }
    line("    }");
  }

  void write_backward_uvw(size_t p) {
    const Instruction &path = problem_.instructions[p];
    const int d1 = problem_.block1(path).dim(), d3 = problem_.block3(path).dim();
    const int64_t padded = layout_.padded1[path.in1], m2 = problem_.block2(path).mul;
    write_unweighted(p);
    write_weight_products(p);
    begin_copies(p);
    write_coupling_loads(p, "m");
    if (twice()) write_coupling_loads(p, "md");
    for (const auto &group : component_groups(d1, d3)) {
      line("    {");
      write_gy_declarations(p, group);
      line("    for (int c = 0; c < ", padded, "; c += L) {");
      write_loads("z", text("d + v * ", padded).c_str(), d3, m2 * padded);
      if (twice()) write_loads("zd", text("d2 + v * ", padded).c_str(), d3, m2 * padded);
      for (int i = group.first; i < group.second; ++i) {
        const std::string sum = column_sum(p, i, "m", twice() ? "zd" : "z"), place = text(i * padded, " + c");
        if (sum.empty()) continue;
        line("      add(gx + ", place, ", ", sum, twice() ? " + " + column_sum(p, i, "md", "z") : "", ");");
        line("      const V x", i, " = load(x + ", place, ");");
        if (twice()) line("      const V xd", i, " = load(xd + ", place, ");");
        for (const Entry &entry : entries_[p])
          if (entry.i == i)
            line("      g_", entry.k, "_", i, " += z", entry.k, " * ",
                 twice() ? text("xd", i, " + zd", entry.k, " * x", i) : text("x", i), ";");
      }
      line("    }");
      write_gy_sums(p, group);
      line("    }");
    }
    end_copies(p, false);
  }

  /// sum_each: lane i of the result is the sum of the lanes of vector i of L. A tree of shuffles.
  void write_lane_sums() {
    const int64_t lanes = layout_.lanes;
    line("typedef ", problem_.double_precision ? "long long" : "int",
         " Lanes __attribute__((vector_size(sizeof(T) * L)));");
    line("#ifdef __clang__");
    line("#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)");
    line("#else");
    line("#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (Lanes){__VA_ARGS__})");
    line("#endif");
    line("static inline V sum_each(const T *p) {");
    line("  V a[L];");
    line("  for (int i = 0; i < L; ++i) a[i] = load(p + i * L);");
    for (int64_t half = lanes / 2; half >= 1; half /= 2) {
      std::string low, high;
      for (int64_t lane = 0; lane < lanes; ++lane) {
        const int64_t group = lane / half, source = group / 2 * 2 * half + lane % half + (group % 2 ? lanes : 0);
        low += text(lane ? ", " : "", source);
        high += text(lane ? ", " : "", source + half);
      }
      line("  for (int i = 0; i < ", half, "; ++i)");
      line("    a[i] = SHUFFLE(a[i], a[i + ", half, "], ", low, ") + SHUFFLE(a[i], a[i + ", half, "], ", high, ");");
    }
    line("  return a[0];");
    line("}");
  }

  const Problem &problem_;
  const Family family_;
  const Order order_;
  const VectorUnit unit_;
  const KernelLayout layout_;
  std::vector<std::vector<Entry>> entries_;
  std::ostringstream source_;
};

}  // namespace

std::string generate(const Problem &problem, Family family, Order order, const VectorUnit &unit) {
  return KernelWriter(problem, family, order, unit).write();
}

}  // namespace oeq::cpu
