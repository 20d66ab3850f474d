// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <array>
#include <chrono>
#include <string>

#include "mpi_flavour.h"
#include "stablemd.h"

namespace stablemd {

/// Where the pair style's time goes, reported at the end of each run in the manner of LAMMPS' own breakdown.
class Breakdown {
 public:
  enum Phase {
    GRAPH,    ///< rows and edges from neighbour lists, written into the library's arrays
    PROGRAM,  ///< inside the compiled program
    FORCES,   ///< gradients of edges to forces, energies and virials of atoms
    COMM,     ///< exchange of atom identities and forces between ranks, with waiting for slower ranks
    LIBRARY,  ///< the library's own work around the program
    COMPILE,  ///< compiling programs, or loading them from the cache
    PHASES
  };

  void add(Phase phase, double seconds) { seconds_[phase] += seconds; }

  /// Evaluations since the last report.
  long evaluations(const smd_model_stats &now) const { return now.evaluations - reported_.evaluations; }

  /// Text of the report since the last one, the same on all ranks. Collective.
  std::string report(MPI_Comm world, const smd_model_stats &now);

 private:
  using Seconds = std::array<double, PHASES>;

  void start_over(const smd_model_stats &now);
  std::string table(MPI_Comm world, const Seconds &mine, int ranks) const;
  std::string counts(MPI_Comm world, const smd_model_stats &now, int ranks) const;
  Seconds complete(const smd_model_stats &now) const;

  Seconds seconds_{};  // LIBRARY: all time inside the library
  smd_model_stats reported_{};
};

/// Adds the time of its life to a phase.
class Stopwatch {
 public:
  Stopwatch(Breakdown &breakdown, Breakdown::Phase phase)
      : breakdown_(breakdown), phase_(phase), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() {
    breakdown_.add(phase_, std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
  }
  Stopwatch(const Stopwatch &) = delete;
  Stopwatch &operator=(const Stopwatch &) = delete;

 private:
  Breakdown &breakdown_;
  Breakdown::Phase phase_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace stablemd
