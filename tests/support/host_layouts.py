"""Matrices of host memory in every layout that NumPy has."""

from __future__ import annotations

import numpy as np


def filled(shape, dtype, rng, layout="rows"):
    x = np.asarray(4 * rng.standard_normal(shape)).astype(dtype)
    return LAYOUTS[layout](x) if shape else np.array(x)


class Subclass(np.ndarray):
    pass


LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: np.asfortranarray(x) if x.ndim == 2 else x,
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "reversed": lambda x: x[..., ::-1],
    "foreign": lambda x: x.astype(x.dtype.newbyteorder(">")) if x.dtype.kind in "iufc" else x,
    "subclass": lambda x: x.view(Subclass),
    "read-only": lambda x: np.broadcast_to(x, x.shape),
    "unaligned": lambda x: np.concatenate(
        [np.zeros(1, "u1"), np.ascontiguousarray(x).reshape(-1).view("u1")]
    )[1:].view(x.dtype).reshape(x.shape),
}  # fmt: skip
