/* SPDX-License-Identifier: BSD-3-Clause
 *
 * stablemd.h: evaluate an exported interatomic potential ("bundle") from any program.
 *
 * The engine (LAMMPS, ASE, ...) builds a graph of atoms, the library evaluates it:
 *
 *     smd_runtime *runtime;  smd_runtime_create(&options, &runtime);      a PJRT plugin, its device, the FFI providers
 *     smd_model   *model;    smd_model_load(runtime, "sic.safetensors", &model);
 *     each step:             smd_model_reserve(model, &size, &graph);     grow if needed; arrays to fill in place
 *                            ... fill graph.species, .centers, .neighbors, .vectors ...
 *                            smd_model_evaluate(model, &result);          read result.node_energy, .edge_gradient
 *
 * Every function returns SMD_OK or an error code; smd_last_error() then holds one line that says what is wrong, where,
 * and what to do. No function exits, aborts, throws, or prints. Nothing here is thread-safe except where it says so:
 * use one smd_model per thread. Several models may share one runtime, also in several threads; its log function may
 * then be called by several threads at once.
 *
 * Structs that the caller fills begin with struct_size = sizeof(the struct), so that newer libraries accept older
 * callers.
 */
#ifndef STABLEMD_H
#define STABLEMD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SMD_API __attribute__((visibility("default")))
#else
#define SMD_API
#endif

/* Version of this header. A library with the same major version and the same or a newer minor one can be used. */
#define SMD_API_MAJOR 1
#define SMD_API_MINOR 2 /* 1: node outputs, limit of the cache; 2: graph inputs */

/* Most layers of message passing that a bundle may have. */
#define SMD_MAX_LAYERS 8

typedef enum smd_status {
  SMD_OK = 0,
  SMD_ERROR_ARGUMENT = 1,  /* the caller passed something wrong (sizes, null pointers, species, NaN vectors) */
  SMD_ERROR_FILE = 2,      /* a file is missing or cannot be read */
  SMD_ERROR_FORMAT = 3,    /* a file is not a bundle, is damaged, or has a newer format */
  SMD_ERROR_PLUGIN = 4,    /* no PJRT plugin, or one that cannot be used */
  SMD_ERROR_PROVIDER = 5,  /* an FFI provider failed, or a target that the bundle needs was registered by none */
  SMD_ERROR_COMPILE = 6,   /* XLA refused the program */
  SMD_ERROR_EXECUTION = 7, /* the program failed while running, or gave a non-finite energy or gradient */
  SMD_ERROR_MEMORY = 8,    /* out of memory */
  SMD_ERROR_INTERNAL = 9   /* a defect of this library */
} smd_status;

/* Element type of a bundle's real arrays. */
typedef enum smd_dtype { SMD_FLOAT32 = 1, SMD_FLOAT64 = 2 } smd_dtype;

typedef enum smd_log_level { SMD_LOG_INFO = 0, SMD_LOG_WARNING = 1 } smd_log_level;

/* Receives one line (no newline at its end); called only during a call into this library, on the calling thread. */
typedef void (*smd_log_function)(smd_log_level level, const char *line, void *user);

/* Text of the last error on the calling thread; "" if there was none. Valid until the next call on this thread. */
SMD_API const char *smd_last_error(void);

/* (major << 16) | minor of the library in use. */
SMD_API uint32_t smd_api_version(void);

/* ---- runtime: PJRT plugin, client, FFI providers -------------------------------------------------------------------
 */

typedef struct smd_runtime smd_runtime;

typedef struct smd_runtime_options {
  size_t struct_size;
  const char *device; /* "cpu" (also NULL) or "cuda" */
  /* Path of the PJRT plugin; NULL: $STABLEMD_PJRT_PLUGIN, else the known PyPI packages beside this library
   * (cpu: lammps-jax-pjrt-cpu, fastatomstruct-xla-cpu, xla-cpu-pjrt; cuda: jax-cuda13-pjrt, jax-cuda12-pjrt). */
  const char *plugin;
  int32_t threads;        /* CPU threads of XLA's pool, at most 1024; 0: all cores available to this process */
  int32_t device_ordinal; /* which device of the plugin (cuda); 0 on cpu */
  /* Directory of the executable cache; NULL: smd_cache_directory(); "": no cache. */
  const char *cache_directory;
  smd_log_function log; /* may be NULL */
  void *log_user;
} smd_runtime_options;

