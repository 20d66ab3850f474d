// SPDX-License-Identifier: BSD-3-Clause
// The bundle reader on good files, on files that are wrong in one place, and on noise.
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <random>

#include "bundle.h"
#include "bundle_bytes.h"
#include "c_api.h"
#include "check.h"
#include "error.h"
#include "escape.h"
#include "hash.h"

namespace {

using stablemd::Bundle;
using stablemd::Error;
using test::BundleParts;
using test::json;

/// What the reader says about a file that it must refuse.
std::string complaint(const std::vector<char> &bytes, smd_status expected = SMD_ERROR_FORMAT) {
  try {
    Bundle::parse(bytes, "x.safetensors");
  } catch (const Error &error) {
    CHECK_EQUAL(error.status, expected);
    CHECK_EQUAL(std::string(error.what()).rfind("x.safetensors", 0), size_t{0});
    return error.what();
  }
  return "no complaint";
}

std::string complaint_about(const char *pointer, const json &value) {
  BundleParts parts;
  parts.manifest[json::json_pointer(pointer)] = value;
  return complaint(parts.bytes());
}

std::string complaint_without(const char *object, const char *key) {
  BundleParts parts;
  parts.manifest[json::json_pointer(object)].erase(key);
  return complaint(parts.bytes());
}

/// A reader may accept or refuse noise, but only by an Error.
bool accepts(const std::vector<char> &bytes) {
  try {
    Bundle::parse(bytes, "noise");
    return true;
  } catch (const Error &error) {
    CHECK_EQUAL(error.status, SMD_ERROR_FORMAT);
    CHECK(std::strlen(error.what()) < 1000);
    return false;
  }
}

}  // namespace

TEST(checksums) {
  BundleParts parts;
  parts.manifest["checksum"] = std::string(32, '0');
  const std::vector<char> blank = parts.bytes();
  parts.manifest["checksum"] = stablemd::hash_bytes({blank.data(), blank.size()}).hex();
  const std::vector<char> good = parts.bytes();
  CHECK_EQUAL(complaint(good), "no complaint");
  for (size_t bit = 8 * (good.size() - parts.data.size()); bit < 8 * good.size(); ++bit) {
    std::vector<char> bad = good;
    bad[bit / 8] ^= static_cast<char>(1 << bit % 8);
    CHECK_CONTAINS(complaint(bad), "damaged: its bytes are not those that were written (checksum)");
  }
  parts.manifest["atomic_energies"][0] = -3.5;  // a number that would pass
  CHECK_CONTAINS(complaint(parts.bytes()), "damaged: its bytes are not those that were written (checksum)");
  parts.manifest["checksum"] = 17;
  CHECK_CONTAINS(complaint(parts.bytes()), "checksum: must be a string");
  parts.manifest.erase("checksum");  // as older writers leave it
  CHECK_EQUAL(complaint(parts.bytes()), "no complaint");
}

TEST(a_good_file) {
  const Bundle bundle = Bundle::parse(BundleParts().bytes(), "good");
  const stablemd::Manifest &manifest = bundle.manifest();
  CHECK_EQUAL(manifest.cutoff, 5.0);
  CHECK_EQUAL(manifest.layers, 2);
  CHECK_EQUAL(manifest.elements.at(1), "C");
  CHECK_EQUAL(manifest.atomic_energies.at(0), -1.5);
  CHECK_EQUAL(manifest.stablehlo_version, "1.15.0");
  CHECK_EQUAL(std::string(bundle.program_text(bundle.program("cpu"))), "@{N}x3 ");
  CHECK_EQUAL(bundle.program("cpu").inputs.size(), size_t{6});
  const stablemd::Tensor &weight = bundle.tensor("weights/a");
  CHECK_EQUAL(std::string(weight.data, weight.bytes), "12345678");
  CHECK_EQUAL(json::parse(manifest.json), BundleParts().manifest);
}

TEST(truncated_at_every_byte) {
  const std::vector<char> whole = BundleParts().bytes();
  for (size_t length = 0; length < whole.size(); ++length) {
    complaint({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)});
    if (check::failures) return;
  }
  CHECK_CONTAINS(complaint({whole.begin(), whole.begin() + 100}), "truncated");
  CHECK_CONTAINS(complaint({whole.begin(), whole.end() - 1}), "truncated");
  CHECK_CONTAINS(complaint({}), "not a bundle");
}

