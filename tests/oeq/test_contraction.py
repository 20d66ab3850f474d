# SPDX-License-Identifier: BSD-3-Clause
"""The symmetric contraction: the library's loops and the JAX op against NumPy in float64."""

import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native import NativeContraction, open_contraction
from problems import relative_error
from stablemd import oeq
from stablemd.mace._oeq_contraction import contraction_problem
from stablemd.mace._polynomials import from_coefficients
from stablemd.mace._reduced import reduced_basis
from stablemd.oeq import reference

TOLERANCE = {"float64": 1e-12, "float32": 2e-6}


def random_problem(rng, features: int, outputs: int, paths: int, degree: int, dtype: str) -> oeq.ContractionProblem:
    """Few terms and many, powers, the same product twice, outputs and features that occur in none."""
    polynomials = []
    for output, path in itertools.product(range(outputs), range(paths)):
        terms = []
        for _ in range(rng.integers(0, 12)):
            indices = rng.integers(0, features, rng.integers(1, degree + 1))
            terms.append((float(rng.standard_normal()), *map(int, indices)))
        if terms:
            polynomials.append((output, path, tuple(terms)))
    return oeq.ContractionProblem(features, outputs, paths, tuple(polynomials), dtype)


@cache
def mace_problem(largest_output: int, correlation: int, max_ell: int, dtype: str) -> oeq.ContractionProblem:
    """The product of a layer of MACE with outputs of all degrees up to the largest."""
    size = (max_ell + 1) ** 2
    product = {}
    for ell in range(largest_output + 1):
        bases = [reduced_basis(max_ell, degree, ell) for degree in range(1, correlation + 1)]
        parts = [(degree, basis, np.ones((1, len(basis), 1))) for degree, basis in enumerate(bases, start=1)]
        product[ell] = from_coefficients(parts, size)
    return contraction_problem(product, size, dtype)


class Case:
    """Random operands, rounded to the problem's dtype, and float64 results by NumPy, term by term."""

    def __init__(self, problem, rows, channels, elements, rng):
        self.problem = problem
        shapes = (rows, problem.features, channels), (elements, problem.paths, channels)
        self.x, self.w = (rng.standard_normal(shape).astype(problem.dtype) for shape in shapes)
        self.z = rng.standard_normal((rows, problem.outputs, channels)).astype(problem.dtype)
        self.species = rng.integers(0, elements, rows).astype(np.int32)
        x, w, z = (a.astype(np.float64) for a in (self.x, self.w, self.z))
        own = w[self.species]
        self.out, self.gradient = np.zeros_like(z), np.zeros_like(x)
        for output, path, terms in problem.polynomials:
            weighted = z[:, output] * own[:, path]
            for coefficient, *indices in terms:
                factors = [x[:, i] for i in indices]
                self.out[:, output] += own[:, path] * coefficient * np.prod(factors, axis=0)
                for place, i in enumerate(indices):
                    rest = factors[:place] + factors[place + 1 :]
                    self.gradient[:, i] += weighted * coefficient * (np.prod(rest, axis=0) if rest else 1.0)

    def check(self, out, gradient):
        tolerance = TOLERANCE[self.problem.dtype]
        assert relative_error(np.asarray(out), self.out) < tolerance
        assert relative_error(np.asarray(gradient), self.gradient) < tolerance

    def native(self, threads=1, unit=0):
        forward, backward = (NativeContraction(self.problem, order, unit) for order in ("forward", "backward"))
        operands = self.x, self.w, self.species
        return forward(*operands, threads=threads), backward(*operands, self.z, threads=threads)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("rows", "channels", "elements"),
    [(0, 8, 2), (1, 1, 1), (1, 40, 3), (7, 3, 2), (7, 128, 89), (300, 1, 2), (300, 3, 1), (300, 40, 5), (300, 128, 2)],
)
def test_random_polynomials(rows, channels, elements, dtype, rng):
    features, outputs, paths, degree = (int(rng.integers(1, most + 1)) for most in (20, 6, 8, 5))
    case = Case(random_problem(rng, features, outputs, paths, degree, dtype), rows, channels, elements, rng)
    case.check(*case.native())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("max_ell", [0, 1, 2, 3])
