// SPDX-License-Identifier: BSD-3-Clause
// stablemd._connector: the C API of libstablemd as Python sees it. Arrays are views; errors are those of
// stablemd._errors.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <csignal>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hash.h"
#include "stablemd.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

// Needs the GIL. The message must be read before anything else calls into the library on this thread.
void check(smd_status status) {
  if (status == SMD_OK) return;
  const std::string message = smd_last_error();
  nb::object kind = nb::module_::import_("stablemd._errors").attr("BY_STATUS")[nb::int_(static_cast<int>(status))];
  PyErr_SetString(kind.ptr(), message.c_str());
  throw nb::python_error();
}

// Calls into the library without the GIL: compiling takes seconds, and other threads may want to run meanwhile.
template <class Call>
void call(Call &&function) {
  smd_status status;
  {
    nb::gil_scoped_release release;
    status = function();
  }
  check(status);
}

// Python handles signals wherever it runs, in a log callback too, from which nothing can be thrown: once more, then, as
// soon as the library has returned.
void postpone_signal(const nb::python_error &error) {
  if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterruptEx(SIGINT);
  if (error.matches(PyExc_SystemExit)) PyErr_SetInterruptEx(SIGTERM);
}

// The library's log lines go to Python's logger "stablemd". Called inside call(), hence without the GIL.
void log_to_python(smd_log_level level, const char *line, void *) {
  nb::gil_scoped_acquire acquire;
  try {
    nb::object logger = nb::module_::import_("logging").attr("getLogger")("stablemd");
    logger.attr(level == SMD_LOG_WARNING ? "warning" : "info")("%s", line);
  } catch (nb::python_error &error) {
    if (error.matches(PyExc_Exception)) {
      error.discard_as_unraisable("stablemd log");
    } else {
      postpone_signal(error);
    }
  }
}

const char *optional_text(const std::optional<std::string> &text) { return text ? text->c_str() : nullptr; }

class Runtime {
 public:
  Runtime(const std::string &device, const std::optional<std::string> &plugin, int threads, int ordinal,
          const std::optional<std::string> &cache) {
    smd_runtime_options options{};
    options.struct_size = sizeof options;
    options.device = device.c_str();
    options.plugin = optional_text(plugin);
    options.threads = threads;
    options.device_ordinal = ordinal;
    options.cache_directory = optional_text(cache);
    options.log = log_to_python;
    smd_runtime *created = nullptr;
    call([&] { return smd_runtime_create(&options, &created); });
    handle_.reset(created);
  }

  nb::dict info() const {
    smd_runtime_info info{};
    info.struct_size = sizeof info;
    check(smd_runtime_get_info(handle_.get(), &info));
    nb::dict result;
    result["platform"] = info.platform;
    result["platform_version"] = info.platform_version;
    result["plugin_path"] = info.plugin_path;
    result["pjrt"] = nb::make_tuple(info.pjrt_major, info.pjrt_minor);
    result["ffi"] = nb::make_tuple(info.ffi_major, info.ffi_minor);
    result["threads"] = info.threads;
    result["provider_count"] = info.provider_count;
    return result;
  }

  smd_runtime *get() const { return handle_.get(); }

 private:
  struct Destroy {
    void operator()(smd_runtime *runtime) const { smd_runtime_destroy(runtime); }
  };
  std::unique_ptr<smd_runtime, Destroy> handle_;
};

// A view into memory that `owner` keeps alive.
template <class T>
nb::object view(const T *data, std::vector<size_t> shape, nb::handle owner) {
  return nb::cast(
      nb::ndarray<nb::numpy, T>(const_cast<std::remove_const_t<T> *>(data), shape.size(), shape.data(), owner),
      nb::rv_policy::reference);
}

nb::object real_view(const void *data, smd_dtype dtype, bool writable, std::vector<size_t> shape, nb::handle owner) {
  if (dtype == SMD_FLOAT32) {
    return writable ? view(static_cast<float *>(const_cast<void *>(data)), std::move(shape), owner)
                    : view(static_cast<const float *>(data), std::move(shape), owner);
  }
  return writable ? view(static_cast<double *>(const_cast<void *>(data)), std::move(shape), owner)
                  : view(static_cast<const double *>(data), std::move(shape), owner);
}

// Arrays to fill, as smd_model_reserve hands them out; they are gone when a later reserve moves them.
struct GraphView {
  nb::object species, centers, neighbors, vectors;
  std::vector<int64_t> node_offset, edge_offset;
  int64_t node_capacity, edge_capacity;
  bool moved;
};

