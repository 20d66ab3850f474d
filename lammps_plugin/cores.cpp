// SPDX-License-Identifier: GPL-2.0-or-later
#include "cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

namespace stablemd {

namespace {

// 1 for each core that a process may run on; 0: this process.
std::vector<int> allowed_cores(pid_t process) {
  std::vector<int> allowed(CPU_SETSIZE, 0);
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(process, sizeof(set), &set) != 0) return allowed;
  for (int core = 0; core < CPU_SETSIZE; ++core) allowed[core] = CPU_ISSET(core, &set) ? 1 : 0;
  return allowed;
}

int count(const std::vector<int> &cores) { return static_cast<int>(std::count(cores.begin(), cores.end(), 1)); }

int number_in_environment(const std::string &name) {
  const char *value = std::getenv(name.c_str());
  return value ? std::max(0, std::atoi(value)) : 0;
}

pid_t parent_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');  // a name may hold anything
  if (name_end == std::string::npos) return 0;
  std::istringstream rest(line.substr(name_end + 1));
  std::string state;
  pid_t parent = 0;
  rest >> state >> parent;
  return parent;
}

bool has_in_environment(pid_t process, const std::string &name) {
  std::ifstream file("/proc/" + std::to_string(process) + "/environ", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  return ('\0' + all).find('\0' + name + '=') != std::string::npos;
}

// The launcher is the first ancestor without the variable that it sets for its ranks: wrappers lie between.
int cores_of_launcher(const std::string &variable) {
  pid_t process = getppid();
  while (process > 1 && has_in_environment(process, variable)) process = parent_of(process);
  return process > 0 ? count(allowed_cores(process)) : 0;
}

#if STABLEMD_SERIAL
int add_over_host(MPI_Comm, std::vector<int> &) { return 1; }
#else
// Sums over the ranks of `world` on this host; returns how many they are.
int add_over_host(MPI_Comm world, std::vector<int> &values) {
  MPI_Comm host;
  MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_INT, MPI_SUM, host);
  int ranks = 1;
  MPI_Comm_size(host, &ranks);
  MPI_Comm_free(&host);
  return ranks;
}
#endif

}  // namespace

int tasks_of_node(const std::string &counts, int node) {
  std::istringstream entries(counts);
  std::string entry;
  while (std::getline(entries, entry, ',')) {
    const std::size_t times = entry.find("(x");
    const int nodes = times == std::string::npos ? 1 : std::atoi(entry.c_str() + times + 2);
    if (node < nodes) return std::max(0, std::atoi(entry.c_str()));
    node -= nodes;
  }
  return 0;
}

int ranks_on_host(std::string *variable) {
  for (const char *name :
       {"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "PALS_LOCAL_SIZE"}) {
    *variable = name;
    if (const int ranks = number_in_environment(name)) return ranks;
  }
  *variable = "SLURM_STEP_TASKS_PER_NODE";  // of the step: a job's own is there for its script, too
  const char *counts = std::getenv(variable->c_str());
  return counts ? tasks_of_node(counts, number_in_environment("SLURM_NODEID")) : 0;
}

int cores_per_rank(MPI_Comm world, int ranks_of_universe) {
  const std::vector<int> mine = allowed_cores(0);
  std::vector<int> users = mine;
  const int ranks_of_world = add_over_host(world, users);

  double share = 0.0;
  for (std::size_t core = 0; core < mine.size(); ++core)
    if (mine[core]) share += 1.0 / users[core];

  std::string variable;
  int ranks = ranks_on_host(&variable), cores = count(mine);
  if (ranks > 0)
    cores = std::max(cores, cores_of_launcher(variable));
  else
    ranks = ranks_of_universe;
  if (ranks > ranks_of_world) share = std::min(share, static_cast<double>(cores) / ranks);
  return std::max(1, static_cast<int>(share + 1e-6));
}

}  // namespace stablemd