TEST(real_bundle_truncated) {
  const std::vector<char> whole = test::read_file(test::bundle_path("layers2_float32"));
  CHECK(whole.size() > 1000);
  for (size_t length = 0; length < whole.size(); length += length < 3000 ? 1 : 97) {
    CHECK(!accepts({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)}));
    if (check::failures) return;
  }
  CHECK(accepts(whole));
}

TEST(bytes_behind_the_end) {
  std::vector<char> bytes = BundleParts().bytes();
  bytes.push_back(0);
  CHECK_CONTAINS(complaint(bytes), "1 bytes behind the last tensor");
}

TEST(foreign_files) {
  CHECK_CONTAINS(complaint(test::safetensors_bytes("{}", "")), "not a StableMD bundle");
  CHECK_CONTAINS(complaint(test::safetensors_bytes(R"({"__metadata__":{"format":"pt"}})", "")), "stablemd export");
  CHECK_CONTAINS(complaint(test::safetensors_bytes("[]", "")), "must be an object");
  CHECK_CONTAINS(complaint(test::safetensors_bytes("{\"a\":", "")), "not valid JSON");
  const std::string zip = "PK\x03\x04 something that is long enough to have a length in front";
  CHECK_CONTAINS(complaint({zip.begin(), zip.end()}), "not a bundle");
}

TEST(hostile_json) {
  const std::string deep(100000, '[');
  CHECK_CONTAINS(complaint(test::safetensors_bytes("{\"a\":" + deep, "")), "nested");
  const std::string twice = R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":1})";
  CHECK_CONTAINS(complaint(test::safetensors_bytes(twice, "")), "given twice");
  CHECK_CONTAINS(complaint(test::safetensors_bytes("{\"a\":1e999}", "")), "not valid JSON");
  CHECK_CONTAINS(complaint(test::safetensors_bytes("{\"\xff\":1}", "")), "not valid JSON");
  std::vector<char> huge = BundleParts().bytes();
  for (int i = 0; i < 8; ++i) huge[i] = static_cast<char>(0xff);
  CHECK_CONTAINS(complaint(huge), "not a bundle");
}

TEST(tensors) {
  const auto with = [](const char *pointer, const json &value) {
    BundleParts parts;
    parts.header[json::json_pointer(pointer)] = value;
    return complaint(parts.bytes());
  };
  CHECK_CONTAINS(with("/weights~1a/dtype", "F33"), "weights/a.dtype: unknown type `F33`");
  CHECK_CONTAINS(with("/weights~1a/shape", {3, 1}), "does not fit to dtype and shape");
  CHECK_CONTAINS(with("/weights~1a/shape", {-2, -1}), "shape[0]: must be an integer");
  CHECK_CONTAINS(with("/weights~1a/shape", {1LL << 40, 1LL << 40, 1LL << 40}), "too large");
  CHECK_CONTAINS(with("/weights~1a/data_offsets", {7, 16}), "ends at byte 16 of 15");
  CHECK_CONTAINS(with("/weights~1a/data_offsets", {15, 7}), "data_offsets[1]: must be an integer");
  CHECK_CONTAINS(with("/weights~1a/data_offsets", {7}), "must be two integers");
  CHECK_CONTAINS(with("/weights~1a/data_offsets", {7, 15, 15}), "must be two integers");
  CHECK_CONTAINS(with("/weights~1a/data_offsets", {7.0, 15.0}), "must be an integer");
  CHECK_CONTAINS(with("/weights~1a/data_offsets", {7, 18446744073709551615ull}), "must be an integer");
  CHECK_CONTAINS(with("/weights~1a/data_offsets", {6, 14}), "overlap or leave a hole");
  CHECK_CONTAINS(with("/weights~1a", 3), "must be an object");
}

