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
    grown(with_padding(counts(rows, edges)), {}, Pace::unknown);
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
    const HopCounts capacity = grown(need, {}, Pace::unknown);
    CHECK(fits(need, capacity));
    CHECK(capacity.rows[0] <= 1.03 * rows + 8);
    CHECK(capacity.edges[0] <= (edges >= 4096 ? 1.12 : 1.31) * edges + 8);
    CHECK_EQUAL(capacity.rows[0] % 8, 0);
    CHECK_EQUAL(capacity.edges[0] % 8, 0);
  }
}

namespace {

/// Changes of capacity over a series of graphs, whose capacity is checked each time.
int changes_over(CapacityKeeper &keeper, const std::vector<HopCounts> &needs) {
  int changes = 0;
  for (const HopCounts &need : needs) {
    if (keeper.judge(need) == CapacityKeeper::Verdict::change) {
      keeper.changed(need, keeper.next(need));
      ++changes;
    }
    CHECK(fits(need, keeper.capacity()));
  }
  return changes;
}

/// Three hops of rows, two of edges; the counts of all but the owned rows times a factor.
HopCounts scaled_need(double factor) {
  const auto times = [&](double count) { return std::llround(count * factor); };
  return with_padding(counts({1000, times(800), times(600)}, {times(50000), times(40000)}));
}

/// A box stretched from 1 to `most` in each direction and back, `times` times in a number of steps each.
std::vector<HopCounts> breathing(double least, double most, int times, int steps) {
  std::vector<HopCounts> needs;
  for (int step = 0; step <= times * steps; ++step) {
    const double phase = std::cos(step * 2 * std::acos(-1.0) / steps);
    const double stretch = (most + least) / 2 - (most - least) / 2 * phase;
    needs.push_back(scaled_need(std::pow(stretch, -3)));
  }
  return needs;
}

}  // namespace

TEST(counts_that_fluctuate_settle) {
  std::mt19937_64 random(std::random_device{}());
  std::normal_distribution<double> noise(0, 0.02);
  std::vector<HopCounts> needs;
  for (int step = 0; step < 5000; ++step) {
    const auto around = [&](double mean) { return std::llround(mean * (1 + noise(random))); };
    needs.push_back(with_padding(counts({around(1000), around(800), around(600)}, {around(50000), around(40000)})));
  }
  CapacityKeeper keeper;
  const int changes = changes_over(keeper, needs);
  CHECK(changes >= 1);
  CHECK(changes <= 6);
  CHECK(keeper.capacity().all_edges() <= 1.45 * 90000);
}

// The first swing meets all capacities: a factor of 2.2 in density takes a few, and the swings after it none.
TEST(a_breathing_box_needs_few_capacities) {
  for (const int steps : {100, 200, 300}) {
    CapacityKeeper keeper;
    const int first = changes_over(keeper, breathing(1, 1.3, 1, steps));
    CHECK(first >= 1);
    CHECK(first <= 4);
  }
}

// From stretched to compressed and back, a factor of 6.4 in density: about one for each factor of 1.4 of growth.
TEST(a_box_that_changes_at_once_needs_few_capacities) {
  CapacityKeeper keeper;
  changes_over(keeper, {scaled_need(1)});
  CHECK(changes_over(keeper, breathing(0.7, 1.3, 1, 100)) <= 7);
}

// Padding may cost about as much as the compilation that would end it, so twice as much as one would pay who knew.
TEST(a_graph_that_stays_small_gets_a_smaller_capacity) {
  for (const double factor : {0.7, 0.5, 0.1, 0.001}) {
    CapacityKeeper keeper;
    changes_over(keeper, {scaled_need(1)});
    const int64_t large = keeper.capacity().all_edges();
    const HopCounts need = scaled_need(factor);
    const double waste = static_cast<double>(large) / static_cast<double>(need.all_edges()) - 1;
    const auto patience = static_cast<size_t>(100 / (waste - 0.31)) + 2;
    if (factor > 0.01) CHECK_EQUAL(changes_over(keeper, std::vector<HopCounts>(patience / 2, need)), 0);
    CHECK_EQUAL(changes_over(keeper, std::vector<HopCounts>(patience, need)), 1);
    CHECK(keeper.capacity().all_edges() <= 1.31 * need.all_edges() + 16);
    CHECK_EQUAL(changes_over(keeper, std::vector<HopCounts>(10000, need)), 0);
  }
}

// After a quick expansion the padding that it was given goes away again.
TEST(padding_for_quick_growth_does_not_stay) {
  CapacityKeeper keeper;
  std::vector<HopCounts> needs;
  for (int step = 0; step <= 60; ++step) needs.push_back(scaled_need(1 + step / 20.0));
  CHECK(changes_over(keeper, needs) <= 6);
  changes_over(keeper, std::vector<HopCounts>(5000, needs.back()));
  CHECK(keeper.capacity().all_edges() <= 1.31 * needs.back().all_edges());
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
    for (const Pace pace : {Pace::unknown, Pace::moving, Pace::racing}) {
      const HopCounts capacity = grown(need, last, pace);
      CHECK(fits(need, capacity));
      CHECK(!is_wasteful(need, capacity));
    }
  }
}

TEST(a_smaller_program_takes_over_where_it_is_free) {
  CapacityKeeper keeper;
  changes_over(keeper, {scaled_need(1)});
  CHECK(keeper.judge(scaled_need(0.5)) == CapacityKeeper::Verdict::change_if_free);
  CHECK(keeper.next(scaled_need(0.5)).all_edges() <= 1.31 * 45000);
  CHECK(keeper.judge(scaled_need(0.8)) == CapacityKeeper::Verdict::keep);
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
