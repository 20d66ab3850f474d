// SPDX-License-Identifier: BSD-3-Clause
#include "model.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "error.h"
#include "signature.h"

namespace stablemd {
namespace {

std::vector<int64_t> shape_of(const Port &port, const Sizes &sizes) {
  std::vector<int64_t> shape;
  for (const SizeExpression &dimension : port.shape) shape.push_back(dimension.value(sizes));
  return shape;
}

/// -1, 0 or 1 for versions such as 1.15.0.
int compare_versions(const std::string &a, const std::string &b) {
  std::istringstream left(a), right(b);
  for (int i = 0; i < 3; ++i) {
    int l = 0, r = 0;
    char dot;
    left >> l;
    right >> r;
    if (l != r) return l < r ? -1 : 1;
    left >> dot;
    right >> dot;
  }
  return 0;
}

/// Runs a function whose errors do not say which bundle they are about.
template <class Function>
auto about(const std::string &bundle, const Function &function) {
  try {
    return function();
  } catch (const Error &error) {
    fail(error.status, bundle, ": ", error.what());
  }
}

/// What a plugin does not know of a program, from XLA's message: "" if it knows all, or does not say.
std::string unknown_to_plugin(const std::string &message) {
  for (const char *words : {"unregistered operation '", "unknown vhlo type: ", "unknown vhlo attribute"}) {
    const size_t found = message.find(words);
    if (found == std::string::npos) continue;
    const size_t begin = found + std::strlen(words);
    const std::string name = message.substr(begin, message.find_first_of("' ", begin) - begin);
    return name.empty() ? "an attribute" : "`" + name + "`";
  }
  return "";
}

bool environment_is_set(const char *name) {
  const char *value = std::getenv(name);
  return value && *value && std::string(value) != "0";
}

}  // namespace

Model::Model(std::shared_ptr<Runtime> runtime, const std::string &path)
    : runtime_(std::move(runtime)), name_(path), checks_edges_(environment_is_set("STABLEMD_CHECK")) {
  const Bundle bundle = Bundle::read(path);
  manifest_ = bundle.manifest();
  interface_ = bundle.program(runtime_->device());
  check_targets();
  check_stablehlo();
  const std::string_view source = bundle.program_text(interface_);
  about(text(name_, ": ", interface_.text), [&] {
    program_ = {ProgramTemplate(source, manifest_.layers), hash_bytes(source)};
    check_signature(source, interface_, manifest_.layers);
  });
  inputs_ = GraphInputs(manifest_.graph_inputs, manifest_.real);
  upload_weights(bundle);
}

void Model::check_targets() const {
  for (const std::string &target : interface_.targets) {
    if (runtime_->providers().provide(target)) continue;
    const std::string failure = runtime_->providers().failure();
    if (!failure.empty())
      fail(SMD_ERROR_PROVIDER, name_, ": needs the FFI target `", target, "`, which no provider registered: ", failure);
    fail(SMD_ERROR_PROVIDER, name_, ": needs the FFI target `", target, "`, which no provider registered (looked in ",
         runtime_->providers().searched(), "): put the provider's library on STABLEMD_FFI_PATH");
  }
}

void Model::check_stablehlo() const {
  const std::string &needed = manifest_.stablehlo_version;
  const std::string offered = runtime_->client().plugin().stablehlo_version();
  if (needed.empty() || offered.empty() || compare_versions(needed, offered) <= 0) return;
  fail(SMD_ERROR_PLUGIN, name_, ": needs StableHLO ", needed, ", the PJRT plugin ", runtime_->client().plugin().path(),
       " reads ", offered, ": upgrade the plugin or export the model with an older jax");
}

void Model::upload_weights(const Bundle &bundle) {
  for (const Port &port : interface_.inputs) {
    arguments_.push_back({nullptr, false});
    if (port.role != Role::weight) continue;
    const Tensor &tensor = bundle.tensor(port.tensor);
    arguments_.back().buffer = runtime_->client().upload(tensor.data, *tensor.type, tensor.shape, HostMemory::copied);
  }
}

const void *Model::data(const Port &port, const GraphArrays &arrays) const {
  return port.role == Role::graph_input ? inputs_.data(port.name) : arrays.data(port.role);
}

BufferHandle Model::upload(const Port &port, const GraphArrays &arrays, HostMemory memory) const {
  const Sizes sizes = program_sizes(arrays.capacity());
  return runtime_->client().upload(data(port, arrays), *port.type, shape_of(port, sizes), memory);
}

bool Model::reserve(const smd_graph_size &size, smd_graph &graph) {
  const HopCounts counts = checked_counts(size, manifest_.layers);
  const HopCounts need = with_padding(counts);
  const auto verdict = keeper_.judge(need);
  using Verdict = CapacityKeeper::Verdict;
  const bool moved = verdict != Verdict::keep && change_capacity(need, verdict == Verdict::change_if_free);
  arrays_.set_graph(counts);
  arrays_.describe(graph);
  graph.moved = moved;
  return moved;
}

SizedExecutable Model::compiled(const HopCounts &wanted) {
  try {
    return runtime_->executable(program_, wanted, compile_stats_);
  } catch (const Error &error) {
    if (error.status == SMD_ERROR_COMPILE) explain_unreadable(error.what());
    fail(error.status, name_, ": ", error.what());
  }
}

/// Throws if a plugin's message means that it cannot read a program: the parser's own words name neither side.
void Model::explain_unreadable(const std::string &message) const {
  const Plugin &plugin = runtime_->client().plugin();
  const std::string version = plugin.stablehlo_version();
  const std::string reader =
      text("the PJRT plugin ", plugin.path(), version.empty() ? "" : ", which reads StableHLO up to " + version);
  const std::string writer = manifest_.made_with.empty() ? "" : " (written by " + manifest_.made_with + ")";
  const std::string unknown = unknown_to_plugin(message);
  if (!unknown.empty())
    fail(SMD_ERROR_PLUGIN, name_, ": the program", writer, " is newer than ", reader, ": it holds ", unknown,
         ", which the plugin does not know: upgrade the plugin or export the model with an older jax");
  if (message.find("Failed to parse using StableHLO") != std::string::npos)
    fail(SMD_ERROR_COMPILE, name_, ": the program", writer, " is damaged or not for ", reader,
         ": export the model again (", message.substr(0, message.find(" <unknown>")), ")");
}

/// Whether it changed: always, unless only a program that is in use already may take over.
bool Model::change_capacity(const HopCounts &need, bool only_if_free) {
  const HopCounts wanted = about(name_, [&] { return keeper_.next(need); });
  SizedExecutable sized = runtime_->in_use(program_, need, wanted);
  if (!sized.executable && only_if_free) return false;
  if (!sized.executable) sized = compiled(wanted);
  check_outputs(sized);
  GraphArrays arrays(sized.capacity, manifest_.real, manifest_.cutoff);
  std::vector<std::pair<size_t, Argument>> changed;
  for (size_t i = 0; i < interface_.inputs.size(); ++i) {
    const Port &port = interface_.inputs[i];
    if (port.role == Role::weight) continue;
    Argument argument{nullptr, true};
    if (runtime_->device() == "cpu") {
      argument.buffer = upload(port, arrays, HostMemory::aliased);
      const void *seen = runtime_->client().device_pointer(argument.buffer.get());
      argument.copied_each_time = seen != data(port, arrays);
      if (argument.copied_each_time) runtime_->log().info(text("the plugin copies `", role_name(port.role), "`"));
    }
    changed.emplace_back(i, std::move(argument));
  }
  // Nothing below throws: a failed change leaves the earlier capacity usable.
  if (program_in_use_.executable) ++capacity_changes_;
  outputs_.clear();
  for (auto &[i, argument] : changed) arguments_[i] = std::move(argument);
  arrays_ = std::move(arrays);
  program_in_use_ = sized;
  keeper_.changed(need, sized.capacity);
  return true;
}

void Model::check_outputs(const SizedExecutable &sized) const {
  const std::vector<OutputShape> &outputs = sized.executable->outputs();
  const Sizes sizes = program_sizes(sized.capacity);
  bool same = outputs.size() == interface_.outputs.size();
  for (size_t i = 0; same && i < outputs.size(); ++i) {
    const Port &port = interface_.outputs[i];
    same = outputs[i].type == port.type->pjrt && outputs[i].dimensions == shape_of(port, sizes);
  }
  if (!same) fail(SMD_ERROR_FORMAT, name_, ": results of ", interface_.text, " are not what the manifest says");
}

size_t Model::output_index(Role role, const std::string &name) const {
  const auto is_it = [&](const Port &port) { return port.role == role && port.name == name; };
  return std::find_if(interface_.outputs.begin(), interface_.outputs.end(), is_it) - interface_.outputs.begin();
}

const void *Model::read(size_t index) {
  PJRT_Buffer *buffer = outputs_[index].get();
  if (runtime_->device() == "cpu") return runtime_->client().device_pointer(buffer);
  size_t bytes = interface_.outputs[index].type->bytes;
  for (const int64_t dimension : shape_of(interface_.outputs[index], program_sizes(arrays_.capacity())))
    bytes *= dimension;
  copies_.resize(outputs_.size());
  copies_[index] = AlignedMemory(bytes);
  runtime_->client().download(buffer, copies_[index].data(), bytes);
  return copies_[index].data();
}

void Model::set_input(const std::string &name, double value) {
  about(name_, [&] { inputs_.set(name, value); });
}

void Model::evaluate(smd_result &result) {
  if (!program_in_use_.executable) fail(SMD_ERROR_ARGUMENT, "smd_model_evaluate: call smd_model_reserve first");
  arrays_.check_values(static_cast<int>(manifest_.elements.size()));
  if (checks_edges_) arrays_.check_edges();
  const auto start = std::chrono::steady_clock::now();
  outputs_.clear();
  std::vector<PJRT_Buffer *> arguments;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    Argument &argument = arguments_[i];
    if (argument.copied_each_time) argument.buffer = upload(interface_.inputs[i], arrays_, HostMemory::copied);
    arguments.push_back(argument.buffer.get());
  }
  outputs_ = about(name_, [&] { return program_in_use_.executable->execute(arguments); });
  result.node_energy = read(output_index(Role::node_energy));
  result.edge_gradient = read(output_index(Role::edge_gradient));
  node_outputs_.clear();
  for (const NodeOutput &output : manifest_.node_outputs)
    node_outputs_.push_back(read(output_index(Role::node_output, output.name)));
  result.outputs = node_outputs_.data();
  execute_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ++evaluations_;
  check_finite(result.node_energy, result.edge_gradient);
  check_node_outputs();
}

