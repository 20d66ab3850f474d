// SPDX-License-Identifier: GPL-2.0-or-later
#include "pair_stablemd.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "atom.h"
#include "comm.h"
#include "cores.h"
#include "error.h"
#include "exclusion.h"
#include "fmt/format.h"
#include "force.h"
#include "memory.h"
#include "neigh_list.h"
#include "neighbor.h"
#include "restrictions.h"
#include "universe.h"
#include "update.h"
#include "utils.h"

using namespace LAMMPS_NS;
using stablemd::Breakdown;
using stablemd::Stopwatch;

namespace {

constexpr int FORCE_WIDTH = 3;
constexpr int VIRIAL_WIDTH = 6;
constexpr int CENTROID_WIDTH = 9;

template <class Struct>
Struct sized() {
  Struct result{};
  result.struct_size = sizeof(Struct);
  return result;
}

// What models of an ensemble must have in common, as the ASE calculator words it.
std::string range_text(const smd_model_info &info) {
  return fmt::format("{:.10g} {} and {}", info.cutoff, info.length_unit, info.layers);
}

std::string outputs_text(const smd_model_info &info) {
  std::string all;
  for (int n = 0; n < info.output_count; ++n) {
    const std::string unit = info.output_units[n];
    all += fmt::format("{}{} [{}]{}", n > 0 ? ", " : "", info.output_names[n], info.output_widths[n],
                       unit.empty() ? "" : " " + unit);
  }
  return all.empty() ? "none" : all;
}

std::string allowed_text(const smd_model_info &info, int input) {
  const double low = info.input_minima[input], high = info.input_maxima[input];
  std::string range = info.input_integer[input] != 0 ? "a whole number" : "a finite number";
  if (std::isfinite(low) && std::isfinite(high)) return range + fmt::format(" from {:.10g} to {:.10g}", low, high);
  if (std::isfinite(low)) return range + fmt::format(", at least {:.10g}", low);
  return std::isfinite(high) ? range + fmt::format(", at most {:.10g}", high) : range;
}

std::string inputs_text(const smd_model_info &info) {
  std::string all;
  for (int n = 0; n < info.input_count; ++n)
    all += fmt::format("{}{} {:.10g} ({})", n > 0 ? "; " : "", info.input_names[n], info.input_defaults[n],
                       allowed_text(info, n));
  return all.empty() ? "none" : all;
}

}  // namespace

PairStableMD::PairStableMD(LAMMPS *lmp) : Pair(lmp) {
  single_enable = 0;
  restartinfo = 0;
  one_coeff = 1;
  manybody_flag = 1;
  centroidstressflag = CENTROID_NOTAVAIL;
  no_virial_fdotr_compute = 1;  // the virial is summed over edges
  unit_convert_flag = utils::get_supported_conversions(utils::ENERGY);
  comm_forward = 2;
  comm_reverse = comm_reverse_off = FORCE_WIDTH + VIRIAL_WIDTH + CENTROID_WIDTH;
}

PairStableMD::~PairStableMD() {
  // where a hybrid style did not call finish(); no communication here, other ranks may be gone
  if (!members_.empty() && comm->me == 0 && breakdown_.evaluations(stats()) > 0)
    utils::logmesg(lmp, breakdown_.report(MPI_COMM_SELF, stats()));
  if (copymode || !allocated) return;
  memory->destroy(setflag);
  memory->destroy(cutsq);
  memory->destroy(cutghost);
}

// ---- settings -------------------------------------------------------------------------------------------------------

void PairStableMD::settings(int narg, char **arg) {
  settings_ = parse_settings(narg, arg);
  ghostneigh = settings_.decomposition == Decomposition::Ghost ? 1 : 0;
  members_.clear();
  runtime_.reset();
  if (allocated) forget_elements();
  create_runtime();
}

