// SPDX-License-Identifier: BSD-3-Clause
// Evaluation through the C interface against closed forms, on random graphs of all kinds of sizes; and what a caller
// can do wrong.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "c_api.h"
#include "check.h"
#include "random_graph.h"

namespace {

using test::Model;
using test::random_graph;
using test::Runtime;

std::mt19937_64 seeded() {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  return std::mt19937_64(seed);
}

template <class Real>
void agree_on_random_graphs(const std::string &name, int layers, double tolerance) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path(name));
  auto random = seeded();
  const std::vector<std::vector<int64_t>> nodes = {{20, 13, 9}, {20, 0, 0},  {1, 1, 0},
                                                   {0, 0, 0},   {33, 20, 7}, {5, 3, 2}};
  const std::vector<std::vector<int64_t>> edges = {{90, 40}, {130, 0}, {0, 3}, {0, 0}, {150, 99}, {17, 0}};
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto graph = random_graph(random, {nodes[i].begin(), nodes[i].begin() + layers + 1},
                                    {edges[i].begin(), edges[i].begin() + layers});
    CHECK(test::evaluate<Real>(model, graph) < tolerance);
  }
}

smd_graph_size one_hop(int64_t nodes, int64_t edges) {
  auto size = test::sized<smd_graph_size>();
  size.nodes[0] = nodes;
  size.edges[0] = edges;
  return size;
}

std::string evaluation_error(Model &model, smd_status expected) {
  auto result = test::sized<smd_result>();
  CHECK_EQUAL(smd_model_evaluate(model.handle, &result), expected);
  CHECK(result.node_energy == nullptr);
  return smd_last_error();
}

std::string reservation_error(Model &model, const smd_graph_size &size) {
  auto graph = test::sized<smd_graph>();
  CHECK_EQUAL(smd_model_reserve(model.handle, &size, &graph), SMD_ERROR_ARGUMENT);
  CHECK(graph.species == nullptr);
  return smd_last_error();
}

}  // namespace

TEST(one_layer_float64) { agree_on_random_graphs<double>("layers1_float64", 1, 1e-14); }
TEST(one_layer_float32) { agree_on_random_graphs<float>("layers1_float32", 1, 2e-6); }
TEST(two_layers_float64) { agree_on_random_graphs<double>("layers2_float64", 2, 1e-13); }
TEST(two_layers_float32) { agree_on_random_graphs<float>("layers2_float32", 2, 5e-6); }

TEST(information) {
  const Runtime runtime;
  const Model model(runtime, test::bundle_path("layers2_float64"));
  const smd_model_info info = model.info();
  CHECK_EQUAL(info.cutoff, 2.5);
  CHECK_EQUAL(info.layers, 2);
  CHECK_EQUAL(info.dtype, SMD_FLOAT64);
  CHECK_EQUAL(info.element_count, 2);
  CHECK_EQUAL(std::string(info.elements[0]), "Si");
  CHECK_EQUAL(std::string(info.elements[1]), "C");
  CHECK_EQUAL(info.atomic_energies[1], -2.5);
  CHECK_EQUAL(std::string(info.energy_unit), "eV");
  CHECK_EQUAL(std::string(info.length_unit), "Angstrom");
  CHECK_CONTAINS(info.manifest, "\"cutoff\": 2.5");
}

