// SPDX-License-Identifier: BSD-3-Clause
//
// Compiled images by key: in memory for the process, on disk across processes.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "backend.h"

namespace oeq {

class ImageCache {
 public:
  enum class Source { kNone, kMemory, kDisk };
  struct Found {
    std::shared_ptr<const Image> image;  // null where there is none
    Source source = Source::kNone;
  };

  /// `directory` is made when something is first written to it; "" for memory only.
  explicit ImageCache(std::string directory) : directory_(std::move(directory)) {}

  /// The key of an image: a digest of all that decides its bytes.
  static std::string key(std::string_view platform, std::string_view toolchain, std::string_view architecture,
                         const Unit &unit);

  /// A file that is truncated, damaged, somebody else's or writable by others counts as none.
  Found find(const std::string &key);

  /// Keeps the image in memory and, where it may be, on disk. A disk that cannot be written is no error: the next
  /// process compiles again. Returns false in that case.
  bool store(const std::string &key, std::shared_ptr<const Image> image);

  /// Drops an image that turned out to be unusable.
  void erase(const std::string &key);

 private:
  std::string path(const std::string &key) const { return directory_ + "/" + key + ".oeqimage"; }

  const std::string directory_;
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const Image>> images_;
};

}  // namespace oeq