@pytest.mark.parametrize("correlation", [1, 2, 3, 4])
@pytest.mark.parametrize("largest_output", [0, 1, 2])
def test_products_of_mace(largest_output, correlation, max_ell, dtype, rng):
    case = Case(mace_problem(largest_output, correlation, max_ell, dtype), 5, 8, 2, rng)
    case.check(*case.native())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("unit", [1, 2])
def test_other_vector_units(unit, dtype, rng):
    """Loops for CPUs without this one's fastest unit."""
    case = Case(mace_problem(1, 3, 2, dtype), 37, 19, 2, rng)
    try:
        results = case.native(unit=unit)
    except RuntimeError as error:
        pytest.skip(str(error))
    case.check(*results)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_threads_do_not_change_a_bit(dtype, rng):
    case = Case(random_problem(rng, 9, 4, 6, 3, dtype), 600, 40, 3, rng)
    for one, two in zip(case.native(threads=1), case.native(threads=2), strict=True):
        assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize("species", [-1, 3, 2**31 - 1])
def test_an_element_without_weights_is_refused(species, rng):
    case = Case(random_problem(rng, 4, 1, 2, 2, "float64"), 7, 4, 3, rng)
    case.species[5] = species
    with pytest.raises(RuntimeError, match=f"row 5 has element {species}, but there are weights of 3"):
        case.native()