class Model {
 public:
  Model(std::shared_ptr<Runtime> runtime, const std::string &path) : runtime_(std::move(runtime)) {
    smd_model *loaded = nullptr;
    call([&] { return smd_model_load(runtime_->get(), path.c_str(), &loaded); });
    handle_.reset(loaded);
    info_.struct_size = sizeof info_;
    check(smd_model_get_info(handle_.get(), &info_));
  }

  const smd_model_info &info() const { return info_; }

  GraphView reserve(nb::handle self, const std::vector<int64_t> &nodes, const std::vector<int64_t> &edges) {
    smd_graph_size size{};
    size.struct_size = sizeof size;
    const auto layers = static_cast<size_t>(info_.layers);
    if (nodes.size() != layers + 1 || edges.size() != layers) {
      const std::string expected = std::to_string(layers + 1) + " node counts and " + std::to_string(layers);
      throw nb::value_error(("a graph of this model has " + expected + " edge counts").c_str());
    }
    std::copy(nodes.begin(), nodes.end(), size.nodes);
    std::copy(edges.begin(), edges.end(), size.edges);
    smd_graph graph{};
    graph.struct_size = sizeof graph;
    call([&] {
      std::lock_guard<std::mutex> lock(mutex_);
      return smd_model_reserve(handle_.get(), &size, &graph);
    });
    owned_ = static_cast<size_t>(nodes[0]);
    edge_capacity_ = static_cast<size_t>(graph.edge_capacity);
    const std::vector<size_t> rows{static_cast<size_t>(graph.node_capacity)}, pairs{edge_capacity_};
    return {view(graph.species, rows, self),
            view(graph.centers, pairs, self),
            view(graph.neighbors, pairs, self),
            real_view(graph.vectors, info_.dtype, true, {edge_capacity_, 3}, self),
            std::vector<int64_t>(graph.node_offset, graph.node_offset + layers + 1),
            std::vector<int64_t>(graph.edge_offset, graph.edge_offset + layers),
            graph.node_capacity,
            graph.edge_capacity,
            graph.moved != 0};
  }

  nb::tuple evaluate(nb::handle self) {
    smd_result result{};
    result.struct_size = sizeof result;
    call([&] {
      std::lock_guard<std::mutex> lock(mutex_);
      return smd_model_evaluate(handle_.get(), &result);
    });
    nb::dict outputs;
    for (int32_t i = 0; i < info_.output_count; ++i) {
      std::vector<size_t> shape{owned_};
      if (info_.output_widths[i] > 1) shape.push_back(static_cast<size_t>(info_.output_widths[i]));
      outputs[info_.output_names[i]] = real_view(result.outputs[i], info_.dtype, false, shape, self);
    }
    return nb::make_tuple(real_view(result.node_energy, info_.dtype, false, {owned_}, self),
                          real_view(result.edge_gradient, info_.dtype, false, {edge_capacity_, 3}, self), outputs);
  }

  nb::dict inputs() const {
    nb::dict result;
    for (int32_t i = 0; i < info_.input_count; ++i)
      result[info_.input_names[i]] = nb::make_tuple(info_.input_defaults[i], info_.input_minima[i],
                                                    info_.input_maxima[i], info_.input_integer[i] != 0);
    return result;
  }

  void set_input(const std::string &name, double value) {
    call([&] {
      std::lock_guard<std::mutex> lock(mutex_);
      return smd_model_set_input(handle_.get(), name.c_str(), value);
    });
  }

  nb::dict stats() const {
    smd_model_stats stats{};
    stats.struct_size = sizeof stats;
    check(smd_model_get_stats(handle_.get(), &stats));
    nb::dict result;
    result["evaluations"] = stats.evaluations;
    result["compilations"] = stats.compilations;
    result["cache_hits"] = stats.cache_hits;
    result["capacity_changes"] = stats.capacity_changes;
    result["compile_seconds"] = stats.compile_seconds;
    result["execute_seconds"] = stats.execute_seconds;
    return result;
  }

  std::shared_ptr<Runtime> runtime() const { return runtime_; }

 private:
  struct Destroy {
    void operator()(smd_model *model) const { smd_model_destroy(model); }
  };
  std::shared_ptr<Runtime> runtime_;  // outlives the model
  std::unique_ptr<smd_model, Destroy> handle_;
  smd_model_info info_{};
  std::mutex mutex_;  // the library's models are not thread-safe, and we run them without the GIL
  size_t owned_ = 0, edge_capacity_ = 0;
};

}  // namespace