TEST(layout_of_the_arrays) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path("layers2_float32"));
  auto size = test::sized<smd_graph_size>();
  size.nodes[0] = 10, size.nodes[1] = 20, size.nodes[2] = 30;
  size.edges[0] = 100, size.edges[1] = 200;
  const smd_graph graph = model.reserve(size);
  CHECK_EQUAL(graph.moved, 1);
  CHECK_EQUAL(graph.node_offset[0], 0);
  CHECK_EQUAL(graph.edge_offset[0], 0);
  CHECK(graph.node_offset[1] >= 11);
  CHECK(graph.node_offset[2] >= graph.node_offset[1] + 21);
  CHECK(graph.node_capacity >= graph.node_offset[2] + 31);
  CHECK(graph.edge_offset[1] >= 101);
  CHECK(graph.edge_capacity >= graph.edge_offset[1] + 201);
  for (const void *array : {(void *)graph.species, (void *)graph.centers, (void *)graph.neighbors, graph.vectors}) {
    CHECK_EQUAL(reinterpret_cast<uintptr_t>(array) % 64, uintptr_t{0});
  }
  const int64_t dummy = graph.node_offset[1] - 1;
  for (int64_t edge = 100; edge < graph.edge_offset[1]; ++edge) {
    CHECK_EQUAL(graph.centers[edge], dummy);
    CHECK_EQUAL(graph.neighbors[edge], dummy);
    CHECK_EQUAL(static_cast<float *>(graph.vectors)[3 * edge], float(1.01 * 2.5));
    CHECK_EQUAL(static_cast<float *>(graph.vectors)[3 * edge + 2], 0.0f);
  }
  CHECK_EQUAL(model.reserve(size).moved, 0);
  for (const test::LogLine &line : runtime.log) CHECK(line.line.find("copies") == std::string::npos);
}

TEST(sizes_across_every_boundary) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path("layers2_float64"));
  auto random = seeded();
  int64_t moves = 0;
  int64_t capacity = 0;
  for (const int step : {1, -1}) {
    for (int64_t edges = step > 0 ? 0 : 60; edges >= 0 && edges <= 60; edges += 4 * step) {
      const auto graph = random_graph(random, {7, 4, 3}, {edges, edges / 3});
      const smd_graph arrays = model.reserve(graph.size());
      moves += arrays.moved;
      CHECK_EQUAL(arrays.moved, int32_t{arrays.edge_capacity != capacity});
      capacity = arrays.edge_capacity;
      test::fill<double>(graph, arrays);
      CHECK(test::difference<double>(graph, arrays, model.evaluate()) < 1e-13);
    }
  }
  CHECK(moves >= 5);
  CHECK_EQUAL(model.stats().capacity_changes, moves - 1);  // the first size is no change
  CHECK(model.stats().compilations <= moves);
}

TEST(growth_and_shrinkage) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path("layers1_float64"));
  auto random = seeded();
  std::vector<int64_t> capacities;
  for (const int64_t edges : {3000, 6000, 3000, 6000, 3000}) {
    const auto graph = random_graph(random, {300, 200}, {edges});
    CHECK(test::evaluate<double>(model, graph) < 1e-13);
    capacities.push_back(model.reserve(graph.size()).edge_capacity);
    CHECK(capacities.back() >= edges + 1);
    CHECK(capacities.back() <= 1.31 * edges);
  }
  CHECK_EQUAL(capacities[0], capacities[2]);
  CHECK_EQUAL(capacities[1], capacities[3]);
  CHECK_EQUAL(model.stats().compilations, 2);
  CHECK_EQUAL(model.stats().capacity_changes, 4);
  CHECK_EQUAL(model.stats().evaluations, 5);
  CHECK(model.stats().compile_seconds > 0);
  CHECK(model.stats().execute_seconds > 0);
}

TEST(what_an_engine_leaves_in_the_padding_does_not_matter) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path("layers2_float64"));
  auto random = seeded();
  const auto large = random_graph(random, {40, 30, 20}, {300, 200});
  const auto smaller = random_graph(random, {35, 25, 15}, {250, 170});
  const smd_graph arrays = model.reserve(large.size());
  for (size_t hop = 0; hop < 2; ++hop) {  // poison all that belongs to the engine
    for (size_t edge = 0; edge < large.edges[hop].size(); ++edge) {
      const int64_t at = arrays.edge_offset[hop] + static_cast<int64_t>(edge);
      arrays.centers[at] = arrays.neighbors[at] = 0x7fffffff;
      for (int k = 0; k < 3; ++k) static_cast<double *>(arrays.vectors)[3 * at + k] = NAN;
    }
  }
  for (size_t row = 0; row < large.species.size(); ++row) {
    arrays.species[test::placed_row(large, arrays, static_cast<int64_t>(row))] = -5;
  }
  CHECK(test::evaluate<double>(model, smaller) < 1e-13);
  CHECK(test::evaluate<double>(model, large) < 1e-13);
}