/* Loads the plugin, checks its PJRT version, creates a client with one device, then loads every *.so on
 * $STABLEMD_FFI_PATH (folders or files, colon-separated) and in the folder ffi/ beside this library that exports
 * `int RegisterFFi(const XLA_FFI_Api *, const char *platform)` and calls it, or where the library exports it
 * `int RegisterFFiWithReason(const XLA_FFI_Api *, const char *platform, char *reason, size_t size)`, which prints
 * nothing. One on the path that fails is an error; one beside this library is left out, and its failure is told to whom
 * lacks one of its targets. */
SMD_API smd_status smd_runtime_create(const smd_runtime_options *options, smd_runtime **runtime);

/* Destroy the models first. NULL is allowed. */
SMD_API void smd_runtime_destroy(smd_runtime *runtime);

typedef struct smd_runtime_info {
  size_t struct_size;
  const char *platform;         /* as the plugin names it: "cpu", "cuda" */
  const char *platform_version; /* free text of the plugin */
  const char *plugin_path;
  int32_t pjrt_major, pjrt_minor;
  int32_t ffi_major, ffi_minor; /* -1 where the plugin has no FFI extension */
  int32_t threads;              /* 0 where not chosen by us */
  int32_t provider_count;
} smd_runtime_info;

/* Strings live as long as the runtime. */
SMD_API smd_status smd_runtime_get_info(const smd_runtime *runtime, smd_runtime_info *info);

/* The folder of the executable cache: $STABLEMD_CACHE, else $XDG_CACHE_HOME/stablemd, else ~/.cache/stablemd; "" when
 * STABLEMD_CACHE is "off" or no home is known. Thread-safe; valid until the next call on this thread. */
SMD_API const char *smd_cache_directory(void);

/* Since 1.1: how many bytes the executables in a cache may take, 0 for any number: $STABLEMD_CACHE_LIMIT, a number with
 * kB, MB, GB or nothing behind it, or "off"; else 4 GB. When one more is stored, those not used for longest go.
 * SMD_ERROR_ARGUMENT where the variable is none of these. Thread-safe. */
SMD_API smd_status smd_cache_limit(uint64_t *bytes);

/* ---- model ----------------------------------------------------------------------------------------------------------
 */

typedef struct smd_model smd_model;

/* Opens and validates the bundle, checks that every FFI target it needs is registered, uploads its weights.
 * Compiles nothing yet. */
SMD_API smd_status smd_model_load(smd_runtime *runtime, const char *path, smd_model **model);
SMD_API void smd_model_destroy(smd_model *model);

typedef struct smd_model_info {
  size_t struct_size;
  double cutoff;  /* in length_unit; an edge at or beyond it contributes nothing */
  int32_t layers; /* 1..SMD_MAX_LAYERS */
  smd_dtype dtype;
  int32_t element_count;
  const char *const *elements;   /* [element_count] chemical symbols; species = index into this list */
  const double *atomic_energies; /* [element_count] in energy_unit, to be added per atom by the engine in double */
  const char *energy_unit;       /* "eV" */
  const char *length_unit;       /* "Angstrom" */
  const char *manifest;          /* the JSON manifest, see docs/bundle.md */
  /* Since 1.1: extra outputs of each owned atom, such as charges, in the order of their names. */
  int32_t output_count;
  const char *const *output_names; /* [output_count] */
  const char *const *output_units; /* [output_count] "" where the bundle does not tell */
  const int32_t *output_widths;    /* [output_count] numbers per atom */
  /* Since 1.2: what the model takes of the whole structure, such as "charge", in the order of the names. */
  int32_t input_count;
  const char *const *input_names; /* [input_count] */
  const double *input_defaults;   /* [input_count] values until smd_model_set_input is called */
  const double *input_minima;     /* [input_count] least values; -infinity where there is none */
  const double *input_maxima;     /* [input_count] largest values; infinity where there is none */
  const int32_t *input_integer;   /* [input_count] 1 where values are whole numbers */
} smd_model_info;

/* Pointers live as long as the model. */
SMD_API smd_status smd_model_get_info(const smd_model *model, smd_model_info *info);

/* Sizes of a graph with L layers. Rows (atoms) come in hops: hop 0 are the owned atoms, whose energies count; hop h are
 * the ghosts that are neighbours of hop h-1 and belong to no earlier hop. Edges come in the hop of their centre; the
 * ghosts of hop L are nobody's centre. Where every ghost is folded onto its owner, all but hop 0 are 0. */
