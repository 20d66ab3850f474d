// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <string>
#include <vector>

#include "lammps.h"
#include "stablemd.h"

namespace stablemd {

/// Ends LAMMPS with one line where this run asks for what the pair style cannot do right: neighbours that bonds take
/// out of the lists, a heat flux that LAMMPS' formula does not give for the model, tallies of pairs. For `init_style`,
/// which precedes every run. All ranks decide alike.
void refuse_wrong_results(LAMMPS_NS::LAMMPS *lmp, const smd_model_info &model);

/// The same where lists have just been built, for what these leave out: a program that drives LAMMPS may change
/// special_bonds between runs that prepare nothing.
void refuse_lists_without_bonds(LAMMPS_NS::LAMMPS *lmp);

/// A line on each thing in this run that gives what few users want, though it may be meant: neighbours that some atoms
/// do not see, and energies too large for fixes that insert and delete atoms. `atomic_energy` is the largest in LAMMPS'
/// unit.
std::vector<std::string> doubts(LAMMPS_NS::LAMMPS *lmp, double atomic_energy);

}  // namespace stablemd
