// SPDX-License-Identifier: GPL-2.0-or-later
#include "cores.h"

#include <sched.h>

#include <algorithm>
#include <vector>

namespace stablemd {

namespace {

// 1 for each core that this process may run on.
std::vector<int> allowed_cores() {
  std::vector<int> allowed(CPU_SETSIZE, 0);
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return allowed;
  for (int core = 0; core < CPU_SETSIZE; ++core) allowed[core] = CPU_ISSET(core, &set) ? 1 : 0;
  return allowed;
}

}  // namespace

int cores_per_rank(MPI_Comm world) {
  const std::vector<int> mine = allowed_cores();
  std::vector<int> users(mine.size());
  MPI_Comm host;
  MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  MPI_Allreduce(mine.data(), users.data(), static_cast<int>(mine.size()), MPI_INT, MPI_SUM, host);
  MPI_Comm_free(&host);

  double share = 0.0;
  for (std::size_t core = 0; core < mine.size(); ++core)
    if (mine[core]) share += 1.0 / users[core];
  return std::max(1, static_cast<int>(share + 1e-6));
}

}  // namespace stablemd