TEST(manifests) {
  CHECK_CONTAINS(complaint_about("/format", 4), "made by a newer StableMD (format 4, this library reads 3): upgrade");
  CHECK_CONTAINS(complaint_about("/format", 0), "manifest.format: must be an integer from 1");
  CHECK_CONTAINS(complaint_about("/format", "1"), "manifest.format");
  CHECK_CONTAINS(complaint_about("/dtype", "float16"), "must be `float32` or `float64`");
  CHECK_CONTAINS(complaint_about("/cutoff", 0), "manifest.cutoff: must be positive");
  CHECK_CONTAINS(complaint_about("/cutoff", "5"), "manifest.cutoff: must be a finite number");
  CHECK_CONTAINS(complaint_about("/layers", 0), "must be an integer from 1 to 8");
  CHECK_CONTAINS(complaint_about("/layers", 9), "must be an integer from 1 to 8");
  CHECK_CONTAINS(complaint_about("/layers", 2.5), "must be an integer from 1 to 8");
  CHECK_CONTAINS(complaint_about("/elements", json::array()), "must not be empty");
  CHECK_CONTAINS(complaint_about("/elements/0", 14), "manifest.elements[0]: must be a string");
  CHECK_CONTAINS(complaint_about("/atomic_energies", {1.0}), "has 1 numbers for 2 elements");
  CHECK_CONTAINS(complaint_about("/units", "metal"), "manifest.units: must be an object");
  CHECK_CONTAINS(complaint_without("/units", "energy"), "manifest.units: lacks `energy`");
  CHECK_CONTAINS(complaint_about("/programs", json::array()), "manifest.programs: must be an object");
  for (const char *pointer : {"/elements/0", "/units/energy", "/units/length"}) {
    for (const char *value : {"e\x1b[2JV", "e\rV", "e\nV", "\u202eVe", "e\u009bV"})
      CHECK_CONTAINS(complaint_about(pointer, value), "holds control characters");
    CHECK_EQUAL(complaint_about(pointer, "\u00c5"), "no complaint");
  }
  for (const char *key : {"format", "dtype", "cutoff", "layers", "elements", "atomic_energies", "units", "programs"}) {
    CHECK_CONTAINS(complaint_without("", key), std::string("lacks `") + key + "`");
  }
}

TEST(what_may_be_shown) {
  for (const char *text : {"", "plain `text`, \\n", "\u00c5ngstr\u00f6m", "\u6c34", "\U0001f600"}) {
    CHECK_EQUAL(stablemd::escaped(text), text);
    CHECK(stablemd::is_printable(text));
  }
  const std::pair<std::string, const char *> cases[] = {
      {"a\nb\rc\td", "a\\nb\\rc\\td"},
      {std::string("\0\x1b[31m\x7f", 7), "\\x00\\x1b[31m\\x7f"},
      {"\u009b\u202e\u2066\u200b\ufeff", "\\x9b\\u202e\\u2066\\u200b\\ufeff"},
      {"\xff\xc3", "\\xff\\xc3"},
      {"\xc0\x80\xed\xa0\x80", "\\xc0\\x80\\xed\\xa0\\x80"},
      {"\xf4\x90\x80\x80\U000e0041", "\\xf4\\x90\\x80\\x80\\U000e0041"},
  };
  for (const auto &[text, expected] : cases) CHECK_EQUAL(stablemd::escaped(text), expected);
  char small[6];
  stablemd::escape_into(small, sizeof small, "abc\nd");
  CHECK_EQUAL(std::string(small), "abc\\n");
  stablemd::escape_into(small, sizeof small, "abcd\u00c5");
  CHECK_EQUAL(std::string(small), "abcd");
}

TEST(programs) {
  const auto about = [](const std::string &field, const json &value) {
    return complaint_about(("/programs/cpu/" + field).c_str(), value);
  };
  CHECK_CONTAINS(about("text", "programs/none"), "the file has no tensor `programs/none`");
  CHECK_CONTAINS(about("text", "weights/a"), "not of type U8");
  CHECK_CONTAINS(about("inputs/0/tensor", "weights/b"), "the file has no tensor `weights/b`");
  CHECK_CONTAINS(about("inputs/1/role", "positions"), "unknown role `positions`");
  CHECK_CONTAINS(about("inputs/1/role", "node_energy"), "unknown role");
  CHECK_CONTAINS(about("outputs/0/role", "species"), "unknown role");
  CHECK_CONTAINS(about("inputs/1/dtype", "int64"), "`species` must be int32, is int64");
  CHECK_CONTAINS(about("inputs/1/dtype", "int31"), "unknown type `int31`");
  CHECK_CONTAINS(about("inputs/2/dtype", "float64"), "`vectors` must be float32, is float64");
  CHECK_CONTAINS(about("inputs/2/shape", {"E1", 4}), "`vectors` has a shape other than");
  CHECK_CONTAINS(about("inputs/2/shape", {"E3", 3}), "symbol other than N, C1..C2");
  CHECK_CONTAINS(about("outputs/0/shape", {"C1"}), "`node_energy` has a shape other than");
  CHECK_CONTAINS(about("inputs/3/role", "neighbors"), "role `neighbors` is given twice");
  CHECK_CONTAINS(complaint_about("/programs/cpu/outputs", json::array()), "no output has the role `node_energy`");
  CHECK_CONTAINS(about("targets", {1}), "targets[0]: must be a string");
  CHECK_CONTAINS(complaint_without("/programs/cpu", "inputs"), "lacks `inputs`");
  try {
    Bundle::parse(BundleParts().bytes(), "x").program("cuda");
    CHECK(false);
  } catch (const Error &error) {
    CHECK_CONTAINS(error.what(), "has no program for `cuda`, only for: cpu");
  }
}

