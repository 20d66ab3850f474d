// SPDX-License-Identifier: GPL-2.0-or-later
#include "exclusion.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "atom.h"
#include "comm.h"
#include "mpi_flavour.h"
#include "neighbor.h"

using LAMMPS_NS::LAMMPS;
using LAMMPS_NS::Neighbor;

namespace stablemd {

namespace {

/// What matters of an atom: its type, and those bits of its mask that stand for group all or groups in a rule.
using Kind = std::pair<int, int>;

constexpr int GROUP_ALL_BIT = 1;

int bits_in_rules(const Neighbor &rules) {
  int bits = GROUP_ALL_BIT;
  for (int n = 0; n < rules.nex_group; ++n) bits |= rules.ex1_bit[n] | rules.ex2_bit[n];
  return bits;
}

// As LAMMPS decides it for a pair when it builds its lists.
bool excluded(const Neighbor &rules, const Kind &one, const Kind &other) {
  if (rules.nex_type > 0 && rules.ex_type[one.first][other.first]) return true;
  for (int n = 0; n < rules.nex_group; ++n) {
    const int first = rules.ex1_bit[n], second = rules.ex2_bit[n];
    if ((one.second & first && other.second & second) || (one.second & second && other.second & first)) return true;
  }
  return false;
}

std::set<Kind> kinds_of_all_ranks(const std::set<Kind> &mine, MPI_Comm world, int ranks) {
  std::vector<int> packed;
  for (const Kind &kind : mine) packed.insert(packed.end(), {kind.first, kind.second});
  int length = static_cast<int>(packed.size());
  std::vector<int> lengths(ranks), offsets(ranks, 0);
  MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, world);
  std::partial_sum(lengths.begin(), lengths.end() - 1, offsets.begin() + 1);
  std::vector<int> all(offsets.back() + lengths.back());
  MPI_Allgatherv(packed.data(), length, MPI_INT, all.data(), lengths.data(), offsets.data(), MPI_INT, world);
  std::set<Kind> kinds;
  for (std::size_t n = 0; n < all.size(); n += 2) kinds.emplace(all[n], all[n + 1]);
  return kinds;
}

}  // namespace

std::vector<int> present_atoms(LAMMPS *lmp, const LAMMPS_NS::NeighList &list) {
  const LAMMPS_NS::Atom &atom = *lmp->atom;
  const Neighbor &rules = *lmp->neighbor;
  std::vector<int> present(list.ilist, list.ilist + list.inum);
  if (rules.nex_type == 0 && rules.nex_group == 0) return present;

  const int bits = bits_in_rules(rules);
  const auto kind_of = [&](int i) { return Kind{atom.type[i], atom.mask[i] & bits}; };
  std::set<Kind> mine;
  for (int i = 0; i < atom.nlocal; ++i) mine.insert(kind_of(i));
  const std::set<Kind> all = kinds_of_all_ranks(mine, lmp->world, lmp->comm->nprocs);
  std::set<Kind> absent;
  for (const Kind &one : mine)
    if (std::all_of(all.begin(), all.end(), [&](const Kind &other) {
          return (other.second & GROUP_ALL_BIT) == 0 || excluded(rules, one, other);
        }))
      absent.insert(one);
  if (absent.empty()) return present;
  present.erase(std::remove_if(present.begin(), present.end(), [&](int i) { return absent.count(kind_of(i)) > 0; }),
                present.end());
  return present;
}

bool has_partial_exclusions(LAMMPS *lmp) {
  constexpr int group_all = 0;
  const Neighbor &rules = *lmp->neighbor;
  for (int n = 0; n < rules.nex_group; ++n)
    if (rules.ex1_group[n] != group_all && rules.ex2_group[n] != group_all) return true;
  return rules.nex_type + rules.nex_mol > 0;
}

}  // namespace stablemd