PairStableMD::Settings PairStableMD::parse_settings(int narg, char **arg) const {
  Settings result;
  result.decomposition = comm->nprocs == 1 ? Decomposition::Fold : Decomposition::Ghost;
  for (int n = 0; n < narg; n += 2) {
    const int words_of_input = parse_input(narg - n, arg + n, result.inputs);
    if (words_of_input > 0) {
      n += words_of_input - 2;
      continue;
    }
    const std::string keyword = arg[n];
    if (keyword != "device" && keyword != "plugin" && keyword != "threads" && keyword != "decomposition" &&
        keyword != "atomic_energies")
      error->all(FLERR,
                 "pair_style stablemd: unknown keyword '" + keyword +
                     "'; it takes device, plugin, threads, decomposition, atomic_energies, charge, spin and input");
    if (n + 1 == narg) error->all(FLERR, "pair_style stablemd: a value is missing after '" + keyword + "'");
    const std::string value = arg[n + 1];
    if (keyword == "device") {
      if (value != "cpu" && value != "cuda")
        error->all(FLERR, "pair_style stablemd: unknown device '" + value + "'; use cpu or cuda");
      result.device = value;
    } else if (keyword == "plugin") {
      result.plugin = value;
    } else if (keyword == "threads") {
      result.threads = utils::inumeric(FLERR, value, false, lmp);
      if (result.threads < 1) error->all(FLERR, "pair_style stablemd: threads must be at least 1, not " + value);
    } else if (keyword == "atomic_energies") {
      result.atomic_energies = utils::logical(FLERR, value, false, lmp) != 0;
    } else {
      result.decomposition = parse_decomposition(value);
    }
  }
  return result;
}

// `charge X`, `spin X` or `input NAME X`: what the model takes of the whole structure. Returns the number of words, 0
// for another keyword.
int PairStableMD::parse_input(int narg, char **arg, std::map<std::string, double> &inputs) const {
  const std::string keyword = arg[0];
  if (keyword != "charge" && keyword != "spin" && keyword != "input") return 0;
  const int words = keyword == "input" ? 3 : 2;
  if (narg < words)
    error->all(FLERR, "pair_style stablemd: " + std::string(words == 3 ? "a name and " : "") + "a value must follow '" +
                          keyword + "'");
  inputs[arg[words - 2]] = utils::numeric(FLERR, arg[words - 1], false, lmp);
  return words;
}

PairStableMD::Decomposition PairStableMD::parse_decomposition(const std::string &word) const {
  if (word == "ghost") return Decomposition::Ghost;
  if (word != "fold") error->all(FLERR, "pair_style stablemd: unknown decomposition '" + word + "'; use fold or ghost");
  if (comm->nprocs > 1)
    error->all(FLERR,
               fmt::format("pair_style stablemd: decomposition fold needs one rank and this run has {}; use ghost",
                           comm->nprocs));
  return Decomposition::Fold;
}

void PairStableMD::create_runtime() {
  auto options = sized<smd_runtime_options>();
  options.device = settings_.device.c_str();
  options.plugin = settings_.plugin.empty() ? nullptr : settings_.plugin.c_str();
  options.threads = settings_.threads > 0 ? settings_.threads : stablemd::cores_per_rank(world, universe->nprocs);
  options.log = log_line;
  options.log_user = lmp;
  smd_runtime *created = nullptr;
  const smd_status status = smd_runtime_create(&options, &created);
  runtime_.reset(created);
  check_everywhere(status);
}

// ---- coeff ----------------------------------------------------------------------------------------------------------

// Files come first: the first word in any case, then all that look like one, with a dot or a slash in it.
void PairStableMD::coeff(int narg, char **arg) {
  if (narg < 4 || std::strcmp(arg[0], "*") != 0 || std::strcmp(arg[1], "*") != 0)
    error->all(FLERR, "pair_style stablemd: use pair_coeff * * FILE and one chemical symbol per atom type");
  if (!runtime_)
    error->all(FLERR, "pair_style stablemd: the last pair_style stablemd command failed; repeat it before pair_coeff");
  if (!allocated) allocate();
  forget_elements();
  int first_symbol = 3;
  while (first_symbol < narg && std::strpbrk(arg[first_symbol], "./") != nullptr) ++first_symbol;
  std::vector<std::string> files;
  for (int n = 2; n < first_symbol; ++n) files.push_back(find_file(arg[n]));
  load_models(files);
  map_elements(narg - first_symbol, arg + first_symbol);
  configure_outputs();
  graph_.configure(info().layers, info().cutoff);
  centroidstressflag = info().layers == 1 ? CENTROID_AVAIL : CENTROID_NOTAVAIL;
  lists_built_ = -1;
  report_models(files);
}

// One rank looks for the file and all take its answer: hosts may differ in what they hold.
std::string PairStableMD::find_file(const char *word) const {
  std::string found = comm->me == 0 ? utils::get_potential_file_path(word) : "";
  int length = static_cast<int>(found.size());
  MPI_Bcast(&length, 1, MPI_INT, 0, world);
  if (length == 0 && std::strpbrk(word, "./") == nullptr)
    error->all(FLERR, std::string("pair_style stablemd: there is no file ") + word +
                          "; use pair_coeff * * FILE and one chemical symbol per atom type");
  if (length == 0) return word;
  found.resize(length);
  MPI_Bcast(&found[0], length, MPI_CHAR, 0, world);
  return found;
}

