// SPDX-License-Identifier: BSD-3-Clause
// Where the PJRT plugin and our own folder are.
#pragma once

#include <string>

namespace stablemd {

/// Folder of this shared library; "" where the system does not tell.
std::string library_folder();

/// `chosen` if not empty, else $STABLEMD_PJRT_PLUGIN, else a known package in the site-packages that holds this
/// library. Throws Error(SMD_ERROR_PLUGIN) that says what was searched.
std::string find_plugin(const std::string &device, const std::string &chosen);

}  // namespace stablemd