def test_every_process_makes_the_same_bytes():
    script = (
        "from test_contraction import *; "
        "k = oeq.make_contraction_kernel(mace_problem(1, 3, 2, 'float32')); print(k.hash, k.payload)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    outputs = [
        subprocess.run([sys.executable, "-c", script], env=environment | {"PYTHONHASHSEED": seed}, check=True,
                       capture_output=True, text=True).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    kernel = oeq.make_contraction_kernel(mace_problem(1, 3, 2, "float32"))
    assert outputs == [f"{kernel.hash} {kernel.payload}\n"] * 2
    assert kernel.hash == int.from_bytes(hashlib.sha256(kernel.payload.encode()).digest()[:7], "big")


def edited(change) -> str:
    kernel = oeq.make_contraction_kernel(oeq.ContractionProblem(4, 1, 2, ((0, 1, ((0.5, 1, 2),)),), "float64"))
    content = json.loads(kernel.payload)
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(("change", "message"), [
    (lambda c: c["problem"].pop("paths"), "`paths` must be a whole number"),
    (lambda c: c["problem"].update(dtype="float16"), "`dtype` must be float32 or float64"),
    (lambda c: c["problem"].update(features=5), "disagrees with `kernel_prop` about L1_dim"),
    (lambda c: c["problem"].update(polynomials=[[1, 0, []]]), "polynomial 0 must be a whole number up to 0"),
    (lambda c: c["problem"].update(polynomials=[[0, 0, [[0.5, 4]]]]), "polynomial 0 must be a whole number up to 3"),
    (lambda c: c["problem"].update(polynomials=[[0, 0, [[0.5]]]]), r"must hold terms \[coefficient, feature, ...\]"),
    (lambda c: c["problem"].update(polynomials=[[0, 0, [["x", 1]]]]), "must hold terms"),
    (lambda c: c["problem"].update(polynomials={}), "`polynomials` must be a list"),
    (lambda c: c["kernel_prop"].update(idx_dtype=4), "disagrees with `kernel_prop` about idx_dtype"),
])  # fmt: skip
def test_damaged_payloads_are_refused(change, message):
    with pytest.raises(RuntimeError, match=message):
        open_contraction(edited(change), "forward")


# ---- the JAX op ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registered():
    pytest.importorskip("stablemd._oeq_native")
    oeq.register("cpu")


def small_case(rng, dtype="float64"):
    case = Case(random_problem(rng, 4, 3, 3, 3, dtype), 6, 3, 2, rng)
    return case, oeq.SymmetricContraction(case.problem)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_op_and_its_gradient(dtype, rng):
    case, op = small_case(rng, dtype)
    out, pull = jax.vjp(jax.jit(lambda x: op(x, case.w, case.species)), case.x)
    case.check(out, pull(case.z)[0])


def test_plain_jax_is_what_numpy_computes(rng):
    case, _ = small_case(rng)
    out, pull = jax.vjp(lambda x: reference.contraction(case.problem, x, case.w, case.species), case.x)
    case.check(out, pull(case.z)[0])


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("modes", ["r", "f", "rr", "fr", "rf", "ff", "rfr"])
def test_derivatives_by_features_and_weights(modes, rng):
    """Modes applied innermost last: r the gradient of a scalar, f a directional derivative."""
    case, op = small_case(rng)
    primals = case.x, case.w
    tangents = tuple(rng.standard_normal(p.shape) for p in primals)

    def derive(function, mode):
        if mode == "f":
            return lambda *p: jax.jvp(function, p, tangents)[1]

        def contracted(*p):
            gradients = jax.grad(function, argnums=(0, 1))(*p)
            return sum(jnp.vdot(g, t**2) for g, t in zip(gradients, tangents, strict=True))

        return contracted

    def energy(function):
        return lambda x, w: jnp.sum(jnp.sin(function(x, w)))

    ours = energy(lambda x, w: op(x, w, case.species))
    expected = energy(lambda x, w: reference.contraction(case.problem, x, w, case.species))
    for mode in reversed(modes):
        ours, expected = derive(ours, mode), derive(expected, mode)
    value, wanted = jax.jit(ours)(*primals), jax.jit(expected)(*primals)
    assert abs(value - wanted) <= 1e-11 * max(1.0, abs(wanted))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("argument", [0, 1])
def test_gradients_by_finite_differences(argument, rng):
    """Fourth-order stencil along a random direction."""
    case, op = small_case(rng)
    operands = [case.x, case.w]
    direction, step = rng.standard_normal(operands[argument].shape), 1e-3

    @jax.jit
    def value(change):
        varied = list(operands)
        varied[argument] = varied[argument] + change
        return jnp.vdot(op(*varied, case.species), case.z)

    slope = jnp.vdot(jax.grad(value)(jnp.zeros_like(direction)), direction)
    by_points = sum(f * value(n * step * direction) for n, f in ((-2, 1), (-1, -8), (1, 8), (2, -1))) / (12 * step)
    assert abs(slope - by_points) < 1e-8 * max(1.0, abs(slope))


@pytest.mark.usefixtures("registered")
def test_an_element_without_weights_is_an_error_of_the_program(rng):
    case, op = small_case(rng)
    with pytest.raises(jax.errors.JaxRuntimeError, match="contraction_forward: row 0 has element 2"):
        jax.block_until_ready(op(case.x, case.w, case.species * 0 + 2))


@pytest.mark.parametrize(("change", "message"), [
    (dict(features=np.zeros((6, 5, 3))), r"features is float64\[6, 5, 3\], must be float64\[6, 4, 3\]"),
    (dict(weights=np.zeros((2, 3, 4))), r"weights is float64\[2, 3, 4\], must be float64\[2, 3, 3\]"),
    (dict(species=np.zeros(6)), r"species is float64\[6\], must be int32\[6\]"),
])  # fmt: skip
def test_wrong_operands_are_refused(change, message, rng):
    case, op = small_case(rng)
    with pytest.raises(ValueError, match=message):
        op(**dict(features=case.x, weights=case.w, species=case.species) | change)


@pytest.mark.parametrize(("polynomial", "message"), [
    ((1, 0, ((1.0, 0),)), "a polynomial of output 1, path 0; there are 1 and 1"),
    ((0, 0, ((1.0, 4),)), r"a product of the features \[4\]; there are 4"),
    ((0, 0, ((1.0,),)), r"a product of the features \[\]; there are 4"),
])  # fmt: skip
def test_wrong_problems_are_refused(polynomial, message):
    with pytest.raises(ValueError, match=message):
        oeq.ContractionProblem(4, 1, 1, (polynomial,), "float64")


def test_lowering_is_one_call_per_order(rng):
    case, op = small_case(rng)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(op(x, case.w, case.species) ** 2)))
    text = gradient.trace(case.x).lower(lowering_platforms=("cpu",)).as_text()
    assert re.findall(r"custom_call @(contraction_\w+)", text) == ["contraction_forward", "contraction_backward"]
    with pytest.raises(NotImplementedError, match="cuda"):
        gradient.trace(case.x).lower(lowering_platforms=("cuda",))
