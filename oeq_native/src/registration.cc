// SPDX-License-Identifier: BSD-3-Clause
#include "registration.h"

#include <strings.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>

#include "settings.h"

namespace oeq {
namespace {

XLA_FFI_ByteSpan span(const char *text) { return {text, std::strlen(text)}; }

/// XLA's reason, on one line; destroys the error.
std::string taken_message(const XLA_FFI_Api *api, XLA_FFI_Error *error) {
  XLA_FFI_Error_GetMessage_Args message{};
  message.struct_size = XLA_FFI_Error_GetMessage_Args_STRUCT_SIZE;
  message.error = error;
  api->XLA_FFI_Error_GetMessage(&message);
  std::string text = message.message == nullptr ? "no reason given" : message.message;
  for (char &c : text) {
    if (c == '\n') c = ' ';
  }
  XLA_FFI_Error_Destroy_Args destroy{};
  destroy.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
  destroy.error = error;
  api->XLA_FFI_Error_Destroy(&destroy);
  return text;
}

/// Why the API cannot be used; "" where it can.
std::string refusal(const XLA_FFI_Api *api) {
  // The last function that our handlers call.
  constexpr size_t kNeeded = offsetof(XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get) + sizeof(void *);
  if (api == nullptr) return "XLA's FFI API is null";
  const auto &version = api->api_version;
  const std::string found = std::to_string(version.major_version) + "." + std::to_string(version.minor_version);
  if (version.major_version != XLA_FFI_API_MAJOR || version.minor_version < XLA_FFI_API_MINOR ||
      api->struct_size < kNeeded) {
    return "XLA's FFI API is version " + found + ", needed is " + std::to_string(XLA_FFI_API_MAJOR) + "." +
           std::to_string(XLA_FFI_API_MINOR) + " or newer: use a newer PJRT plugin";
  }
  return "";
}

std::string register_type(const OeqFfiType &type, const XLA_FFI_Api *api) {
  XLA_FFI_Type_Register_Args args{};
  args.struct_size = XLA_FFI_Type_Register_Args_STRUCT_SIZE;
  args.name = span(type.name);
  args.type_id = static_cast<XLA_FFI_TypeId *>(type.id);
  args.type_info = static_cast<const XLA_FFI_TypeInfo *>(type.info);
  XLA_FFI_Error *error = api->XLA_FFI_Type_Register(&args);
  return error == nullptr ? "" : std::string("type ") + type.name + ": " + taken_message(api, error);
}

std::string register_handler(const OeqFfiHandler &handler, const XLA_FFI_Api *api) {
  XLA_FFI_Handler_Register_Args args{};
  args.struct_size = XLA_FFI_Handler_Register_Args_STRUCT_SIZE;
  args.name = span(handler.name);
  args.platform = span(handler.platform);
  args.bundle = {
      reinterpret_cast<XLA_FFI_Handler *>(handler.instantiate), reinterpret_cast<XLA_FFI_Handler *>(handler.prepare),
      reinterpret_cast<XLA_FFI_Handler *>(handler.initialize), reinterpret_cast<XLA_FFI_Handler *>(handler.execute)};
  args.traits = handler.traits;
  XLA_FFI_Error *error = api->XLA_FFI_Handler_Register(&args);
  return error == nullptr ? "" : std::string("target ") + handler.name + ": " + taken_message(api, error);
}

}  // namespace

std::string refusal(const OeqFfiHandlerTable *table) {
  if (table == nullptr) return "there is no handler table";
  if (table->abi_version != OEQ_FFI_ABI_VERSION) {
    return "the handler table has ABI version " + std::to_string(table->abi_version) + ", known is " +
           std::to_string(OEQ_FFI_ABI_VERSION);
  }
  for (uint32_t i = 0; i < table->handler_count; ++i) {
    if (table->handlers[i].execute == nullptr)
      return std::string("target ") + table->handlers[i].name + " cannot execute";
  }
  return "";
}

std::string platform_of_table(const char *platform) {
  if (platform == nullptr) return "";
  if (strcasecmp(platform, "host") == 0 || strcasecmp(platform, "cpu") == 0) return "Host";
  if (strcasecmp(platform, "cuda") == 0) return "CUDA";
  return "";
}

std::string register_table(const OeqFfiHandlerTable *table, const XLA_FFI_Api *api, const char *platform) {
  if (std::string why = refusal(table); !why.empty()) return why;
  if (std::string why = refusal(api); !why.empty()) return why;
  const std::string wanted = platform_of_table(platform);
  if (wanted.empty()) {
    return std::string("no handlers for platform ") + (platform == nullptr ? "(null)" : platform) +
           ", only Host and CUDA";
  }
  for (uint32_t i = 0; i < table->type_count; ++i) {
    if (std::string why = register_type(table->types[i], api); !why.empty()) return why;
  }
  for (uint32_t i = 0; i < table->handler_count; ++i) {
    if (wanted != table->handlers[i].platform) continue;
    if (std::string why = register_handler(table->handlers[i], api); !why.empty()) return why;
  }
  return "";
}

}  // namespace oeq

extern "C" {

OEQ_API int RegisterFFiWithReason(const XLA_FFI_Api *api, const char *platform, char *reason, size_t size) {
  std::string why;
  bool verbose = false;
  try {
    verbose = oeq::read_settings().verbose;  // settings that are no good are refused here, not at the first kernel
    why = oeq::register_table(oeq_ffi_handler_table(), api, platform);
  } catch (const std::exception &error) {
    why = error.what();
  }
  std::snprintf(reason, size, "%s", why.c_str());
  if (!why.empty()) return 1;
  if (verbose) std::fprintf(stderr, "[oeq_native] registered for %s\n", platform);
  return 0;
}

OEQ_API int RegisterFFi(const XLA_FFI_Api *api, const char *platform) {
  char reason[1024];
  const int code = RegisterFFiWithReason(api, platform, reason, sizeof reason);
  if (code != 0) std::fprintf(stderr, "oeq_native: %s\n", reason);
  return code;
}
}
