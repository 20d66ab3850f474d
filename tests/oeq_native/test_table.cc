// SPDX-License-Identifier: BSD-3-Clause
//
// The table's contract and its registration, against a stand-in for XLA's FFI API that records what it is told.
#include <unistd.h>

#include <map>
#include <set>
#include <vector>

#include "check.h"
#include "registration.h"
#include "xla/ffi/api/ffi.h"

namespace {

/// What a stand-in XLA has been told; refuses the name in `refuse`.
struct Recorder {
  std::vector<std::string> names;  // types and handlers, in order
  std::map<std::string, XLA_FFI_Handler_Register_Args> handlers;
  std::set<std::string> platforms;
  std::string refuse;
  int errors_alive = 0;
} recorder;

XLA_FFI_Error *refusal_of(const XLA_FFI_ByteSpan &name) {
  const std::string text(name.ptr, name.len);
  recorder.names.push_back(text);
  if (text != recorder.refuse) return nullptr;
  ++recorder.errors_alive;
  static int error;
  return reinterpret_cast<XLA_FFI_Error *>(&error);
}

XLA_FFI_Error *register_type(XLA_FFI_Type_Register_Args *args) {
  CHECK(args->type_id->type_id != XLA_FFI_UNKNOWN_TYPE_ID.type_id);
  CHECK(args->type_info->deleter != nullptr);
  return refusal_of(args->name);
}

XLA_FFI_Error *register_handler(XLA_FFI_Handler_Register_Args *args) {
  recorder.handlers[std::string(args->name.ptr, args->name.len)] = *args;
  recorder.platforms.insert(std::string(args->platform.ptr, args->platform.len));
  return refusal_of(args->name);
}

void error_message(XLA_FFI_Error_GetMessage_Args *args) { args->message = "a reason\nof XLA"; }

void error_destroy(XLA_FFI_Error_Destroy_Args *) { --recorder.errors_alive; }

XLA_FFI_Api fake_api() {
  recorder = {};
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
  api.XLA_FFI_Type_Register = register_type;
  api.XLA_FFI_Handler_Register = register_handler;
  api.XLA_FFI_Error_GetMessage = error_message;
  api.XLA_FFI_Error_Destroy = error_destroy;
  return api;
}

const std::vector<std::string> kTargets = {"tp_forward",          "tp_backward",         "tp_double_backward",
                                           "conv_forward",        "conv_backward",       "conv_double_backward",
                                           "contraction_forward", "contraction_backward"};

/// What `action` writes to stderr.
template <typename Action>
std::string stderr_of(Action &&action) {
  std::fflush(stderr);
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const int saved = ::dup(2);
  ::dup2(ends[1], 2);
  action();
  std::fflush(stderr);
  ::dup2(saved, 2);
  ::close(saved);
  ::close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t size = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return text;
}

}  // namespace

TEST(the_table_holds_openequivariances_targets_for_both_platforms) {
  const OeqFfiHandlerTable *table = oeq_ffi_handler_table();
  CHECK(table == oeq_ffi_handler_table());
  CHECK(table->abi_version == OEQ_FFI_ABI_VERSION);
  for (const char *platform : {"Host", "CUDA"}) {
    std::vector<std::string> names;
    for (uint32_t i = 0; i < table->handler_count; ++i) {
      const OeqFfiHandler &h = table->handlers[i];
      if (std::strcmp(h.platform, platform) != 0) continue;
      names.push_back(h.name);
      CHECK(h.instantiate != nullptr);
      CHECK(h.execute != nullptr);
      CHECK((h.initialize != nullptr) == (std::strcmp(platform, "CUDA") == 0));
      CHECK(h.traits == OEQ_FFI_TRAIT_COMMAND_BUFFER_COMPATIBLE);
    }
    CHECK(names == kTargets);
  }
  CHECK(table->type_count == 1);
}

TEST(types_are_registered_before_whole_bundles) {
  for (const auto &[given, spelled] :
       {std::pair("Host", "Host"), {"cpu", "Host"}, {"HOST", "Host"}, {"cuda", "CUDA"}}) {
    const XLA_FFI_Api api = fake_api();
    CHECK(RegisterFFi(&api, given) == 0);
    std::vector<std::string> expected = kTargets;
    expected.insert(expected.begin(), oeq_ffi_handler_table()->types[0].name);
    CHECK(recorder.names == expected);
    CHECK(recorder.platforms == std::set<std::string>{spelled});
    const auto &bundle = recorder.handlers.at("conv_backward").bundle;
    CHECK(bundle.instantiate != nullptr && bundle.execute != nullptr);
    CHECK((bundle.initialize != nullptr) == (std::string(spelled) == "CUDA"));
  }
}

