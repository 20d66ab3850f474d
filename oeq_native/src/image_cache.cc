// SPDX-License-Identifier: BSD-3-Clause
#include "image_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "sha256.h"

namespace oeq {
namespace {

// A cache file: this line, the digest of the image as 64 hexadecimal digits, a newline, the image.
constexpr std::string_view kMagic = "oeq_native image 1\n";
constexpr size_t kDigestLength = 64;
constexpr size_t kHeaderLength = kMagic.size() + kDigestLength + 1;

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File &) = delete;
  File &operator=(const File &) = delete;
  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

std::optional<std::string> read_all(int descriptor, size_t size) {
  std::string bytes(size, '\0');
  for (size_t done = 0; done < size;) {
    const ssize_t n = ::read(descriptor, bytes.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    done += static_cast<size_t>(n);
  }
  return bytes;
}

bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

/// The file's contents. Images are machine code that this process will run, so only files are taken that nobody else
/// could have written.
std::optional<std::string> read_private_file(const std::string &path) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status;
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  if (status.st_uid != ::geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) return std::nullopt;
  return read_all(file.get(), static_cast<size_t>(status.st_size));
}

/// The image inside a cache file; none where the file is not whole.
std::optional<std::string> unpacked(std::string_view file) {
  if (file.size() < kHeaderLength || file.substr(0, kMagic.size()) != kMagic) return std::nullopt;
  const std::string_view digest = file.substr(kMagic.size(), kDigestLength);
  const std::string_view image = file.substr(kHeaderLength);
  if (sha256(image) != digest) return std::nullopt;
  return std::string(image);
}

/// mkdir -p, private to the user.
void make_directories(const std::string &path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    ::mkdir(path.substr(0, slash).c_str(), 0700);
  }
  ::mkdir(path.c_str(), 0700);
}

/// Writes a new file under a name of its own, then renames it: readers see a whole file or none.
bool write_atomically(const std::string &path, std::string_view head, std::string_view body) {
  std::string temporary = path + ".XXXXXX";
  bool written = false;
  {
    const File file(::mkstemp(temporary.data()));  // mode 0600
    if (!file) return false;
    written = write_all(file.get(), head) && write_all(file.get(), body);
  }
  if (written && ::rename(temporary.c_str(), path.c_str()) == 0) return true;
  ::unlink(temporary.c_str());
  return false;
}

/// Appends a field so that no two lists of fields give the same text.
void append_field(std::string &text, std::string_view field) {
  text += std::to_string(field.size()) + ":";
  text += field;
}

}  // namespace

std::string ImageCache::key(std::string_view platform, std::string_view toolchain, std::string_view architecture,
                            const Unit &unit) {
  std::string text(kMagic);
  append_field(text, std::to_string(OEQ_CALL_VERSION));
  append_field(text, platform);
  append_field(text, toolchain);
  append_field(text, architecture);
  append_field(text, std::to_string(static_cast<int>(unit.payload->family)));
  append_field(text, std::to_string(static_cast<int>(unit.order)));
  append_field(text, unit.payload->text);
  return sha256(text);
}

ImageCache::Found ImageCache::find(const std::string &key) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = images_.find(key); found != images_.end()) return {found->second, Source::kMemory};
  }
  if (directory_.empty()) return {};
  const std::optional<std::string> file = read_private_file(path(key));
  std::optional<std::string> image = file ? unpacked(*file) : std::nullopt;
  if (!image) return {};
  auto shared = std::make_shared<const Image>(Image{std::move(*image), true});
  const std::lock_guard lock(mutex_);
  return {images_.emplace(key, std::move(shared)).first->second, Source::kDisk};
}

bool ImageCache::store(const std::string &key, std::shared_ptr<const Image> image) {
  if (!image->cacheable) return true;
  {
    const std::lock_guard lock(mutex_);
    images_[key] = image;
  }
  if (directory_.empty()) return true;
  make_directories(directory_);
  const std::string head = std::string(kMagic) + sha256(image->bytes) + "\n";
  return write_atomically(path(key), head, image->bytes);
}

void ImageCache::erase(const std::string &key) {
  const std::lock_guard lock(mutex_);
  images_.erase(key);
  if (!directory_.empty()) ::unlink(path(key).c_str());
}

}  // namespace oeq