TEST(node_outputs) {
  const json charge = {{"role", "node_output"}, {"name", "charge"}, {"dtype", "float32"}, {"shape", {"C2"}}};
  const json dipole = {{"role", "node_output"}, {"name", "dipole"}, {"dtype", "float32"}, {"shape", {"C2", 3}}};
  const auto with = [&](const json &declared, const std::vector<json> &given) {
    BundleParts parts;
    parts.manifest["format"] = 2;
    parts.manifest["node_outputs"] = declared;
    for (const json &one : given) parts.manifest["programs"]["cpu"]["outputs"].push_back(one);
    return parts.bytes();
  };
  const json both = {{"dipole", {{"width", 3}, {"unit", "e*Angstrom"}}}, {"charge", {{"width", 1}, {"unit", "e"}}}};
  const Bundle bundle = Bundle::parse(with(both, {dipole, charge}), "x");
  const auto &outputs = bundle.manifest().node_outputs;
  CHECK_EQUAL(outputs.size(), size_t{2});
  CHECK_EQUAL(outputs.at(0).name, "charge");
  CHECK_EQUAL(outputs.at(0).unit, "e");
  CHECK_EQUAL(outputs.at(1).width, 3);

  CHECK_CONTAINS(complaint(with(both, {charge})), "lacks the node output `dipole`");
  CHECK_CONTAINS(complaint(with(both, {charge, dipole, charge})), "given twice, or not in");
  CHECK_CONTAINS(complaint(with(json::object(), {charge})), "not in the manifest's node_outputs");
  json wrong = dipole;
  wrong["shape"] = {"C2", 2};
  CHECK_CONTAINS(complaint(with(both, {charge, wrong})), "`dipole` has a shape other than");
  wrong["dtype"] = "float64";
  CHECK_CONTAINS(complaint(with(both, {charge, wrong})), "`dipole` must be float32, is float64");
  wrong = charge;
  wrong.erase("name");
  CHECK_CONTAINS(complaint(with(both, {wrong, dipole})), "lacks `name`");
  CHECK_CONTAINS(complaint(with({{"a b", {{"width", 1}, {"unit", ""}}}}, {})), "`a b` is no name of letters");
  CHECK_CONTAINS(complaint(with({{"a", {{"width", 0}, {"unit", ""}}}}, {})), "must be an integer from 1");
  CHECK_CONTAINS(complaint(with({{"a", {{"width", 1}}}}, {})), "lacks `unit`");
  CHECK_CONTAINS(complaint(with(json::array(), {})), "node_outputs: must be an object");
}

