// SPDX-License-Identifier: BSD-3-Clause
// Evaluation through the C interface against closed forms, on random graphs of all kinds of sizes.
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

}  // namespace

TEST(one_layer_float64) { agree_on_random_graphs<double>("layers1_float64", 1, 1e-14); }
TEST(one_layer_float32) { agree_on_random_graphs<float>("layers1_float32", 1, 2e-6); }
TEST(two_layers_float64) { agree_on_random_graphs<double>("layers2_float64", 2, 1e-13); }
TEST(two_layers_float32) { agree_on_random_graphs<float>("layers2_float32", 2, 5e-6); }

CHECK_MAIN