TEST(contents_stay_between_evaluations) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path("layers1_float64"));
  auto random = seeded();
  const auto graph = random_graph(random, {20, 10}, {100});
  test::fill<double>(graph, model.reserve(graph.size()));
  model.evaluate();
  const smd_graph again = model.reserve(graph.size());
  CHECK(test::difference<double>(graph, again, model.evaluate()) < 1e-14);
}

TEST(order_of_calls) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path("layers1_float32"));
  CHECK_CONTAINS(evaluation_error(model, SMD_ERROR_ARGUMENT), "call smd_model_reserve first");
}

TEST(wrong_sizes) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path("layers1_float64"));
  auto random = seeded();
  const auto graph = random_graph(random, {20, 10}, {100});
  CHECK(test::evaluate<double>(model, graph) < 1e-14);
  CHECK_CONTAINS(reservation_error(model, one_hop(-1, 0)), "nodes[0] is negative (-1)");
  CHECK_CONTAINS(reservation_error(model, one_hop(0, 4)), "hop 0 has 4 edges but no nodes");
  CHECK_CONTAINS(reservation_error(model, one_hop(10, (int64_t{1} << 31) + 5)), "edges[0] is 2147483653");
  CHECK_CONTAINS(reservation_error(model, one_hop(10, INT32_MAX)), "2147483648 edges with padding");
  auto size = one_hop(1, 1);
  size.struct_size = 0;
  CHECK_CONTAINS(reservation_error(model, size), "size->struct_size is 0");
  CHECK(test::evaluate<double>(model, graph) < 1e-14);  // nothing of this did any harm
}

TEST(wrong_values) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path("layers1_float32"));
  auto random = seeded();
  const auto graph = random_graph(random, {20, 10}, {100});
  smd_graph arrays = model.reserve(graph.size());
  test::fill<float>(graph, arrays);
  for (const int32_t species : {-1, 2}) {
    arrays.species[arrays.node_offset[1] + 9] = species;
    CHECK_CONTAINS(evaluation_error(model, SMD_ERROR_ARGUMENT), "the model has 2 elements");
  }
  test::fill<float>(graph, arrays);
  for (const float broken : {NAN, HUGE_VALF, -HUGE_VALF}) {
    static_cast<float *>(arrays.vectors)[3 * 57 + 2] = broken;
    CHECK_CONTAINS(evaluation_error(model, SMD_ERROR_ARGUMENT), "vector of edge 57 (rows ");
  }
  test::fill<float>(graph, arrays);
  CHECK(test::difference<float>(graph, arrays, model.evaluate()) < 5e-6);
}

TEST(a_model_that_gives_nan) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path("broken_energy"));
  const smd_graph arrays = model.reserve(one_hop(3, 1));
  arrays.species[0] = arrays.species[1] = arrays.species[2] = 0;
  arrays.centers[0] = 1;
  arrays.neighbors[0] = 2;
  for (int k = 0; k < 3; ++k) static_cast<float *>(arrays.vectors)[k] = 0.5f;
  model.evaluate();
  for (int k = 0; k < 3; ++k) static_cast<float *>(arrays.vectors)[k] = 0;
  CHECK_CONTAINS(evaluation_error(model, SMD_ERROR_EXECUTION), "the energy of row 1 is not finite");
}

TEST(a_model_whose_gradient_is_nan) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path("broken_gradient"));
  const smd_graph arrays = model.reserve(one_hop(2, 2));
  for (int i = 0; i < 2; ++i) arrays.species[i] = 0, arrays.centers[i] = i, arrays.neighbors[i] = 1 - i;
  for (int k = 0; k < 6; ++k) static_cast<float *>(arrays.vectors)[k] = 0.5f;
  model.evaluate();
  for (int k = 3; k < 6; ++k) static_cast<float *>(arrays.vectors)[k] = 0;
  CHECK_CONTAINS(evaluation_error(model, SMD_ERROR_EXECUTION), "the gradient of edge 1 is not finite");
}

