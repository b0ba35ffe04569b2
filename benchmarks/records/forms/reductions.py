"""Reductions by the copy engine: boxes of tensors, and memory in one piece."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np

from . import Form, Prepared, random_bits  # isort: skip
from gemmule.core.dtype import dtype_named
from gemmule.vgpu.tensor_map import element_type
from support.ptx.copies import SHARED, reduced_piece

from .copies import FLOATS, Box, store

REDUCTIONS = {
    "add": (*FLOATS, "int32"), "min": ("float16", "bfloat16", "int32"), "max": ("float16", "bfloat16", "int32"),
    "and": ("int32",), "or": ("int32",), "xor": ("int32",),
}  # fmt: skip


#: Reductions of memory in one piece: types of PTX and of NumPy, and operations.
PIECES = {
    ("f16", "float16"): ("add.noftz", "min", "max"), ("bf16", "bfloat16"): ("add.noftz", "min", "max"),
    ("f32", "float32"): ("add",), ("f64", "float64"): ("add",), ("u32", "uint32"): ("add", "min", "max", "inc", "dec"),
    ("s32", "int32"): ("add", "min", "max"), ("u64", "uint64"): ("add", "min", "max"), ("s64", "int64"): ("min", "max"),
    ("b32", "uint32"): ("and", "or", "xor"), ("b64", "uint64"): ("and", "or", "xor"),
}  # fmt: skip


def combined_pieces(operation: str, kind: str, name: str, ordinary: bool, random: np.random.RandomState) -> Prepared:
    """Combine memory in one piece with other."""
    dtype = element_type(name)
    target, given = (random_bits(random, (count,), dtype) for count in (80, 48))
    if ordinary:
        target[...], given[...] = ((random.randn(count) * 9).astype(dtype) for count in (80, 48))
    arrays = {"d": target, "image": given.view(np.uint8)}
    return reduced_piece(given.nbytes, operation, kind), arrays, {"shared": SHARED}


def forms() -> Iterator[Form]:
    """Yield them all."""
    for (operation, types), ordinary in itertools.product(REDUCTIONS.items(), (True, False)):
        for name in types:
            if ordinary and name == "int32":
                continue
            box = Box(2, 64, dtype_named(name), "beyond the last")
            what = f"{operation}, {name}, {'ordinary numbers' if ordinary else 'any bits'}"
            yield Form("reduction", what, functools.partial(store, box, operation=operation, ordinary=ordinary))
    for ((kind, name), operations), ordinary in itertools.product(PIECES.items(), (True, False)):
        for operation in operations:
            if "f" in kind or not ordinary:
                what = f"{operation}, {kind}, {'ordinary numbers' if ordinary else 'any bits'}"
                prepare = functools.partial(combined_pieces, operation, kind, name, ordinary)
                yield Form("reduction of a piece", what, prepare)