TEST(graph_inputs) {
  const auto port = [](const char *name) {
    return json{{"role", "graph_input"}, {"name", name}, {"dtype", "float32"}, {"shape", json::array()}};
  };
  const json charge = {{"default", 0}, {"minimum", -2}, {"maximum", 3}, {"integer", true}};
  const json field = {{"default", 0.5}, {"minimum", nullptr}, {"maximum", nullptr}, {"integer", false}};
  const auto with = [&](const json &declared, const std::vector<json> &given) {
    BundleParts parts;
    parts.manifest["format"] = 3;
    parts.manifest["graph_inputs"] = declared;
    for (const json &one : given) parts.manifest["programs"]["cpu"]["inputs"].push_back(one);
    return parts.bytes();
  };
  const json both = {{"field", field}, {"charge", charge}};
  const Bundle bundle = Bundle::parse(with(both, {port("field"), port("charge")}), "x");
  const auto &inputs = bundle.manifest().graph_inputs;
  CHECK_EQUAL(inputs.size(), size_t{2});
  CHECK_EQUAL(inputs.at(0).name, "charge");
  CHECK_EQUAL(inputs.at(0).minimum, -2.0);
  CHECK(inputs.at(0).integer);
  CHECK_EQUAL(inputs.at(1).initial, 0.5);
  CHECK_EQUAL(inputs.at(1).maximum, HUGE_VAL);

  CHECK_CONTAINS(complaint(with(both, {port("charge")})), "lacks the graph input `field`");
  CHECK_CONTAINS(complaint(with(both, {port("field"), port("charge"), port("charge")})), "given twice, or not in");
  CHECK_CONTAINS(complaint(with(json::object(), {port("charge")})), "not in the manifest's graph_inputs");
  json wrong = port("field");
  wrong["shape"] = {"N"};
  CHECK_CONTAINS(complaint(with(both, {port("charge"), wrong})), "`field` has a shape other than");
  wrong["dtype"] = "float64";
  CHECK_CONTAINS(complaint(with(both, {port("charge"), wrong})), "`field` must be float32, is float64");
  wrong.erase("name");
  CHECK_CONTAINS(complaint(with(both, {port("charge"), wrong})), "lacks `name`");
  const auto about = [&](const char *key, const json &value) {
    json changed = charge;
    changed[key] = value;
    return complaint(with({{"charge", changed}}, {port("charge")}));
  };
  CHECK_CONTAINS(about("default", 4), "charge.default: must lie between minimum and maximum");
  CHECK_CONTAINS(about("default", 0.5), "graph_inputs.charge: must be whole numbers");
  CHECK_CONTAINS(about("minimum", -1.5), "graph_inputs.charge: must be whole numbers");
  CHECK_CONTAINS(about("maximum", "3"), "charge.maximum: must be a finite number");
  CHECK_CONTAINS(about("default", nullptr), "charge.default: must be a finite number");
  CHECK_CONTAINS(about("integer", 1), "charge.integer: must be true or false");
  for (const char *key : {"default", "minimum", "maximum", "integer"}) {
    json changed = charge;
    changed.erase(key);
    CHECK_CONTAINS(complaint(with({{"charge", changed}}, {port("charge")})), std::string("lacks `") + key + "`");
  }
  CHECK_CONTAINS(complaint(with({{"a b", charge}}, {})), "`a b` is no name of letters");
  CHECK_CONTAINS(complaint(with(json::array(), {})), "graph_inputs: must be an object");
}

TEST(noise) {
  std::mt19937_64 random(20240229);
  for (int i = 0; i < 3000; ++i) {
    std::vector<char> bytes(random() % 300);
    for (char &byte : bytes) byte = static_cast<char>(random());
    if (bytes.size() >= 8 && i % 2) {  // a plausible header length, so that the JSON parser sees the noise
      const uint64_t length = random() % bytes.size();
      for (int k = 0; k < 8; ++k) bytes[k] = static_cast<char>(length >> (8 * k));
    }
    CHECK(!accepts(bytes));
  }
}

TEST(flipped_bits) {
  std::mt19937_64 random(20240301);
  const std::vector<char> whole = BundleParts().bytes();
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<char> bytes = whole;
    const int flips = 1 + static_cast<int>(random() % 3);
    for (int k = 0; k < flips; ++k) bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    accepted += accepts(bytes);
  }
  CHECK(accepted > 0);  // a flip in a weight or a name is nobody's error
  CHECK(accepted < 10000);
}

TEST(pieces_moved_about) {
  std::mt19937_64 random(20240302);
  const std::vector<char> whole = BundleParts().bytes();
  for (int i = 0; i < 5000; ++i) {
    std::vector<char> bytes = whole;
    const size_t from = random() % bytes.size(), to = random() % bytes.size();
    const size_t length = random() % (bytes.size() - std::max(from, to));
    std::memmove(bytes.data() + to, whole.data() + from, length);
    accepts(bytes);
  }
}

TEST(files_that_cannot_be_read) {
  const auto status = [](const std::string &path) {
    try {
      Bundle::read(path);
    } catch (const Error &error) {
      CHECK_CONTAINS(error.what(), path);
      return error.status;
    }
    return SMD_OK;
  };
  CHECK_EQUAL(status("/nonexistent/x.safetensors"), SMD_ERROR_FILE);
  CHECK_EQUAL(status("/tmp"), SMD_ERROR_FILE);
  CHECK_EQUAL(status("/dev/zero"), SMD_ERROR_FILE);
  const std::string fifo = "test_bundle_fifo";
  CHECK_EQUAL(mkfifo(fifo.c_str(), 0600), 0);
  CHECK_EQUAL(status(fifo), SMD_ERROR_FILE);
  unlink(fifo.c_str());
}

CHECK_MAIN
