// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <string>

#include "mpi_flavour.h"

namespace stablemd {

/// Fair share of CPU cores for this rank, at least 1: every core that this process may run on counts in parts, one part
/// for each rank of `world` on this host that may run on it too. So both bound and free ranks get what is theirs.
///
/// Other worlds of the same launch, be they partitions or instances on parts of a communicator, may share the host.
/// They cannot be asked, for they need not come here: how many ranks were started on this host is known from the
/// launcher's environment, and they are taken to be spread evenly over the cores that the launcher may use. Where no
/// launcher tells, all ranks of the universe are taken to be on this host. Collective over `world` alone.
int cores_per_rank(MPI_Comm world, int ranks_of_universe);

/// Ranks of this launch on this host by the environment that MPICH, Intel MPI, Open MPI, MVAPICH, PALS or Slurm's srun
/// gave this process; 0 where none tells. `variable` is set to the name of the variable.
int ranks_on_host(std::string *variable);

/// An entry such as 3 of node 1 in Slurm's "4(x2),3"; 0 where the text does not tell.
int tasks_of_node(const std::string &counts, int node);

}  // namespace stablemd
