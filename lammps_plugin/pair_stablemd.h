// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "breakdown.h"
#include "forces.h"
#include "graph.h"
#include "pair.h"
#include "stablemd.h"

namespace LAMMPS_NS {

/// pair_style stablemd [device cpu|cuda] [plugin PATH] [threads N] [decomposition fold|ghost]
/// pair_coeff * * FILE El1 El2 ...
///
/// Evaluates an exported model on the graph of the atoms around this rank; see docs/pair_style.md.
class PairStableMD : public Pair {
 public:
  explicit PairStableMD(LAMMPS *lmp);
  ~PairStableMD() override;

  void settings(int narg, char **arg) override;
  void coeff(int narg, char **arg) override;
  void init_style() override;
  double init_one(int i, int j) override;
  void compute(int eflag, int vflag) override;
  void finish() override;
  double memory_usage() override;

  int pack_forward_comm(int n, int *list, double *buffer, int pbc_flag, int *pbc) override;
  void unpack_forward_comm(int n, int first, double *buffer) override;
  int pack_reverse_comm(int n, int first, double *buffer) override;
  void unpack_reverse_comm(int n, int *list, double *buffer) override;

 private:
  /// Fold: one rank, a ghost is its owner's row. Ghost: several ranks, each has all atoms within `layers` cutoffs.
  enum class Decomposition { Fold, Ghost };

  struct Settings {
    std::string device = "cpu";
    std::string plugin;
    int threads = 0;
    Decomposition decomposition = Decomposition::Fold;
  };

  /// Rank that owns an atom and the atom's index there: the same for all images of one atom.
  struct Owner {
    int rank;
    int index;
  };

  template <class T, void (*destroy)(T *)>
  struct Destroy {
    void operator()(T *object) const { destroy(object); }
  };
  using Runtime = std::unique_ptr<smd_runtime, Destroy<smd_runtime, smd_runtime_destroy>>;
  using Model = std::unique_ptr<smd_model, Destroy<smd_model, smd_model_destroy>>;

  // settings
  Settings parse_settings(int narg, char **arg) const;
  Decomposition parse_decomposition(const std::string &word) const;
  void create_runtime();

  // coeff
  void allocate();
  void forget_elements();
  void load_model(const std::string &file);
  void set_units();
  void map_elements(int narg, char **arg);
  int species_of(const std::string &element) const;
  void report_model(const std::string &file) const;

  // init_style
  void check_special_bonds() const;
  void request_list();
  void require_ghosts();

  // compute
  void update_identities();
  std::vector<int> identities(int *count) const;
  void check_positions() const;
  void build_graph();
  void evaluate();
  void add_energies();
  template <class Real>
  void add_energies_as(const Real *node_energy);
  void scatter_forces();
  void add_to_atoms();
  void return_forces();
  void add_remote(int atom, const double *values);
  bool several_hops() const { return settings_.decomposition == Decomposition::Ghost && model_info_.layers > 1; }

  // errors of the library
  void check_everywhere(smd_status status) const;
  void check_here(smd_status status) const;
  void check_result(smd_status status) const;
  std::string here() const;
  static void log_line(smd_log_level level, const char *line, void *user);

  smd_model_stats stats() const;

  Settings settings_;
  Runtime runtime_;
  Model model_;  // after the runtime: destroyed before it
  smd_model_info model_info_{};
  double energy_scale_ = 1.0;         // LAMMPS' energy unit per model's
  std::vector<int> species_of_type_;  // [type], -1 for NULL
  double announced_cutoff_ = 0.0;

  std::vector<Owner> owners_;  // [atom]
  bigint lists_built_ = -1;    // step of the lists that identities belong to
  smd_graph layout_{};
  smd_result result_{};
  stablemd::Graph graph_;
  stablemd::EdgeForces edge_forces_;
  std::vector<double> remote_;  // [atom][remote_width_], forces and virials on their way to owners
  int remote_width_ = 3;

  stablemd::Breakdown breakdown_;
};

}  // namespace LAMMPS_NS
