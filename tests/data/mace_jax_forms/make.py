# SPDX-License-Identifier: BSD-3-Clause
"""Makes the models of this folder with MACE-JAX, and their values as MACE-JAX computes them in float64.

MACE-JAX is not on PyPI: run with its source on PYTHONPATH and what its setup.cfg names installed (README.md).
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import ase
import jax
import jraph
import numpy as np
import optax

jax.config.update("jax_enable_x64", True)

from ase.io import write  # noqa: E402
from flax import nnx, serialization  # noqa: E402
from mace_jax import data  # noqa: E402
from mace_jax.adapters.e3nn.math import _normalize_activation  # noqa: E402
from mace_jax.modules.models import MACE, ScaleShiftMACE  # noqa: E402
from mace_jax.nnx_config import ConfigVar  # noqa: E402
from mace_jax.nnx_utils import state_to_pure_dict, state_to_serializable_dict  # noqa: E402
from mace_jax.tools import gin_model, model_builder  # noqa: E402
from mace_jax.tools.bundle import load_model_bundle  # noqa: E402
from mace_jax.tools.gin_functions import _attach_config  # noqa: E402

HERE = Path(__file__).resolve().parent
NUMBERS = [1, 6, 8]

USUAL = {
    "r_max": 3.7,
    "num_bessel": 3,
    "num_polynomial_cutoff": 5,
    "max_ell": 2,
    "interaction_cls": "RealAgnosticResidualInteractionBlock",
    "interaction_cls_first": "RealAgnosticInteractionBlock",
    "num_interactions": 2,
    "hidden_irreps": "2x0e+2x1o",
    "MLP_irreps": "3x0e",
    "atomic_numbers": NUMBERS,
    "atomic_energies": [-1.25, -3.5, -7.75],  # float32 holds them, as MACE-JAX reads a configuration's
    "avg_num_neighbors": 6.3,
    "correlation": 2,
    "radial_MLP": [4, 4],
    "gate": "silu",
    "radial_type": "bessel",
    "torch_model_class": "ScaleShiftMACE",
}
DENSITY = {
    "interaction_cls_first": "RealAgnosticDensityInteractionBlock",
    "interaction_cls": "RealAgnosticDensityResidualInteractionBlock",
}
NONLINEAR = {
    "interaction_cls_first": "RealAgnosticResidualNonLinearInteractionBlock",
    "interaction_cls": "RealAgnosticResidualNonLinearInteractionBlock",
    "max_ell": 1,
}
SPECS = {
    "total_charge": {"type": "continuous", "per": "graph", "in_dim": 1, "emb_dim": 3},
    "total_spin": {"type": "categorical", "per": "graph", "emb_dim": 2, "num_classes": 4},
}

#: configuration of each model where it differs from the usual one
FORMS: dict[str, dict[str, Any]] = {
    "usual": {},
    "unscaled": {"torch_model_class": "MACE"},
    "residual_first": {"interaction_cls_first": "RealAgnosticResidualInteractionBlock"},
    "density": DENSITY,
    "density_uncut": DENSITY | {"apply_cutoff": False},
    "density_residual_first": DENSITY | {"interaction_cls_first": DENSITY["interaction_cls"]},
    "nonlinear": NONLINEAR,
    "nonlinear_mh1": NONLINEAR
    | {
        "edge_irreps": "3x0e+2x1o",
        "use_agnostic_product": True,
        "use_last_readout_only": True,
        "readout_cls": "NonLinearBiasReadoutBlock",
        "apply_cutoff": False,
        "distance_transform": "Agnesi",
    },
    "edge_irreps": {"edge_irreps": "3x0e+2x1o"},
    "chebyshev": {"radial_type": "chebyshev", "distance_transform": "Agnesi"},
    "agnesi": {"distance_transform": "Agnesi"},
    "soft": {"distance_transform": "Soft"},
    "zbl": {"pair_repulsion": True},
    "zbl_agnesi": {"pair_repulsion": True, "distance_transform": "Agnesi"},
    "uncut": {"apply_cutoff": False},
    "scalars": {"max_ell": 0, "hidden_irreps": "2x0e", "correlation": 3},
    "ell4": {"max_ell": 4},
    "correlation4": {"max_ell": 1, "correlation": 4, "hidden_irreps": "2x0e"},
    "correlation3_full": {"max_ell": 1, "correlation": 3, "use_reduced_cg": False},
    "hidden2": {"hidden_irreps": "2x0e+2x1o+2x2e"},
    "full": {"use_reduced_cg": False},
    "one_layer": {"num_interactions": 1},
    "one_layer_collapsed": {"num_interactions": 1, "collapse_hidden_irreps": True},
    "three_layers": {"num_interactions": 3, "correlation": [2, 1, 2], "max_ell": 1},
    "tanh": {"gate": "tanh"},
    "abs": {"gate": "abs"},
    "gateless": {"gate": None},
    "consts": {"gate": "tanh", "normalize2mom_consts": {"silu": 1.6791767, "tanh": 1.5937334, "sigmoid": 1.8467}},
    "embedded": {"embedding_specs": SPECS, "use_embedding_readout": True},
}
#: also stored in float32, with the constants that are then rounded
SINGLE = ("usual", "nonlinear", "agnesi", "full", "embedded")
#: as the trainer writes them; MACE-JAX cannot read its checkpoints of these, so they are evaluated before
TRAINED = {
    "trained": {},
    "trained_heads": {"heads": ("pbe", "r2scan")},
    "trained_bias_heads": {"heads": ("pbe", "r2scan"), "readout_cls": "NonLinearBiasReadoutBlock"},
}
FEATURES = {"total_charge": -1.0, "total_spin": 2.0}


def structures() -> dict[str, ase.Atoms]:
    rng = np.random.default_rng(20)
    molecule = ase.Atoms(
        "COHHHH",
        [[0, 0, 0], [1.4, 0.1, 0], [-0.4, 1.0, 0.1], [-0.4, -0.5, 0.9], [-0.3, -0.6, -0.8], [1.7, 0.9, 0.3]],
    )
    pair = ase.Atoms("CO", [[0, 0, 0], [0.8, 0.9, 0.7]], cell=[[0, 1.9, 1.8], [1.7, 0, 1.9], [1.8, 1.7, 0.1]], pbc=True)
    triclinic = ase.Atoms(
        "CHOCHO",
        rng.uniform(size=(6, 3)) * 0.15
        + [[0, 0, 0], [0.5, 0, 0], [0, 0.5, 0], [0, 0, 0.5], [0.5, 0.5, 0], [0.5, 0, 0.5]],
        cell=[[3.6, 0, 0], [0.7, 3.4, 0], [-0.6, 0.5, 3.3]],
        pbc=True,
    )
    triclinic.positions = triclinic.positions @ triclinic.cell.array
    isolated = ase.Atoms("OHHC", [[0, 0, 0], [0.95, 0, 0.1], [-0.2, 0.95, 0], [9.0, 8.0, 7.0]])
    found = {"molecule": molecule, "pair": pair, "triclinic": triclinic, "isolated": isolated}
    for atoms in found.values():
        atoms.positions = np.round(atoms.positions, 8)
    return found


def randomised(state: nnx.State, seed: int) -> None:
    """Draws everything that is trained, so that nothing keeps the zeros and ones that it starts with."""
    rng = np.random.default_rng(seed)
    for path, variable in nnx.to_flat_state(state):
        name, old = str(path[-1]), variable[...] if isinstance(variable, nnx.Param) else None
        if old is None or name in ("act_scale", "atomic_energies"):
            continue
        new = rng.normal(size=old.shape) * (2.0 if "readouts" in path else 1.0)
        if name in ("scale", "shift") or (name == "bias" and old.shape):
            new = 0.3 * new + (name == "scale")
        if name in ("alpha", "beta"):
            new = {"alpha": 3.0, "beta": 1.0}[name] + 0.3 * new
        variable[...] = jax.numpy.asarray(new, old.dtype)


def evaluated(graphdef: Any, state: Any, config: dict[str, Any], head: int = 0) -> dict[str, np.ndarray]:
    """Energies and stresses of all structures [structures, 7], and energies and forces of all atoms [atoms, 4]."""
    table = data.AtomicNumberTable(config["atomic_numbers"])
    whole, atomic = [], []

    def call(state: Any, inputs: dict) -> dict:
        return graphdef.apply(state)(inputs, compute_force=True, compute_stress=True)[0]

    if config["radial_type"] != "chebyshev":  # whose code needs to know the number of polynomials beforehand
        call = jax.jit(call)
    graphs = [
        data.graph_from_configuration(data.config_from_atoms(atoms), cutoff=config["r_max"], z_table=table)
        for atoms in structures().values()
    ]
    edges = max(int(graph.n_edge[0]) for graph in graphs)
    for atoms, graph in zip(structures().values(), graphs, strict=True):
        # the last graph of a batch is taken for padding
        graph = jraph.pad_with_graphs(graph, 8, edges + 1, 2)
        inputs = gin_model._graph_to_data(graph, num_species=len(NUMBERS))
        inputs |= {"head": np.array([head] * 2), **{name: np.array([value] * 2) for name, value in FEATURES.items()}}
        out = call(state, inputs)
        assert out["node_energy"].dtype == out["forces"].dtype == np.float64
        stress = np.asarray(out["stress"][0]) if atoms.pbc.all() else np.zeros((3, 3))
        whole.append([float(out["energy"][0]), *stress.reshape(9)[[0, 4, 8, 5, 2, 1]]])
        atomic.append(np.column_stack([out["node_energy"], out["forces"]])[: len(atoms)])
    return {"whole": np.array(whole), "atomic": np.concatenate(atomic)}


def single(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x, tree)


def make_file(name: str, config: dict[str, Any], seed: int, *, rounded: bool, folder: bool) -> dict[str, np.ndarray]:
    """Written as MACE-JAX's converter does, read and evaluated by MACE-JAX."""
    # MACE-JAX keeps the factors of its activations for the whole process, and estimates those that no model gave from
    # random numbers of the process' precision: a model in float32 has those that it has where nothing is in float64.
    _normalize_activation._CONST_OVERRIDES.clear()
    if rounded:
        factor = _normalize_activation.normalize2mom(jax.nn.sigmoid, dtype=np.float32)._normalize2mom_const
        _normalize_activation.register_normalize2mom_const("sigmoid", float(factor))
    model = model_builder._build_jax_model(config, rngs=nnx.Rngs(seed))
    _, state = nnx.split(model)
    randomised(state, seed)
    tree = state_to_serializable_dict(state)
    content = serialization.to_bytes(single(tree) if rounded else tree)
    if folder:
        (HERE / name).mkdir(exist_ok=True)
    base = HERE / name
    (base / "config.json" if folder else base.with_suffix(".json")).write_text(json.dumps(config) + "\n")
    (base / "params.msgpack" if folder else base.with_suffix(".msgpack")).write_bytes(content)
    bundle = load_model_bundle(str(base if folder else base.with_suffix(".json")), "float64")
    return evaluated(bundle.graphdef, bundle.params, config)


