// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <vector>

#include "lammps.h"
#include "neigh_list.h"

namespace stablemd {

/// Atoms of a list that are in the system: all but those that `neigh_modify exclude` keeps from every atom of group
/// all, their own images among them. Fixes such as gcmc exclude what they are about to delete so, and take it out of
/// group all; that such atoms still see each other and their own images is of no account. Rules by molecule take nobody
/// out. Call after the list was built; collective where there are rules by type or group.
std::vector<int> present_atoms(LAMMPS_NS::LAMMPS *lmp, const LAMMPS_NS::NeighList &list);

/// Whether rules keep some neighbours of an atom from it, and not all. Before a run, too.
bool has_partial_exclusions(LAMMPS_NS::LAMMPS *lmp);

}  // namespace stablemd