NB_MODULE(_connector, m) {
  nb::set_leak_warnings(false);  // calculators may live until the interpreter ends
  m.doc() = "Thin binding of stablemd.h; use stablemd.StableMDCalculator instead.";
  m.attr("API_VERSION") = nb::make_tuple(smd_api_version() >> 16, smd_api_version() & 0xffff);
  m.def(
      "cache_directory", [] { return std::string(smd_cache_directory()); },
      "Folder of the executable cache; '' if there is none.");

  m.def(
      "content_hash",
      [](const nb::bytes &content) { return stablemd::hash_bytes({content.c_str(), content.size()}).hex(); },
      "content"_a, "The checksum that docs/bundle.md defines, of bytes behind a bundle's header.");

  m.def(
      "cache_limit",
      [] {
        uint64_t bytes = 0;
        check(smd_cache_limit(&bytes));
        return bytes;
      },
      "Bytes that compiled programs may take in a cache; 0: any number.");

  nb::class_<Runtime>(m, "Runtime", nb::is_weak_referenceable(), "A PJRT plugin, its device and the FFI providers.")
      .def(nb::init<const std::string &, const std::optional<std::string> &, int, int,
                    const std::optional<std::string> &>(),
           "device"_a = "cpu", "plugin"_a = nb::none(), "threads"_a = 0, "ordinal"_a = 0, "cache"_a = nb::none())
      .def("info", &Runtime::info);

  nb::class_<GraphView>(m, "Graph", "Arrays to fill, valid until a later reserve() moves them.")
      .def_ro("species", &GraphView::species, "int32 [rows]")
      .def_ro("centers", &GraphView::centers, "int32 [edges]")
      .def_ro("neighbors", &GraphView::neighbors, "int32 [edges]")
      .def_ro("vectors", &GraphView::vectors, "float [edges, 3]")
      .def_ro("node_offset", &GraphView::node_offset)
      .def_ro("edge_offset", &GraphView::edge_offset)
      .def_ro("node_capacity", &GraphView::node_capacity)
      .def_ro("edge_capacity", &GraphView::edge_capacity)
      .def_ro("moved", &GraphView::moved);

  nb::class_<Model>(m, "Model", "A bundle on a runtime.")
      .def(nb::init<std::shared_ptr<Runtime>, const std::string &>(), "runtime"_a, "path"_a)
      .def_prop_ro("cutoff", [](const Model &model) { return model.info().cutoff; })
      .def_prop_ro("layers", [](const Model &model) { return model.info().layers; })
      .def_prop_ro("dtype", [](const Model &m) { return m.info().dtype == SMD_FLOAT32 ? "float32" : "float64"; })
      .def_prop_ro("elements",
                   [](const Model &model) {
                     const smd_model_info &info = model.info();
                     return std::vector<std::string>(info.elements, info.elements + info.element_count);
                   })
      .def_prop_ro("atomic_energies",
                   [](const Model &model) {
                     const smd_model_info &info = model.info();
                     return std::vector<double>(info.atomic_energies, info.atomic_energies + info.element_count);
                   })
      .def_prop_ro("energy_unit", [](const Model &model) { return model.info().energy_unit; })
      .def_prop_ro("length_unit", [](const Model &model) { return model.info().length_unit; })
      .def_prop_ro("manifest", [](const Model &model) { return model.info().manifest; })
      .def_prop_ro("outputs",
                   [](const Model &model) {
                     const smd_model_info &info = model.info();
                     return std::vector<std::string>(info.output_names, info.output_names + info.output_count);
                   })
      .def_prop_ro("inputs", &Model::inputs, "{name: (default, least, largest, whether whole)}")
      .def("set_input", &Model::set_input, "name"_a, "value"_a)
      .def_prop_ro("runtime", &Model::runtime)
      .def(
          "reserve",
          [](nb::handle self, const std::vector<int64_t> &nodes, const std::vector<int64_t> &edges) {
            return nb::cast<Model &>(self).reserve(self, nodes, edges);
          },
          "nodes"_a, "edges"_a, "Makes room for a graph with these rows and edges per hop; returns a Graph to fill.")
      .def(
          "evaluate", [](nb::handle self) { return nb::cast<Model &>(self).evaluate(self); },
          "Evaluates the filled graph: views of (node_energy [owned], edge_gradient [edge_capacity, 3], {name: extra "
          "output [owned] or [owned, width]}).")
      .def("stats", &Model::stats);
}