TEST(success_is_silent) {
  const XLA_FFI_Api api = fake_api();
  CHECK(stderr_of([&] { RegisterFFi(&api, "Host"); }).empty());
  const check::Environment verbose("OEQ_VERBOSE", "1");
  CHECK_CONTAINS(stderr_of([&] { RegisterFFi(&api, "Host"); }), "registered for Host");
}

TEST(a_refused_target_is_named_with_xlas_reason_on_one_line) {
  const XLA_FFI_Api api = fake_api();
  recorder.refuse = "conv_forward";
  int status = 0;
  const std::string line = stderr_of([&] { status = RegisterFFi(&api, "Host"); });
  CHECK(status != 0);
  CHECK(line == "oeq_native: target conv_forward: a reason of XLA\n");
  CHECK(recorder.errors_alive == 0);
  CHECK(recorder.names.back() == "conv_forward");

  recorder.refuse = oeq_ffi_handler_table()->types[0].name;
  CHECK_CONTAINS(oeq::register_table(oeq_ffi_handler_table(), &api, "Host"), "type oeq_native.CallSite: a reason");
}

TEST(foreign_tables_are_refused) {
  const XLA_FFI_Api api = fake_api();
  OeqFfiHandlerTable table = *oeq_ffi_handler_table();
  for (const uint32_t version : {0u, OEQ_FFI_ABI_VERSION - 1u, OEQ_FFI_ABI_VERSION + 1u}) {
    table.abi_version = version;
    CHECK_CONTAINS(oeq::register_table(&table, &api, "Host"),
                   "ABI version " + std::to_string(version) + ", known is 3");
  }
  CHECK_CONTAINS(oeq::register_table(nullptr, &api, "Host"), "no handler table");
  table.abi_version = OEQ_FFI_ABI_VERSION;
  std::vector<OeqFfiHandler> handlers(table.handlers, table.handlers + table.handler_count);
  handlers[4].execute = nullptr;
  table.handlers = handlers.data();
  CHECK_CONTAINS(oeq::register_table(&table, &api, "Host"), "target conv_backward cannot execute");
  CHECK(recorder.names.empty());
}

TEST(foreign_apis_are_refused) {
  XLA_FFI_Api api = fake_api();
  const auto *table = oeq_ffi_handler_table();
  CHECK_CONTAINS(oeq::register_table(table, nullptr, "Host"), "API is null");
  api.api_version.minor_version = XLA_FFI_API_MINOR - 1;
  CHECK_CONTAINS(oeq::register_table(table, &api, "Host"), "use a newer PJRT plugin");
  api.api_version.minor_version = XLA_FFI_API_MINOR + 5;
  CHECK(oeq::register_table(table, &api, "Host").empty());
  api.api_version.major_version = XLA_FFI_API_MAJOR + 1;
  CHECK_CONTAINS(oeq::register_table(table, &api, "Host"), "version 1.");
  api = fake_api();
  api.struct_size -= sizeof(void *);
  CHECK_CONTAINS(oeq::register_table(table, &api, "Host"), "or newer");
  api = fake_api();
  CHECK_CONTAINS(oeq::register_table(table, &api, "ROCM"), "no handlers for platform ROCM");
  CHECK_CONTAINS(oeq::register_table(table, &api, nullptr), "(null)");
  CHECK(recorder.names.empty());
}

TEST(bad_settings_are_refused_at_registration) {
  const XLA_FFI_Api api = fake_api();
  const check::Environment threads("OEQ_COMPILE_THREADS", "many");
  int status = 0;
  const std::string line = stderr_of([&] { status = RegisterFFi(&api, "Host"); });
  CHECK(status != 0);
  CHECK_CONTAINS(line, "OEQ_COMPILE_THREADS=many: must be a whole number from 1 to 256\n");
  CHECK(recorder.names.empty());
}

TEST(callers_that_report_errors_themselves) {
  const XLA_FFI_Api api = fake_api();
  char reason[80] = "unchanged";
  const std::string nothing = stderr_of([&] { CHECK(RegisterFFiWithReason(&api, "Host", reason, 80) == 0); });
  CHECK((nothing + reason).empty());
  recorder.names.clear();
  const check::Environment threads("OEQ_COMPILE_THREADS", "many");
  const std::string line = stderr_of([&] { CHECK(RegisterFFiWithReason(&api, "Host", reason, 80) != 0); });
  CHECK(line.empty());
  CHECK(std::string(reason) == "OEQ_COMPILE_THREADS=many: must be a whole number from 1 to 256");
  CHECK(RegisterFFiWithReason(&api, "Host", reason, 10) != 0);
  CHECK(std::string(reason) == "OEQ_COMPI");
}