void Model::check_node_outputs() const {
  for (size_t i = 0; i < node_outputs_.size(); ++i) {
    const NodeOutput &output = manifest_.node_outputs[i];
    const int64_t bad = first_not_finite(node_outputs_[i], *manifest_.real, output.width * arrays_.graph().rows[0]);
    if (bad < 0) continue;
    fail(SMD_ERROR_EXECUTION, name_, ": the output `", output.name, "` of row ", bad / output.width,
         " is not finite: atoms too close, or a broken model");
  }
}

void Model::check_finite(const void *node_energy, const void *edge_gradient) const {
  const ElementType &real = *manifest_.real;
  const HopCounts &graph = arrays_.graph();
  const int64_t row = first_not_finite(node_energy, real, graph.rows[0]);
  if (row >= 0) {
    fail(SMD_ERROR_EXECUTION, name_, ": the energy of row ", row, " is not finite: atoms too close, or a broken model");
  }
  for (int hop = 0; hop < graph.layers; ++hop) {
    const int64_t begin = arrays_.capacity().edge_offset(hop);
    const char *gradient = static_cast<const char *>(edge_gradient) + 3 * begin * real.bytes;
    const int64_t bad = first_not_finite(gradient, real, 3 * graph.edges[hop]);
    if (bad < 0) continue;
    fail(SMD_ERROR_EXECUTION, name_, ": the gradient of edge ", begin + bad / 3,
         " is not finite: atoms too close, or a broken model");
  }
}

void Model::get_stats(smd_model_stats &stats) const {
  stats.evaluations = evaluations_;
  stats.compilations = compile_stats_.compilations;
  stats.cache_hits = compile_stats_.cache_hits;
  stats.capacity_changes = capacity_changes_;
  stats.compile_seconds = compile_stats_.seconds;
  stats.execute_seconds = execute_seconds_;
}

}  // namespace stablemd