// What follows may fail, and where LAMMPS is a library the caller may go on: then no types are mapped.
void PairStableMD::forget_elements() {
  mapped_ = false;
  std::fill_n(&setflag[0][0], (atom->ntypes + 1) * (atom->ntypes + 1), 0);
}

void PairStableMD::allocate() {
  allocated = 1;
  const int n = atom->ntypes + 1;
  memory->create(setflag, n, n, "pair:setflag");
  memory->create(cutsq, n, n, "pair:cutsq");
  memory->create(cutghost, n, n, "pair:cutghost");
  std::fill_n(&setflag[0][0], n * n, 0);
}

void PairStableMD::load_models(const std::vector<std::string> &files) {
  members_.clear();
  breakdown_ = Breakdown();
  std::vector<Member> loaded;
  for (const std::string &file : files) loaded.push_back(load_model(file));
  members_ = std::move(loaded);
  check_ensemble(files);
}

PairStableMD::Member PairStableMD::load_model(const std::string &file) const {
  Member member;
  smd_model *loaded = nullptr;
  const smd_status status = smd_model_load(runtime_.get(), file.c_str(), &loaded);
  member.model.reset(loaded);
  check_everywhere(status);
  member.info = sized<smd_model_info>();
  check_everywhere(smd_model_get_info(member.model.get(), &member.info));
  check_same_everywhere(file, member.info);
  for (const auto &[name, value] : settings_.inputs)
    check_everywhere(smd_model_set_input(member.model.get(), name.c_str(), value));
  member.energy_scale = energy_scale(member.info);
  return member;
}

// The manifest holds the file's checksum. From here on all ranks decide alike what they find in it.
void PairStableMD::check_same_everywhere(const std::string &file, const smd_model_info &info) const {
  const std::uint64_t hash = std::hash<std::string>()(info.manifest);
  const int low = static_cast<int>(hash & 0x7fffffff), high = static_cast<int>(hash >> 32 & 0x7fffffff);
  int mine[] = {low, -low, high, -high}, least[4];
  MPI_Allreduce(mine, least, 4, MPI_INT, MPI_MIN, world);
  if (least[0] != -least[1] || least[2] != -least[3])
    error->all(FLERR, "pair_style stablemd: ranks find different files as " + file +
                          ": copy the same one to all hosts, or put it where all see it");
}

// One graph serves all models, and each output is averaged.
void PairStableMD::check_ensemble(const std::vector<std::string> &files) const {
  for (std::size_t n = 1; n < files.size(); ++n) {
    const smd_model_info &one = info(), &other = members_[n].info;
    const auto require_same = [&](const char *kind, const std::string &first, const std::string &second) {
      if (first != second)
        error->all(FLERR, fmt::format("pair_coeff: models of an ensemble must have the same {}: {} has {}, {} has {}",
                                      kind, files[0], first, files[n], second));
    };
    require_same("cutoff and layers", range_text(one), range_text(other));
    require_same("extra outputs", outputs_text(one), outputs_text(other));
    require_same("inputs of the whole structure", inputs_text(one), inputs_text(other));
  }
}

// LAMMPS' own constants, so that temperature and energy stay consistent.
double PairStableMD::energy_scale(const smd_model_info &info) const {
  const std::string engine = update->unit_style, energy = info.energy_unit, length = info.length_unit;
  if (engine != "metal" && engine != "real")
    error->all(FLERR, "pair_style stablemd: units " + engine + " is not supported; use units metal or units real");
  if (length != "Angstrom" || (energy != "eV" && energy != "kcal/mol"))
    error->all(FLERR, "pair_style stablemd: the model's units " + energy + " and " + length +
                          " are not supported; export it in eV (or kcal/mol) and Angstrom");
  if (engine == "real" && energy == "eV") return utils::get_conversion_factor(utils::ENERGY, utils::METAL2REAL);
  if (engine == "metal" && energy == "kcal/mol") return utils::get_conversion_factor(utils::ENERGY, utils::REAL2METAL);
  return 1.0;
}

void PairStableMD::map_elements(int narg, char **arg) {
  if (narg != atom->ntypes)
    error->all(FLERR, fmt::format("pair_coeff: {} chemical symbol{} given for {} atom type{}; give one per type in the "
                                  "order of the types",
                                  narg, narg == 1 ? "" : "s", atom->ntypes, atom->ntypes == 1 ? "" : "s"));
  for (Member &member : members_) member.species_of_type = species_of_types(member.info, arg);
  const std::vector<int> &species = members_.front().species_of_type;
  for (int i = 1; i <= atom->ntypes; ++i)
    for (int j = 1; j <= atom->ntypes; ++j) setflag[i][j] = species[i] >= 0 && species[j] >= 0 ? 1 : 0;
  mapped_ = true;
}