TEST(checks_on_demand) {
  setenv("STABLEMD_CHECK", "1", 1);
  const Runtime runtime;
  Model model(runtime, test::bundle_path("layers2_float64"));
  unsetenv("STABLEMD_CHECK");
  auto random = seeded();
  const auto graph = random_graph(random, {20, 10, 5}, {100, 40});
  CHECK(test::evaluate<double>(model, graph) < 1e-13);
  smd_graph arrays = model.reserve(graph.size());
  std::swap(arrays.centers[0], arrays.centers[99]);
  CHECK_CONTAINS(evaluation_error(model, SMD_ERROR_ARGUMENT), "not sorted by centre at edge 1");
  test::fill<double>(graph, arrays);
  arrays.centers[3] = 20;
  CHECK_CONTAINS(evaluation_error(model, SMD_ERROR_ARGUMENT), "centre of edge 3 is row 20, not in hop 0");
  test::fill<double>(graph, arrays);
  arrays.neighbors[7] = static_cast<int32_t>(arrays.node_offset[2]);
  CHECK_CONTAINS(evaluation_error(model, SMD_ERROR_ARGUMENT), "neighbour of edge 7 is row");
}

TEST(node_outputs) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path("coordination"));
  const smd_model_info info = model.info();
  CHECK_EQUAL(info.output_count, 2);
  CHECK_EQUAL(std::string(info.output_names[0]), "coordination");
  CHECK_EQUAL(std::string(info.output_units[1]), "unit of moment");
  CHECK_EQUAL(info.output_widths[0], 1);
  CHECK_EQUAL(info.output_widths[1], 3);
  CHECK_EQUAL(Model(runtime, test::bundle_path("layers1_float32")).info().output_count, 0);

  auto random = seeded();
  for (const int64_t edges : {100, 40, 1000}) {
    const auto graph = random_graph(random, {20, 10}, {edges});
    const smd_graph arrays = model.reserve(graph.size());
    test::fill<float>(graph, arrays);
    const smd_result result = model.evaluate();
    CHECK(test::difference<float>(graph, arrays, result) < 5e-6);
    std::array<std::array<double, 4>, 20> expected{};  // coordination and moment
    for (const test::Edge &edge : graph.edges[0]) {
      const auto &v = edge.vector;
      const double u = std::max(0.0, 1 - (v[0] * v[0] + v[1] * v[1] + v[2] * v[2]) / (test::kCutoff * test::kCutoff));
      for (int k = 0; k < 4; ++k) expected[edge.center][k] += std::pow(u, 3) * (k == 0 ? 1.0 : v[k - 1]);
    }
    const auto *coordination = static_cast<const float *>(result.outputs[0]);
    const auto *moment = static_cast<const float *>(result.outputs[1]);
    for (int row = 0; row < 20; ++row) {
      CHECK(std::abs(coordination[row] - expected[row][0]) < 5e-5);
      for (int k = 0; k < 3; ++k) CHECK(std::abs(moment[3 * row + k] - expected[row][1 + k]) < 5e-5);
    }
  }
}

TEST(node_outputs_that_are_not_finite) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path("not_finite"));
  auto random = seeded();
  const auto graph = random_graph(random, {1, 1}, {0});
  test::fill<float>(graph, model.reserve(graph.size()));
  CHECK_CONTAINS(evaluation_error(model, SMD_ERROR_EXECUTION), "the output `logarithm` of row 0 is not finite");
}

