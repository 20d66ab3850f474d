// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <mpi.h>

namespace stablemd {

/// Fair share of CPU cores for this rank, at least 1: every core that this process may run on counts in parts, one part
/// for each rank of `world` on this host that may run on it too. So both bound and free ranks get what is theirs.
/// Collective.
int cores_per_rank(MPI_Comm world);

}  // namespace stablemd
