// SPDX-License-Identifier: GPL-2.0-or-later
#include "restrictions.h"

#include <string>

#include "atom.h"
#include "compute.h"
#include "error.h"
#include "exclusion.h"
#include "fix.h"
#include "fmt/format.h"
#include "force.h"
#include "modify.h"
#include "neighbor.h"
#include "utils.h"

using LAMMPS_NS::Compute;
using LAMMPS_NS::LAMMPS;

namespace stablemd {

namespace {

[[noreturn]] void refuse(LAMMPS *lmp, const std::string &why) { lmp->error->all(FLERR, "pair_style stablemd: " + why); }

[[noreturn]] void refuse_bonds(LAMMPS *lmp) {
  refuse(lmp,
         fmt::format("the model must see bonded neighbours too, and atom_style {} can hold bonds; use special_bonds "
                     "lj/coul 1.0 1.0 1.0",
                     lmp->atom->atom_style));
}

// LAMMPS leaves bonded pairs out of neighbour lists where their factors are zero, which is the default. There may be no
// bonds yet: fixes make some, and bring molecules that have them.
void check_special_bonds(LAMMPS *lmp) {
  if (lmp->atom->molecular == LAMMPS_NS::Atom::ATOMIC) return;
  const LAMMPS_NS::Force &force = *lmp->force;
  for (int n = 1; n <= 3; ++n)
    if (force.special_lj[n] == 0.0 && force.special_coul[n] == 0.0) refuse_bonds(lmp);
}

// The computes say only by their order which stress a heat flux may use: one that was there before it.
void check_heat_flux(LAMMPS *lmp, const smd_model_info &model) {
  std::string plain;
  for (const Compute *compute : lmp->modify->get_compute_list()) {
    if (compute->pressatomflag == 1) plain = compute->id;
    if (!LAMMPS_NS::utils::strmatch(compute->style, "^heat/flux")) continue;
    if (model.layers > 1)
      refuse(lmp,
             fmt::format("compute {} {} would be wrong: in a model of {} layers an atom's energy depends on atoms "
                         "beyond its neighbours, which LAMMPS' formula leaves out; use fix thermal/conductivity or "
                         "fix ehex, or a model of one layer",
                         compute->id, compute->style, model.layers));
    if (!plain.empty())
      refuse(lmp, fmt::format("compute {} {} would be wrong with compute {} stress/atom, which is for pairs; give it a "
                              "compute centroid/stress/atom (and define {} behind it where you need both)",
                              compute->id, compute->style, plain, plain));
  }
}

// They are told of every pair that a style evaluates, and this one evaluates none.
void check_tallies(LAMMPS *lmp) {
  for (const Compute *compute : lmp->modify->get_compute_list())
    if (LAMMPS_NS::utils::strmatch(compute->style, "/tally$"))
      refuse(lmp, fmt::format("compute {} {} would be zero: the model's energy is no sum over pairs", compute->id,
                              compute->style));
}

// Fixes that compare energies of different numbers of atoms.
bool changes_number(const LAMMPS_NS::Fix &fix) {
  const std::string style = fix.style;
  return style == "gcmc" || style == "widom" || style == "charge/regulation";
}

// exp(709) is the largest that a double holds; a temperature is not to be learned from a fix.
constexpr double LARGEST_EXPONENT = 600.0, ROOM_TEMPERATURE = 300.0;

}  // namespace

void refuse_wrong_results(LAMMPS *lmp, const smd_model_info &model) {
  check_special_bonds(lmp);
  check_heat_flux(lmp, model);
  check_tallies(lmp);
}

void refuse_lists_without_bonds(LAMMPS *lmp) {
  if (lmp->atom->molecular == LAMMPS_NS::Atom::ATOMIC) return;
  const int *kept = lmp->neighbor->special_flag;
  if (kept[1] == 0 || kept[2] == 0 || kept[3] == 0) refuse_bonds(lmp);
}

std::vector<std::string> doubts(LAMMPS *lmp, double atomic_energy) {
  std::vector<std::string> found;
  if (has_partial_exclusions(lmp))
    found.push_back(
        "pairs that neigh_modify exclude takes out are missing in the surroundings of their atoms, which changes these "
        "atoms' energies and the forces on all their neighbours");
  for (const LAMMPS_NS::Fix *fix : lmp->modify->get_fix_list())
    if (changes_number(*fix) && atomic_energy > LARGEST_EXPONENT * lmp->force->boltz * ROOM_TEMPERATURE)
      found.push_back(
          fmt::format("fix {} {} takes exp(-E/kT) of energies that hold atomic energies of up to {:.4g}, "
                      "which overflows; use pair_style stablemd atomic_energies no",
                      fix->id, fix->style, atomic_energy));
  return found;
}

}  // namespace stablemd