std::vector<int> PairStableMD::species_of_types(const smd_model_info &info, char **arg) const {
  std::vector<int> species(atom->ntypes + 1, -1);
  for (int n = 0; n < atom->ntypes; ++n) species[n + 1] = species_of(info, arg[n]);
  return species;
}

int PairStableMD::species_of(const smd_model_info &info, const std::string &element) const {
  if (element == "NULL") {
    if (!utils::strmatch(force->pair_style, "^hybrid"))
      error->all(FLERR, "pair_coeff: NULL is for hybrid pair styles; give a chemical symbol for every atom type");
    return -1;
  }
  std::string known;
  for (int n = 0; n < info.element_count; ++n) {
    if (element == info.elements[n]) return n;
    known += std::string(n > 0 ? " " : "") + info.elements[n];
  }
  error->all(FLERR, "pair_coeff: the model does not know element '" + element + "'; it knows " + known);
}

// What `fix pair` and `compute pair` find.
void PairStableMD::configure_outputs() {
  std::vector<stablemd::AtomQuantity> outputs;
  for (int n = 0; n < info().output_count; ++n) outputs.emplace_back(info().output_names[n], info().output_widths[n]);
  values_.configure(std::move(outputs), static_cast<int>(members_.size()));
  values_.start(atom->nlocal);
  missing_.clear();
  nextra = is_ensemble() ? static_cast<int>(ensemble_summary_.size()) : 0;
  pvector = is_ensemble() ? ensemble_summary_.data() : nullptr;
}

std::string PairStableMD::inputs_in_use() const {
  std::string all;
  for (int n = 0; n < info().input_count; ++n) {
    const auto set = settings_.inputs.find(info().input_names[n]);
    all += fmt::format("{}{} {:.10g}{}", n > 0 ? ", " : "", info().input_names[n],
                       set != settings_.inputs.end() ? set->second : info().input_defaults[n],
                       set != settings_.inputs.end() ? "" : " (default)");
  }
  return all;
}

void PairStableMD::report_models(const std::vector<std::string> &files) const {
  if (comm->me != 0) return;
  auto runtime = sized<smd_runtime_info>();
  if (smd_runtime_get_info(runtime_.get(), &runtime) != SMD_OK) return;
  const bool fold = settings_.decomposition == Decomposition::Fold;
  for (std::size_t n = 0; n < files.size(); ++n) {
    const smd_model_info &one = members_[n].info;
    utils::logmesg(lmp, fmt::format("stablemd: {}: {}, cutoff {:g} {}, {} layer{}, decomposition {}\n", files[n],
                                    one.dtype == SMD_FLOAT64 ? "float64" : "float32", one.cutoff, one.length_unit,
                                    one.layers, one.layers == 1 ? "" : "s", fold ? "fold" : "ghost"));
  }
  if (info().input_count > 0) utils::logmesg(lmp, "stablemd: of the whole structure: " + inputs_in_use() + "\n");
  const std::string names = values_.names();
  if (is_ensemble())
    utils::logmesg(lmp, fmt::format("stablemd: an ensemble of {} models: forces are their mean\n", members_.size()));
  if (!names.empty()) utils::logmesg(lmp, "stablemd: values of each atom for fix pair: " + names + "\n");
  utils::logmesg(lmp, fmt::format("stablemd: platform {}, {} thread{} per rank, {}\n", runtime.platform,
                                  runtime.threads, runtime.threads == 1 ? "" : "s", runtime.plugin_path));
}

// ---- init -----------------------------------------------------------------------------------------------------------

void PairStableMD::init_style() {
  if (members_.empty() || !mapped_)
    error->all(FLERR, "pair_style stablemd: no model loaded; use pair_coeff * * FILE El1 El2 ...");
  stablemd::refuse_wrong_results(lmp, info());
  warn_of_doubtful_results();
  if (several_hops()) require_ghosts();
  request_list();
  lists_built_ = -1;
}

