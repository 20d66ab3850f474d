# SPDX-License-Identifier: BSD-3-Clause
"""Linear maps with one matrix per element, at the cost of one matrix per atom.

Rows are listed element by element, each list filled up to whole blocks. A loop takes one block after the other: all its
rows have one element, so it is a product of matrices. That costs the same for 2 elements and for 89.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class ByElement:
    """Rows sorted by element."""

    species: Any  #: int32 [rows]
    slots: Any  #: int32 [rows + elements * block], the rows by element; one beyond the last row where there is none
    blocks: Any  #: int32, how many blocks of ``slots`` are in use
    block: int  #: rows that are taken at a time


def by_element(species: Any, elements: int, block: int) -> ByElement:
    rows = species.shape[0]
    counts = jnp.zeros(elements, jnp.int32).at[species].add(1)
    room = (counts + (block - 1)) // block * block
    before = jnp.cumsum(room) - room
    order = jnp.argsort(species)
    kind = species[order]
    place = before[kind] + jnp.arange(rows, dtype=jnp.int32) - (jnp.cumsum(counts) - counts)[kind]
    slots = jnp.full(rows + elements * block, rows, jnp.int32).at[place].set(order.astype(jnp.int32))
    return ByElement(species, slots, room.sum(dtype=jnp.int32) // block, block)


def _products(
    where: ByElement, matrices: dict[int, Any], values: dict[int, Any], *, transposed: bool = False
) -> dict[int, Any]:
    def body(state: tuple[Any, dict[int, Any]]) -> tuple[Any, dict[int, Any]]:
        number, out = state
        rows = jax.lax.dynamic_slice_in_dim(where.slots, number * where.block, where.block)
        element = where.species[rows[0]]
        made = {}
        for ell, value in values.items():
            matrix = jax.lax.dynamic_index_in_dim(matrices[ell], element, keepdims=False)
            product = value.at[rows].get(mode="clip") @ (matrix.T if transposed else matrix)
            made[ell] = out[ell].at[rows].set(product, mode="drop")
        return number + 1, made

    width = 1 if transposed else 2
    out = {
        ell: jnp.zeros((*value.shape[:-1], matrices[ell].shape[width]), value.dtype) for ell, value in values.items()
    }
    return jax.lax.while_loop(lambda state: state[0] < where.blocks, body, (jnp.int32(0), out))[1]


def apply_by_element(where: ByElement, matrices: dict[int, Any], values: dict[int, Any]) -> dict[int, Any]:
    """By degree [rows, components, in] times the matrix [in, out] of each row's element, of [elements, in, out].

    Differentiable in the values in reverse mode.
    """

    @jax.custom_vjp
    def product(values: dict[int, Any]) -> dict[int, Any]:
        return _products(where, matrices, values)

    def backward(_: None, gradients: dict[int, Any]) -> tuple[dict[int, Any]]:
        return (_products(where, matrices, gradients, transposed=True),)

    product.defvjp(lambda values: (product(values), None), backward)
    return product(values)