namespace {

/// Energies and gradients of `charged` are those of one layer times 1 + charge, and the field.
template <class Real>
void agree_with_inputs(const std::string &name, double tolerance) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path(name)), plain(runtime, test::bundle_path("layers1_float64"));
  auto random = seeded();
  double charge = 0, field = 0.5;  // the defaults
  for (const int64_t edges : {100, 60, 1000, 100}) {
    const auto graph = random_graph(random, {20, 10}, {edges});
    test::fill<double>(graph, plain.reserve(graph.size()));
    const smd_result expected = plain.evaluate();
    const smd_graph arrays = model.reserve(graph.size());
    test::fill<Real>(graph, arrays);
    for (const auto &[next_charge, next_field] : {std::pair{charge, field}, {2.0, -1.5}, {-2.0, 0.1}}) {
      if (next_charge != charge) test::require_ok(smd_model_set_input(model.handle, "charge", next_charge));
      if (next_field != field) test::require_ok(smd_model_set_input(model.handle, "field", next_field));
      charge = next_charge, field = next_field;
      const smd_result result = model.evaluate();
      for (int64_t row = 0; row < 20; ++row) {
        const double energy = (1 + charge) * static_cast<const double *>(expected.node_energy)[row] + field;
        CHECK(std::abs(static_cast<const Real *>(result.node_energy)[row] - energy) < tolerance);
      }
      for (int64_t i = 0; i < 3 * edges; ++i) {
        const double gradient = (1 + charge) * static_cast<const double *>(expected.edge_gradient)[i];
        CHECK(std::abs(static_cast<const Real *>(result.edge_gradient)[i] - gradient) < tolerance);
      }
    }
  }
  CHECK(model.stats().compilations <= 3);  // a value is no reason to compile
}

}  // namespace

TEST(graph_inputs_float64) { agree_with_inputs<double>("charged_float64", 1e-12); }
TEST(graph_inputs_float32) { agree_with_inputs<float>("charged_float32", 2e-4); }

TEST(graph_inputs_in_the_information) {
  const Runtime runtime;
  const Model model(runtime, test::bundle_path("charged_float32"));
  const smd_model_info info = model.info();
  CHECK_EQUAL(info.input_count, 2);
  CHECK_EQUAL(std::string(info.input_names[0]), "charge");
  CHECK_EQUAL(std::string(info.input_names[1]), "field");
  CHECK_EQUAL(info.input_defaults[1], 0.5);
  CHECK_EQUAL(info.input_minima[0], -2.0);
  CHECK_EQUAL(info.input_maxima[0], 2.0);
  CHECK_EQUAL(info.input_minima[1], -HUGE_VAL);
  CHECK_EQUAL(info.input_maxima[1], 10.0);
  CHECK_EQUAL(info.input_integer[0], 1);
  CHECK_EQUAL(info.input_integer[1], 0);
}

TEST(graph_inputs_that_are_refused) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path("charged_float32"));
  const smd_graph arrays = model.reserve(one_hop(1, 0));
  arrays.species[0] = 0;
  test::require_ok(smd_model_set_input(model.handle, "field", 7));
  const auto refused = [&](const char *name, double value) {
    CHECK_EQUAL(smd_model_set_input(model.handle, name, value), SMD_ERROR_ARGUMENT);
    const std::string line = smd_last_error();
    CHECK_CONTAINS(line, test::bundle_path("charged_float32") + ": ");
    return line;
  };
  CHECK_CONTAINS(refused("charge", 3), "`charge` is 3, it must be a whole number from -2 to 2");
  CHECK_CONTAINS(refused("charge", -2.5), "`charge` is -2.5, it must be a whole number from -2 to 2");
  CHECK_CONTAINS(refused("charge", 0.5), "a whole number");
  CHECK_CONTAINS(refused("field", 10.5), "`field` is 10.5, it must be a finite number, at most 10");
  CHECK_CONTAINS(refused("field", NAN), "`field` is nan, it must be a finite number");
  CHECK_CONTAINS(refused("field", -HUGE_VAL), "`field` is -inf");
  CHECK_CONTAINS(refused("field", -1e300), "`field` is -1e+300");  // infinite in float32
  CHECK_CONTAINS(refused("spin", 1), "takes no `spin`; it takes charge, field");
  CHECK_EQUAL(*static_cast<const float *>(model.evaluate().node_energy), 7.0f);
  CHECK_EQUAL(smd_model_set_input(model.handle, nullptr, 1), SMD_ERROR_ARGUMENT);
  Model plain(runtime, test::bundle_path("layers1_float32"));
  CHECK_EQUAL(plain.info().input_count, 0);
  CHECK_EQUAL(smd_model_set_input(plain.handle, "charge", 1), SMD_ERROR_ARGUMENT);
  CHECK_CONTAINS(smd_last_error(), "takes no `charge`; it takes nothing of the whole structure");
}