// Each doubt once: what led to it may stand for many runs.
void PairStableMD::warn_of_doubtful_results() {
  double largest = 0.0;
  for (const Member &member : members_)
    for (int n = 0; n < member.info.element_count; ++n)
      largest = std::max(largest, std::abs(member.energy_scale * member.info.atomic_energies[n]));
  for (const std::string &doubt : stablemd::doubts(lmp, settings_.atomic_energies ? largest : 0.0))
    if (warned_.insert(doubt).second && comm->me == 0) error->warning(FLERR, "pair_style stablemd: " + doubt);
}

void PairStableMD::request_list() {
  int flags = NeighConst::REQ_FULL;
  if (several_hops()) flags |= NeighConst::REQ_GHOST;
  neighbor->add_request(this, flags);
}

// A chain of `layers` edges reaches layers cutoffs; its ends may have moved by half a skin each since the lists were
// built.
void PairStableMD::require_ghosts() {
  if (comm->mode != Comm::SINGLE)
    error->all(FLERR, "pair_style stablemd: decomposition ghost needs comm_modify mode single");
  const double needed = info().layers * info().cutoff + neighbor->skin;
  comm->cutghostuser = std::max(comm->cutghostuser, needed);
  if (comm->me == 0 && announced_cutoff_ != needed)
    utils::logmesg(
        lmp, fmt::format("stablemd: communication cutoff set to {:g} for {} layers of cutoff {:g} and skin {:g}\n",
                         comm->cutghostuser, info().layers, info().cutoff, neighbor->skin));
  announced_cutoff_ = needed;
}

double PairStableMD::init_one(int i, int j) {
  if (setflag[i][j] == 0) error->all(FLERR, "pair_style stablemd: not all pair coefficients are set");
  cutghost[i][j] = cutghost[j][i] = info().cutoff;
  return info().cutoff;
}

// ---- compute --------------------------------------------------------------------------------------------------------

void PairStableMD::compute(int eflag, int vflag) {
  ev_init(eflag, vflag);
  if (neighbor->ago == 0 || neighbor->lastcall != lists_built_) update_atoms();
  build_graph();
  start_sums();
  for (std::size_t n = 0; n < members_.size(); ++n) add_member(static_cast<int>(n));
  if (is_ensemble()) finish_ensemble();
}

void PairStableMD::start_sums() {
  values_.start(atom->nlocal);
  member_energies_.assign(members_.size(), 0.0);
}

// Adds a model's share, which is all where there is but one.
void PairStableMD::add_member(int number) {
  Member &member = members_[number];
  if (is_ensemble()) member_forces_.assign(FORCE_WIDTH * static_cast<std::size_t>(atom->nlocal), 0.0);
  if (graph_.owned_rows() > 0) {
    evaluate(member);
    scatter_forces(member);
    add_energies(member, number);
  }
  if (settings_.decomposition == Decomposition::Ghost) return_forces(member);
  if (!is_ensemble()) return;
  for (int i = 0; i < atom->nlocal; ++i)
    values_.forces.add(number, i, &member_forces_[FORCE_WIDTH * static_cast<std::size_t>(i)]);
}

// Once per rebuild of the lists.
void PairStableMD::update_atoms() {
  stablemd::refuse_lists_without_bonds(lmp);
  owners_.resize(atom->nlocal + atom->nghost);
  for (int i = 0; i < atom->nlocal; ++i) owners_[i] = {comm->me, i};
  {
    const Stopwatch watch(breakdown_, Breakdown::COMM);
    comm->forward_comm(this);
  }
  const Stopwatch watch(breakdown_, Breakdown::GRAPH);
  int count = 0;
  std::vector<int> result = identities(&count);
  graph_.set_identities(std::move(result), count);
  present_ = stablemd::present_atoms(lmp, *list);
  lists_built_ = neighbor->lastcall;
}

// Owned atoms and their images are numbered as the owned atoms, other atoms as they come.
std::vector<int> PairStableMD::identities(int *count) const {
  std::vector<int> result(owners_.size());
  std::unordered_map<std::uint64_t, int> remote;
  *count = atom->nlocal;
  for (std::size_t n = 0; n < owners_.size(); ++n) {
    const Owner &owner = owners_[n];
    if (owner.rank == comm->me) {
      result[n] = owner.index;
      continue;
    }
    const auto key = static_cast<std::uint64_t>(owner.rank) << 32 | static_cast<std::uint32_t>(owner.index);
    const auto [entry, is_new] = remote.try_emplace(key, *count);
    result[n] = entry->second;
    if (is_new) ++*count;
  }
  return result;
}

int PairStableMD::pack_forward_comm(int n, int *list, double *buffer, int /*pbc_flag*/, int * /*pbc*/) {
  for (int k = 0; k < n; ++k) {
    buffer[2 * k] = owners_[list[k]].rank;
    buffer[2 * k + 1] = owners_[list[k]].index;
  }
  return 2 * n;
}

