// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "atom_values.h"
#include "breakdown.h"
#include "forces.h"
#include "graph.h"
#include "pair.h"
#include "stablemd.h"

namespace LAMMPS_NS {

/// pair_style stablemd [device cpu|cuda] [plugin PATH] [threads N] [decomposition fold|ghost] [atomic_energies yes|no]
///   [charge X] [spin X] [input NAME X]
/// pair_coeff * * FILE [FILE2 ...] El1 El2 ...
///
/// Evaluates an exported model, or the mean of several, on the graph of the atoms around this rank; see
/// docs/pair_style.md.
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
  void *extract(const char *name, int &dimensions) override;
  void *extract_peratom(const char *name, int &columns) override;

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
    bool atomic_energies = true;           // whether energies include those of single atoms
    std::map<std::string, double> inputs;  // of the whole structure, by name
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

  /// A model with what this simulation needs to know of it.
  struct Member {
    Model model;
    smd_model_info info{};
    double energy_scale = 1.0;         // LAMMPS' energy unit per model's
    std::vector<int> species_of_type;  // [type], -1 for NULL
    smd_graph layout{};
    smd_result result{};
  };

  // settings
  Settings parse_settings(int narg, char **arg) const;
  int parse_input(int narg, char **arg, std::map<std::string, double> &inputs) const;
  Decomposition parse_decomposition(const std::string &word) const;
  void create_runtime();

  // coeff
  void allocate();
  void forget_elements();
  std::string find_file(const char *word) const;
  void load_models(const std::vector<std::string> &files);
  Member load_model(const std::string &file) const;
  void check_same_everywhere(const std::string &file, const smd_model_info &info) const;
  void check_ensemble(const std::vector<std::string> &files) const;
  double energy_scale(const smd_model_info &info) const;
  void map_elements(int narg, char **arg);
  std::vector<int> species_of_types(const smd_model_info &info, char **arg) const;
  int species_of(const smd_model_info &info, const std::string &element) const;
  void configure_outputs();
  std::string inputs_in_use() const;
  void report_models(const std::vector<std::string> &files) const;

  // init_style
  void warn_of_doubtful_results();
  void request_list();
  void require_ghosts();

  // compute
  void update_atoms();
  std::vector<int> identities(int *count) const;
  void check_positions() const;
  void build_graph();
  void start_sums();
  void add_member(int number);
  void evaluate(Member &member);
  void add_energies(const Member &member, int number);
  template <class Real>
  void add_energies_as(const Member &member, int number, const Real *node_energy);
  template <class Real>
  void add_outputs_as(const Member &member, int number, const void *const *outputs);
  void scatter_forces(const Member &member);
  void add_to_atoms(const Member &member);
  void add_force(int atom, const double *force_of_member);
  void return_forces(const Member &member);
  void add_remote(int atom, const double *values);
  void finish_ensemble();

  const smd_model_info &info() const { return members_.front().info; }  // what is the same for all models
  bool is_ensemble() const { return members_.size() > 1; }
  double weight() const { return 1.0 / static_cast<double>(members_.size()); }
  bool several_hops() const { return settings_.decomposition == Decomposition::Ghost && info().layers > 1; }

  // errors of the library
  void check_everywhere(smd_status status) const;
  void check_here(smd_status status) const;
  void check_result(smd_status status) const;
  std::string here() const;
  static void log_line(smd_log_level level, const char *line, void *user);

  smd_model_stats stats() const;

  Settings settings_;
  Runtime runtime_;
  std::vector<Member> members_;  // after the runtime: destroyed before it; more than one: an ensemble
  bool mapped_ = false;          // whether atom types have elements
  double announced_cutoff_ = 0.0;

  std::vector<Owner> owners_;  // [atom]
  std::vector<int> present_;   // owned atoms that are not excluded from everything
  bigint lists_built_ = -1;    // step of the lists that these belong to
  stablemd::Graph graph_;
  stablemd::EdgeForces edge_forces_;
  std::vector<double> remote_;  // [atom][remote_width_], forces and virials on their way to owners
  int remote_width_ = 3;

  stablemd::AtomValues values_;
  std::set<std::string> missing_;             // names that were asked for in vain
  std::set<std::string> warned_;              // doubts that were told
  std::vector<double> member_forces_;         // [atom][3] of the model at work, in an ensemble
  std::vector<double> member_energies_;       // [model] sums over this rank's atoms, in an ensemble
  std::array<double, 3> ensemble_summary_{};  // largest and mean spread of forces, spread of the energy
  int always_ = 1;                            // what `fix pair` sets where it wants a value on this step

  stablemd::Breakdown breakdown_;
};

}  // namespace LAMMPS_NS