TEST(older_callers) {
  const Runtime runtime;
  Model model(runtime, test::bundle_path("coordination"));
  smd_model_info info{};
  info.struct_size = offsetof(smd_model_info, output_count);  // as it was in 1.0
  test::require_ok(smd_model_get_info(model.handle, &info));
  CHECK_EQUAL(info.element_count, 2);
  CHECK(info.output_names == nullptr);
  info.struct_size = offsetof(smd_model_info, input_count);  // as it was in 1.1
  test::require_ok(smd_model_get_info(model.handle, &info));
  CHECK_EQUAL(info.output_count, 2);
  CHECK(info.input_names == nullptr);
}

TEST(bundles_that_contradict_themselves) {
  const Runtime runtime;
  smd_model *model = nullptr;
  CHECK_EQUAL(smd_model_load(runtime.handle, test::bundle_path("newer_stablehlo").c_str(), &model), SMD_ERROR_PLUGIN);
  CHECK_CONTAINS(smd_last_error(), "needs StableHLO 99.0.0");
  CHECK_EQUAL(smd_model_load(runtime.handle, test::bundle_path("unknown_symbol").c_str(), &model), SMD_ERROR_FORMAT);
  CHECK_CONTAINS(smd_last_error(), "programs/cpu: size expression `Q`");
  const std::pair<const char *, const char *> contradictions[] = {
      {"not_mlir", "declares no function `main`"},
      {"swapped_outputs",
       "result 1 of its function `main` is @{+1*C1}x!vhlo.f32_v1, which is not what the manifest says of "
       "`edge_gradient`"},
      {"missing_input", "has 6 arguments, the manifest lists 5"},
      {"swapped_inputs", "argument 2 of its function `main` is @{+1*N}x!vhlo.i32_v1"},
      {"other_weight",
       "argument 1 of its function `main` is 2x2x!vhlo.f32_v1, which is not what the manifest says of "
       "`weights/table`"},
  };
  for (const auto &[name, complaint] : contradictions) {
    CHECK_EQUAL(smd_model_load(runtime.handle, test::bundle_path(name).c_str(), &model), SMD_ERROR_FORMAT);
    CHECK_CONTAINS(smd_last_error(), complaint);
    CHECK_CONTAINS(smd_last_error(), test::bundle_path(name) + ": programs/cpu: ");
  }
}

TEST(a_program_that_the_compiler_refuses) {
  const Runtime runtime;
  auto graph = test::sized<smd_graph>();
  const smd_graph_size size = one_hop(3, 1);
  Model nonsense(runtime, test::bundle_path("broken_body"));
  CHECK_EQUAL(smd_model_reserve(nonsense.handle, &size, &graph), SMD_ERROR_COMPILE);
  CHECK_CONTAINS(smd_last_error(), "is damaged or not for the PJRT plugin ");
}

TEST(a_program_that_is_newer_than_the_plugin) {
  const Runtime runtime;
  auto graph = test::sized<smd_graph>();
  const smd_graph_size size = one_hop(3, 1);
  for (const char *name : {"newer_body", "no_versions"}) {
    Model newer(runtime, test::bundle_path(name));
    CHECK_EQUAL(smd_model_reserve(newer.handle, &size, &graph), SMD_ERROR_PLUGIN);
    CHECK_CONTAINS(smd_last_error(), " is newer than the PJRT plugin ");
    CHECK_CONTAINS(smd_last_error(), ", which reads StableHLO up to ");
    CHECK_CONTAINS(smd_last_error(), "it holds `vhlo.multiply_v9`, which the plugin does not know: upgrade the plugin");
    const bool tells = std::string(smd_last_error()).find("(written by jax ") != std::string::npos;
    CHECK_EQUAL(tells, std::string(name) == "newer_body");
  }
}

CHECK_MAIN