void PairStableMD::unpack_forward_comm(int n, int first, double *buffer) {
  for (int k = 0; k < n; ++k)
    owners_[first + k] = {static_cast<int>(buffer[2 * k]), static_cast<int>(buffer[2 * k + 1])};
}

// A comparison with the cutoff is false for NaN, so such an atom would lose its edges without a word.
void PairStableMD::check_positions() const {
  for (int i = 0; i < atom->nlocal; ++i) {
    const double *x = atom->x[i];
    if (!std::isfinite(x[0] + x[1] + x[2]))
      error->one(FLERR,
                 fmt::format("pair_style stablemd: the position of atom {} is not finite on step {}; the simulation "
                             "is unstable (time step, overlapping atoms, or input)",
                             atom->tag[i], update->ntimestep));
  }
}

void PairStableMD::build_graph() {
  const Stopwatch watch(breakdown_, Breakdown::GRAPH);
  check_positions();
  const auto count = static_cast<int>(present_.size());
  const stablemd::NeighbourLists lists{count, present_.data(), list->numneigh, list->firstneigh, NEIGHMASK};
  graph_.build(lists, count > 0 ? &atom->x[0][0] : nullptr);
}

void PairStableMD::evaluate(Member &member) {
  const smd_graph_size size = graph_.size();
  member.layout = sized<smd_graph>();
  {
    const Stopwatch watch(breakdown_, Breakdown::LIBRARY);
    check_here(smd_model_reserve(member.model.get(), &size, &member.layout));
  }
  {
    const Stopwatch watch(breakdown_, Breakdown::GRAPH);
    graph_.write(member.layout, member.info.dtype, atom->type, member.species_of_type);
  }
  const Stopwatch watch(breakdown_, Breakdown::LIBRARY);
  member.result = sized<smd_result>();
  check_result(smd_model_evaluate(member.model.get(), &member.result));
}

void PairStableMD::scatter_forces(const Member &member) {
  const Stopwatch watch(breakdown_, Breakdown::FORCES);
  edge_forces_.compute(graph_, member.layout, member.info.dtype, member.result.edge_gradient,
                       {vflag_global != 0, vflag_atom != 0, cvflag_atom != 0});
  add_to_atoms(member);
  if (vflag_global)
    for (int k = 0; k < VIRIAL_WIDTH; ++k) virial[k] += weight() * member.energy_scale * edge_forces_.virial()[k];
}

void PairStableMD::add_energies(const Member &member, int number) {
  const Stopwatch watch(breakdown_, Breakdown::FORCES);
  const auto add = [&](auto real) {
    using Real = decltype(real);
    if (eflag_either || is_ensemble())
      add_energies_as(member, number, static_cast<const Real *>(member.result.node_energy));
    add_outputs_as<Real>(member, number, member.result.outputs);
  };
  if (member.info.dtype == SMD_FLOAT64)
    add(double{});
  else
    add(float{});
}

template <class Real>
void PairStableMD::add_energies_as(const Member &member, int number, const Real *node_energy) {
  for (int64_t row = 0; row < graph_.owned_rows(); ++row) {
    const int i = graph_.atom_of_row(row);
    const int species = member.species_of_type[atom->type[i]];
    const double atomic = settings_.atomic_energies ? member.info.atomic_energies[species] : 0.0;
    const double energy = member.energy_scale * (atomic + static_cast<double>(node_energy[row]));
    if (eflag_global) eng_vdwl += weight() * energy;
    if (eflag_atom) eatom[i] += weight() * energy;
    if (!is_ensemble()) continue;
    values_.energies.add(number, i, &energy);
    member_energies_[number] += energy;
  }
}

template <class Real>
void PairStableMD::add_outputs_as(const Member &member, int number, const void *const *outputs) {
  std::vector<double> numbers;
  for (int n = 0; n < member.info.output_count; ++n) {
    const int width = member.info.output_widths[n];
    const Real *output = static_cast<const Real *>(outputs[n]);
    for (int64_t row = 0; row < graph_.owned_rows(); ++row) {
      numbers.assign(output + width * row, output + width * (row + 1));
      values_.outputs[n].add(number, graph_.atom_of_row(row), numbers.data());
    }
  }
}