def make_checkpoint(name: str, options: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """With the tree and the fields of MACE-JAX's trainer."""
    heads = options.get("heads", ())
    kwargs = {key: value for key, value in (USUAL | options).items() if key not in ("torch_model_class", "gate")}
    kwargs |= {key: model_builder._interaction(kwargs[key]) for key in ("interaction_cls", "interaction_cls_first")}
    kwargs |= {key: model_builder._as_irreps(kwargs[key]) for key in ("hidden_irreps", "MLP_irreps")}
    kwargs["readout_cls"] = model_builder._readout(kwargs.get("readout_cls"))
    energies = np.array(USUAL["atomic_energies"])
    kwargs["atomic_energies"] = np.stack([energies, energies - 0.5]) if heads else energies
    if heads:
        kwargs |= {"atomic_inter_scale": np.array([0.8, 1.3]), "atomic_inter_shift": np.array([0.1, -0.2])}
    model = (ScaleShiftMACE if heads else MACE)(
        rngs=nnx.Rngs(seed), num_elements=len(NUMBERS), gate=jax.nn.silu, **kwargs
    )
    graphdef, state = nnx.split(model)
    randomised(state, seed)
    trained, constant, rest = nnx.split_state(state, nnx.Param, ConfigVar, ...)
    config = gin_model._export_model_config(model)
    bundle = _attach_config(state_to_pure_dict(trained), state_to_pure_dict(nnx.merge_state(constant, rest)))
    payload = {
        "epoch": 1,
        "params": jax.tree.map(np.zeros_like, bundle),
        "optimizer_state": optax.adam(1e-3).init({"one": np.ones(1)}),
        "eval_params": bundle,
        "lowest_loss": 0.5,
        "patience_counter": 0,
        "checkpoint_format": 2,
        "model_config": config,
    }
    (HERE / f"{name}.ckpt").write_bytes(pickle.dumps(payload))
    found = {}
    for index, head in enumerate(heads or ("",)):
        for kind, values in evaluated(graphdef, state, config, index).items():
            found[f"{head}/{kind}" if head else kind] = values
    return found


def main() -> None:
    wanted, store = sys.argv[1:], HERE / "values.npz"
    values = dict(np.load(store)) if wanted else {}
    forms = {name: (fields, False) for name, fields in FORMS.items()}
    forms |= {f"{name}_single": (FORMS[name], True) for name in SINGLE}
    for seed, (name, (fields, rounded)) in enumerate(forms.items()):
        if wanted and name not in wanted:
            continue
        found = make_file(name, USUAL | fields, seed, rounded=rounded, folder=name == "usual")
        print(name, found["whole"][:, 0], np.abs(found["atomic"][:, 1:]).max(), flush=True)
        values |= {f"{name}/{kind}": array for kind, array in found.items()}
    for seed, (name, options) in enumerate(TRAINED.items(), 100):
        if wanted and name not in wanted:
            continue
        found = make_checkpoint(name, options, seed)
        print(name, [array[:, 0] for kind, array in found.items() if kind.endswith("whole")], flush=True)
        values |= {f"{name}/{kind}": array for kind, array in found.items()}
    np.savez_compressed(store, **values)
    write(HERE / "structures.extxyz", list(structures().values()))


if __name__ == "__main__":
    main()
