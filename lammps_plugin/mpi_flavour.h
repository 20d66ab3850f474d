// SPDX-License-Identifier: GPL-2.0-or-later
// MPI as LAMMPS was built with it. A serial LAMMPS brings an mpi.h of its own (src/STUBS), which has but what LAMMPS
// itself calls.
#pragma once

#include <mpi.h>

#ifdef MPI_STUBS
#define STABLEMD_SERIAL 1
#ifndef MPI_COMM_SELF
#define MPI_COMM_SELF MPI_COMM_WORLD
#endif
#else
#define STABLEMD_SERIAL 0
#endif
