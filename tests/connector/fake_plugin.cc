// SPDX-License-Identifier: BSD-3-Clause
// A PJRT plugin of the version FAKE_MAJOR.FAKE_MINOR that can do nothing.
#include "pjrt_c_api.h"

extern "C" __attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi() {
  static PJRT_Api api{};
  api.struct_size = PJRT_Api_STRUCT_SIZE;
  api.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
  api.pjrt_api_version.major_version = FAKE_MAJOR;
  api.pjrt_api_version.minor_version = FAKE_MINOR;
  return &api;
}