void PairStableMD::add_to_atoms(const Member &member) {
  for (int64_t row = 0; row < graph_.owned_rows(); ++row) {
    const int i = graph_.atom_of_row(row);
    const double *g = edge_forces_.force(row);
    const double force_on_row[] = {member.energy_scale * g[0], member.energy_scale * g[1], member.energy_scale * g[2]};
    add_force(i, force_on_row);
    if (vflag_atom)
      for (int k = 0; k < VIRIAL_WIDTH; ++k)
        vatom[i][k] += weight() * member.energy_scale * edge_forces_.row_virial(row)[k];
    if (cvflag_atom)
      for (int k = 0; k < CENTROID_WIDTH; ++k)
        cvatom[i][k] += weight() * member.energy_scale * edge_forces_.centroid_virial(row)[k];
  }
}

void PairStableMD::add_force(int i, const double *force_of_member) {
  for (int k = 0; k < FORCE_WIDTH; ++k) atom->f[i][k] += weight() * force_of_member[k];
  if (!is_ensemble()) return;
  for (int k = 0; k < FORCE_WIDTH; ++k)
    member_forces_[FORCE_WIDTH * static_cast<std::size_t>(i) + k] += force_of_member[k];
}

// The pair's own communication, so that it does not matter whether LAMMPS returns the forces on ghosts (newton).
void PairStableMD::return_forces(const Member &member) {
  remote_width_ = FORCE_WIDTH + (vflag_atom ? VIRIAL_WIDTH : 0) + (cvflag_atom ? CENTROID_WIDTH : 0);
  remote_.assign(static_cast<std::size_t>(remote_width_) * (atom->nlocal + atom->nghost), 0.0);
  for (int64_t row = graph_.owned_rows(); row < graph_.row_count(); ++row) {
    double *values = &remote_[static_cast<std::size_t>(remote_width_) * graph_.atom_of_row(row)];
    const auto append = [&](const double *source, int width) {
      for (int k = 0; k < width; ++k) *values++ = member.energy_scale * source[k];
    };
    append(edge_forces_.force(row), FORCE_WIDTH);
    if (vflag_atom) append(edge_forces_.row_virial(row), VIRIAL_WIDTH);
    if (cvflag_atom) append(edge_forces_.centroid_virial(row), CENTROID_WIDTH);
  }
  const Stopwatch watch(breakdown_, Breakdown::COMM);
  comm->reverse_comm(this);  // sends what pack_reverse_comm() counts
  for (int i = 0; i < atom->nlocal; ++i) add_remote(i, &remote_[static_cast<std::size_t>(remote_width_) * i]);
}

void PairStableMD::add_remote(int i, const double *values) {
  add_force(i, values);
  values += FORCE_WIDTH;
  if (vflag_atom)
    for (int k = 0; k < VIRIAL_WIDTH; ++k) vatom[i][k] += weight() * *values++;
  if (cvflag_atom)
    for (int k = 0; k < CENTROID_WIDTH; ++k) cvatom[i][k] += weight() * *values++;
}

// The spread of forces is that of Zhang et al., Comput. Phys. Commun. 253, 107206 (2020), for which structures are
// chosen in active learning. LAMMPS adds up the ranks' vectors, so one of them brings all.
void PairStableMD::finish_ensemble() {
  values_.finish();
  if (!eflag_global) return;
  const double *spread = values_.forces.spread();
  double largest = 0.0, sum = 0.0;
  for (int i = 0; i < atom->nlocal; ++i) {
    largest = std::max(largest, spread[i]);
    sum += spread[i];
  }
  std::vector<double> mine = member_energies_, totals(members_.size() + 2);
  mine.insert(mine.end(), {sum, static_cast<double>(present_.size())});
  double largest_of_all = 0.0;
  MPI_Allreduce(&largest, &largest_of_all, 1, MPI_DOUBLE, MPI_MAX, world);
  MPI_Allreduce(mine.data(), totals.data(), static_cast<int>(mine.size()), MPI_DOUBLE, MPI_SUM, world);
  stablemd::AtomQuantity energy("energy", 1);
  energy.start(1);
  for (std::size_t n = 0; n < members_.size(); ++n) energy.add(static_cast<int>(n), 0, &totals[n]);
  energy.finish(static_cast<int>(members_.size()));
  ensemble_summary_ = {largest_of_all, totals[members_.size()] / std::max(totals.back(), 1.0), energy.spread()[0]};
  if (comm->me != 0) ensemble_summary_.fill(0.0);
}

int PairStableMD::pack_reverse_comm(int n, int first, double *buffer) {
  const int count = n * remote_width_;
  std::copy_n(remote_.begin() + static_cast<std::ptrdiff_t>(first) * remote_width_, count, buffer);
  return count;
}

