// SPDX-License-Identifier: GPL-2.0-or-later
#include "breakdown.h"

#include <algorithm>

#include "fmt/format.h"

namespace stablemd {

namespace {

constexpr std::array<const char *, Breakdown::PHASES> names{"Graph", "Program", "Forces", "Comm", "Library", "Compile"};

template <std::size_t n>
std::array<double, n> reduced(MPI_Comm world, std::array<double, n> mine, MPI_Op operation) {
  std::array<double, n> result{};
  MPI_Allreduce(mine.data(), result.data(), static_cast<int>(n), MPI_DOUBLE, operation, world);
  return result;
}

double percent(double part, double whole) { return whole > 0.0 ? 100.0 * part / whole : 0.0; }

}  // namespace

std::string Breakdown::report(MPI_Comm world, const smd_model_stats &now) {
  int ranks = 1;
  MPI_Comm_size(world, &ranks);
  const std::string text = table(world, complete(now), ranks) + counts(world, now, ranks);
  start_over(now);
  return text;
}

void Breakdown::start_over(const smd_model_stats &now) {
  seconds_.fill(0.0);
  reported_ = now;
}

// The library knows how long the program ran and the compiler took; the rest of the time inside it is its own.
Breakdown::Seconds Breakdown::complete(const smd_model_stats &now) const {
  Seconds mine = seconds_;
  mine[PROGRAM] = now.execute_seconds - reported_.execute_seconds;
  mine[COMPILE] = now.compile_seconds - reported_.compile_seconds;
  mine[LIBRARY] = std::max(0.0, mine[LIBRARY] - mine[PROGRAM] - mine[COMPILE]);
  return mine;
}

std::string Breakdown::table(MPI_Comm world, const Seconds &mine, int ranks) const {
  const Seconds low = reduced(world, mine, MPI_MIN);
  const Seconds high = reduced(world, mine, MPI_MAX);
  Seconds mean = reduced(world, mine, MPI_SUM);
  for (double &value : mean) value /= ranks;
  double total = 0.0;
  for (double value : mean) total += value;

  std::string text =
      "\nPair style stablemd timing breakdown:\n"
      "Section |  min time  |  avg time  |  max time  | %total\n"
      "-------------------------------------------------------\n";
  for (int phase = 0; phase < PHASES; ++phase)
    text += fmt::format("{:<8}| {:<10.4g} | {:<10.4g} | {:<10.4g} |{:6.2f}\n", names[phase], low[phase], mean[phase],
                        high[phase], percent(mean[phase], total));
  const double outside = mean[GRAPH] + mean[FORCES] + mean[LIBRARY];
  text += fmt::format("Outside the program (Graph, Forces, Library): {:.2f} % of the time without Comm and Compile\n",
                      percent(outside, outside + mean[PROGRAM]));
  return text;
}

std::string Breakdown::counts(MPI_Comm world, const smd_model_stats &now, int ranks) const {
  const std::array<double, 4> mine{static_cast<double>(now.evaluations - reported_.evaluations),
                                   static_cast<double>(now.compilations - reported_.compilations),
                                   static_cast<double>(now.cache_hits - reported_.cache_hits),
                                   static_cast<double>(now.capacity_changes - reported_.capacity_changes)};
  const auto sum = reduced(world, mine, MPI_SUM);
  const auto high = reduced(world, mine, MPI_MAX);
  return fmt::format(
      "Evaluations: {:.0f}, compilations: {:.0f}, programs from the cache: {:.0f}, capacity changes: {:.0f}{}\n",
      high[0], sum[1], sum[2], sum[3],
      ranks > 1 ? fmt::format(" (sums over {} ranks, evaluations of one)", ranks) : "");
}

}  // namespace stablemd