typedef struct smd_graph_size {
  size_t struct_size;
  int64_t nodes[SMD_MAX_LAYERS + 1]; /* [0..L] rows per hop, without padding */
  int64_t edges[SMD_MAX_LAYERS];     /* [0..L-1] edges per hop of their centre, without padding */
} smd_graph_size;

/* Arrays for the engine to fill. Hop h occupies rows node_offset[h] .. node_offset[h] + nodes[h] - 1 and edges
 * edge_offset[h] .. edge_offset[h] + edges[h] - 1; what lies between a hop's end and the next hop's offset is padding
 * and belongs to the library. Within a hop, edges are sorted by centre. Everything written stays for the next
 * evaluation unless smd_model_reserve moved the arrays (see `moved`). 64-byte aligned. */
typedef struct smd_graph {
  size_t struct_size;
  int32_t *species;   /* [rows] index into smd_model_info.elements */
  int32_t *centers;   /* [edges] row of the centre */
  int32_t *neighbors; /* [edges] row of the neighbour, in hop h+1 or an earlier one if the centre is in hop h */
  void *vectors;      /* [edges][3] float or double (smd_model_info.dtype): r_neighbour - r_centre, in length_unit */
  int64_t node_offset[SMD_MAX_LAYERS + 1];
  int64_t edge_offset[SMD_MAX_LAYERS];
  int64_t node_capacity; /* all rows including padding: N of the program */
  int64_t edge_capacity; /* all edges including padding: E_1 of the program */
  int32_t moved;         /* 1: new arrays or offsets, earlier contents are lost; 0: same as after the last call */
} smd_graph;

/* Makes room for a graph of this size and says where to write it. Cheap when the capacity suffices; otherwise
 * capacities grow on a geometric grid (at first at most 12 % more than asked for, at most 31 % for fewer than 4,096
 * edges or a graph that has outgrown its capacity before, 53 % for one that outgrows them soon after each other; small
 * ones in steps of 8) and the program of that size is loaded from the cache or compiled. A capacity is kept until the
 * graph outgrows it or padding beyond 31 % has cost as much as a compilation would, taken as 100 evaluations; where a
 * smaller program is in use already, until the graph needs less than 60 % of it. Call before every evaluation with the
 * exact sizes. After an error the earlier capacity is still there. */
SMD_API smd_status smd_model_reserve(smd_model *model, const smd_graph_size *size, smd_graph *graph);

/* Since 1.2: a value of what the model takes of the whole structure, for all evaluations from now on. A name that is
 * not in smd_model_info.input_names, or a value that is not finite, out of range or not whole where it must be, is
 * SMD_ERROR_ARGUMENT; the earlier value is kept then. */
SMD_API smd_status smd_model_set_input(smd_model *model, const char *name, double value);

typedef struct smd_result {
  size_t struct_size;
  const void *node_energy;   /* [nodes[0]] energy of each owned atom without its atomic energy, energy_unit */
  const void *edge_gradient; /* [edge_capacity][3] d(sum of owned energies)/d(vectors), energy_unit/length_unit; 0 on
                              * padding. Force on an edge's centre: +gradient; on its neighbour: -gradient. */
  /* Since 1.1: [smd_model_info.output_count] arrays [nodes[0]][width] with the extra outputs of each owned atom. */
  const void *const *outputs;
} smd_result;

/* Evaluates the graph as filled. Arrays are of smd_model_info.dtype and valid until the next reserve, evaluate or
 * destroy. A species out of range, or a vector that is not finite, is SMD_ERROR_ARGUMENT and names the row or edge; an
 * energy, gradient or extra output that is not finite is SMD_ERROR_EXECUTION. Order and range of centers and neighbors
 * are checked only where the environment had STABLEMD_CHECK=1 when the model was loaded. */
SMD_API smd_status smd_model_evaluate(smd_model *model, smd_result *result);

typedef struct smd_model_stats {
  size_t struct_size;
  int64_t evaluations;
  int64_t compilations;     /* programs compiled by XLA in this process */
  int64_t cache_hits;       /* programs loaded from the disk cache */
  int64_t capacity_changes; /* times that smd_model_reserve had to change the arrays, the first size not counted */
  double compile_seconds;   /* compiling, loading from the cache, waiting for another process that compiles */
  double execute_seconds;   /* inside the program */
} smd_model_stats;

SMD_API smd_status smd_model_get_stats(const smd_model *model, smd_model_stats *stats);

#ifdef __cplusplus
}
#endif

#endif /* STABLEMD_H */