// A ghost may have come from a ghost of the sender, which then passes the sum on.
void PairStableMD::unpack_reverse_comm(int n, int *list, double *buffer) {
  for (int k = 0; k < n; ++k)
    for (int m = 0; m < remote_width_; ++m)
      remote_[static_cast<std::size_t>(remote_width_) * list[k] + m] += buffer[k * remote_width_ + m];
}

// ---- reports and errors ---------------------------------------------------------------------------------------------

void PairStableMD::finish() {
  if (members_.empty()) return;
  const std::string text = breakdown_.report(world, stats());
  if (comm->me == 0) utils::logmesg(lmp, text);
}

// Models of an ensemble are evaluated, and change their capacity, all at once: that counts as one.
smd_model_stats PairStableMD::stats() const {
  auto total = sized<smd_model_stats>();
  for (const Member &member : members_) {
    auto one = sized<smd_model_stats>();
    smd_model_get_stats(member.model.get(), &one);
    total.evaluations = std::max(total.evaluations, one.evaluations);
    total.compilations += one.compilations;
    total.cache_hits += one.cache_hits;
    total.capacity_changes = std::max(total.capacity_changes, one.capacity_changes);
    total.compile_seconds += one.compile_seconds;
    total.execute_seconds += one.execute_seconds;
  }
  return total;
}

// `fix pair` asks with name_flag for an integer to set on the steps for which it wants values; they are there always.
void *PairStableMD::extract(const char *name, int &dimensions) {
  const std::string suffix = "_flag";
  std::string output = name;
  if (output.size() <= suffix.size() || output.compare(output.size() - suffix.size(), suffix.size(), suffix) != 0)
    return nullptr;
  output.resize(output.size() - suffix.size());
  dimensions = 0;
  return values_.find(output) ? &always_ : nullptr;
}

void *PairStableMD::extract_peratom(const char *name, int &columns) {
  columns = 0;
  if (double *found = values_.find(name)) return found;
  const std::string names = values_.names();
  const bool is_new = missing_.insert(name).second;  // `fix pair` asks when it is made and when a run begins
  if (comm->me == 0 && is_new)
    error->warning(FLERR, fmt::format("pair_style stablemd: there is no value '{}' of each atom; {}", name,
                                      names.empty() ? "the model has no extra outputs, and spreads need several models"
                                                    : "there is " + names));
  return nullptr;
}

double PairStableMD::memory_usage() {
  const double edges = static_cast<double>(graph_.edge_count());
  return Pair::memory_usage() + edges * (3 * sizeof(double) + sizeof(int)) +
         (remote_.size() + member_forces_.size()) * sizeof(double);
}

// For calls that every rank makes. Where all fail alike LAMMPS ends in order; where some do, they end the others too.
void PairStableMD::check_everywhere(smd_status status) const {
  int failed = status == SMD_OK ? 0 : 1, failures = 0;
  const std::string text = smd_last_error();
  MPI_Allreduce(&failed, &failures, 1, MPI_INT, MPI_SUM, world);
  if (failures == 0) return;
  if (failures == comm->nprocs) error->all(FLERR, "pair_style stablemd: " + text);
  if (failed) error->one(FLERR, "pair_style stablemd: " + text);
  MPI_Barrier(world);  // the rank that failed aborts this one
}

void PairStableMD::check_here(smd_status status) const {
  if (status != SMD_OK) error->one(FLERR, "pair_style stablemd: " + std::string(smd_last_error()) + here());
}

// Energies that are not finite come from atoms that are too close, mostly; the library knows rows, not atoms.
void PairStableMD::check_result(smd_status status) const {
  if (status != SMD_ERROR_EXECUTION) return check_here(status);
  const stablemd::ShortestEdge closest = graph_.shortest_edge();
  if (closest.centre < 0) return check_here(status);
  error->one(FLERR, fmt::format("pair_style stablemd: {}; the closest atoms are {} and {}, at {:.3g} {}{}",
                                smd_last_error(), atom->tag[closest.centre], atom->tag[closest.neighbour],
                                closest.length, info().length_unit, here()));
}

std::string PairStableMD::here() const { return fmt::format(" (step {}, rank {})", update->ntimestep, comm->me); }

void PairStableMD::log_line(smd_log_level level, const char *line, void *user) {
  auto *lmp = static_cast<LAMMPS *>(user);
  if (lmp->comm->me != 0) return;
  if (level == SMD_LOG_WARNING)
    lmp->error->warning(FLERR, std::string(line));
  else
    utils::logmesg(lmp, std::string(line) + "\n");
}
