// SPDX-License-Identifier: BSD-3-Clause
// Capacities: what the header promises about padding and waste, over random sizes.
#include <cmath>
#include <random>

#include "capacity.h"
#include "check.h"
#include "error.h"

namespace {

using namespace stablemd;

HopCounts counts(const std::vector<int64_t> &rows, const std::vector<int64_t> &edges) {
  smd_graph_size size{};
  std::copy(rows.begin(), rows.end(), size.nodes);
  std::copy(edges.begin(), edges.end(), size.edges);
  return checked_counts(size, static_cast<int>(edges.size()));
}

std::string complaint(const std::vector<int64_t> &rows, const std::vector<int64_t> &edges) {
  try {
    grown(with_padding(counts(rows, edges)), {});
  } catch (const Error &error) {
    CHECK_EQUAL(error.status, SMD_ERROR_ARGUMENT);
    return error.what();
  }
  return "no complaint";
}

}  // namespace

TEST(padding_that_the_format_demands) {
  const HopCounts need = with_padding(counts({0, 0, 5}, {0, 0}));
  CHECK_EQUAL(need.rows[0], 1);
  CHECK_EQUAL(need.edges[0], 1);
  CHECK_EQUAL(need.rows[1], 0);
  CHECK_EQUAL(need.edges[1], 0);
  CHECK_EQUAL(need.rows[2], 6);
}

TEST(symbols) {
  HopCounts capacity;
  capacity.layers = 2;
  capacity.rows = {8, 16, 24};
  capacity.edges = {100, 50};
  const Sizes sizes = program_sizes(capacity);
  CHECK_EQUAL(sizes.rows_in_all(), 48);
  CHECK_EQUAL(sizes.rows(1), 24);
  CHECK_EQUAL(sizes.rows(2), 8);
  CHECK_EQUAL(sizes.edges(1), 150);
  CHECK_EQUAL(sizes.edges(2), 100);
}

TEST(waste_is_bounded) {
  std::mt19937_64 random(std::random_device{}());
  std::uniform_real_distribution<double> logarithm(std::log(300.0), std::log(1e9));
  for (int i = 0; i < 2000; ++i) {
    const auto rows = static_cast<int64_t>(std::exp(logarithm(random)));
    const auto edges = static_cast<int64_t>(std::exp(logarithm(random)));
    const HopCounts need = with_padding(counts({rows, 0}, {edges}));
    const HopCounts capacity = grown(need, {});
    CHECK(fits(need, capacity));
    CHECK(capacity.rows[0] <= 1.03 * rows + 8);
    CHECK(capacity.edges[0] <= (edges >= 4096 ? 1.12 : 1.31) * edges + 8);
    CHECK_EQUAL(capacity.rows[0] % 8, 0);
    CHECK_EQUAL(capacity.edges[0] % 8, 0);
  }
}

TEST(counts_that_fluctuate_settle) {
  std::mt19937_64 random(std::random_device{}());
  std::normal_distribution<double> noise(0, 0.02);
  const std::vector<double> mean = {1000, 800, 600, 50000, 40000};  // three hops of rows, two of edges
  HopCounts capacity;
  int changes = 0;
  for (int step = 0; step < 5000; ++step) {
    std::vector<int64_t> now;
    for (const double value : mean) now.push_back(std::llround(value * (1 + noise(random))));
    const HopCounts need = with_padding(counts({now[0], now[1], now[2]}, {now[3], now[4]}));
    if (fits(need, capacity) && !is_wasteful(need, capacity)) continue;
    capacity = grown(need, capacity);
    ++changes;
  }
  CHECK(changes >= 1);
  CHECK(changes <= 12);
}

// A box that grows by 30 % in each direction, so by a factor of 2.2, and shrinks again, three times, on several ranks.
TEST(a_changing_box_needs_few_capacities) {
  const std::vector<double> mean = {1000, 800, 600, 50000, 40000};
  HopCounts capacity;
  int changes = 0;
  for (int step = 0; step <= 600; ++step) {
    const double stretch = 1.15 - 0.15 * std::cos(step * std::acos(-1.0) / 100);
    const double density = std::pow(stretch, -3);
    std::vector<int64_t> now;
    for (const double value : mean) now.push_back(std::llround(value * density));
    const HopCounts need = with_padding(counts({1000, now[1], now[2]}, {now[3], now[4]}));
    if (fits(need, capacity) && !is_wasteful(need, capacity)) continue;
    capacity = grown(need, capacity);
    ++changes;
  }
  CHECK(changes >= 2);
  CHECK(changes <= 18);
}

TEST(a_change_is_never_asked_for_twice) {
  std::mt19937_64 random(std::random_device{}());
  for (int i = 0; i < 20000; ++i) {
    std::vector<int64_t> rows, edges;
    const int layers = 1 + static_cast<int>(random() % SMD_MAX_LAYERS);
    const auto some = [&] { return static_cast<int64_t>(random() % (int64_t{1} << (1 + random() % 20))); };
    for (int hop = 0; hop <= layers; ++hop) rows.push_back(random() % 4 ? some() : 0);
    for (int hop = 0; hop < layers; ++hop) edges.push_back(rows[hop] ? some() : 0);
    HopCounts last;
    last.layers = layers;
    for (int hop = 0; hop <= layers; ++hop) last.rows[hop] = some();
    for (int hop = 0; hop < layers; ++hop) last.edges[hop] = some();
    const HopCounts need = with_padding(counts(rows, edges));
    const HopCounts capacity = grown(need, last);
    CHECK(fits(need, capacity));
    CHECK(!is_wasteful(need, capacity));
  }
}

TEST(shrinks_when_the_need_does) {
  const HopCounts large = grown(with_padding(counts({10000, 0}, {500000})), {});
  const HopCounts need = with_padding(counts({5000, 0}, {250000}));
  CHECK(is_wasteful(need, large));
  CHECK(grown(need, large).edges[0] <= 1.31 * 250000);
  CHECK(!is_wasteful(with_padding(counts({8000, 0}, {400000})), large));
}

TEST(sizes_that_are_refused) {
  CHECK_CONTAINS(complaint({-1, 0}, {0}), "nodes[0] is negative (-1)");
  CHECK_CONTAINS(complaint({1, 0}, {-7}), "edges[0] is negative (-7)");
  CHECK_CONTAINS(complaint({0, 0}, {5}), "hop 0 has 5 edges but no nodes");
  CHECK_CONTAINS(complaint({10, 0, 3}, {5, 2}), "hop 1 has 2 edges but no nodes");
  CHECK_CONTAINS(complaint({10, 0}, {int64_t{1} << 31}), "edges[0] is 2147483648, more than 2^31 - 1");
  CHECK_CONTAINS(complaint({10, INT64_MAX}, {1}), "nodes[1] is 9223372036854775807, more than 2^31 - 1");
  CHECK_CONTAINS(complaint({10, 10, 0}, {1500000000, 1500000000}), "edges with padding are more than 2^31 - 1");
  CHECK_CONTAINS(complaint({INT32_MAX, 0}, {1}), "rows with padding are more than 2^31 - 1");
  CHECK_EQUAL(complaint({10, 0}, {2000000000}), "no complaint");
}

CHECK_MAIN
