"""Matrices of every type and layout for products on the host, and the bound on their errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np

BFLOAT16, E4M3, E5M2 = (np.dtype(t) for t in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))


FLOATS = [np.dtype(t) for t in "efdgFD"] + [BFLOAT16, E4M3, E5M2]


INTEGERS = [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]


DTYPES = [*FLOATS, *INTEGERS, np.dtype(bool)]


SHAPES = [
    (1, 1, 1),
    (3, 5, 7),
    (1, 7, 5),
    (5, 1, 3),
    (13, 11, 1),
    (17, 31, 23),
    (0, 3, 2),
    (3, 0, 2),
    (3, 2, 0),
    (0, 0, 0),
]


UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}


SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float8_e4m3fn": 2.0**-9, "float8_e5m2": 2.0**-16}


LAYOUTS = ["rows", "columns", "reversed", "gaps", "unaligned", "swapped", "readonly"]


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b":
        return rng.random(shape) < 0.3
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.kind == "c" else x).astype(dtype)


def poisoned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    out = np.empty(shape, dtype)
    out[...] = True if dtype.kind == "b" else np.iinfo(dtype).max if dtype in INTEGERS else np.nan
    return out


def laid_out(x: np.ndarray, layout: str) -> np.ndarray:
    """The same values, lying differently in memory."""
    if layout == "columns":
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "reversed":
        return x[..., ::-1, ::-1].copy()[..., ::-1, ::-1]
    if layout == "gaps":
        wide = np.zeros((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1]), x.dtype)
        wide[..., ::2, ::3] = x
        return wide[..., ::2, ::3]
    if layout == "unaligned":
        moved = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
        moved[...] = x
        return moved
    if layout == "swapped" and x.dtype.isbuiltin == 1:
        return x.astype(x.dtype.newbyteorder())
    x = x.copy()
    x.flags.writeable = layout != "readonly"
    return x


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def exact(x: np.ndarray) -> np.ndarray:
    return np.array([int(v) for v in x.ravel()] + [None], dtype=object)[:-1].reshape(x.shape)


def wrapped(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    bits = 8 * dtype.itemsize
    flat = np.array([int(v) % 2**bits for v in x.ravel()], dtype=f"u{dtype.itemsize}")
    return flat.view(dtype).reshape(x.shape)


def assert_close(out, a, b, alpha=1, beta=0, c=None, sum_roundoff=None):
    """Componentwise: |out - exact| <= (k + 3) u (|alpha| |A||B| + |beta| |C|), and one rounding into out."""
    k = a.shape[-1]
    value = alpha * np.matmul(wide(a), wide(b))
    bound = abs(alpha) * np.matmul(np.abs(wide(a)), np.abs(wide(b)))
    if beta:
        value = value + beta * wide(c)
        bound = bound + abs(beta) * np.abs(wide(c))
    name = out.dtype.name
    u = sum_roundoff or (2.0**-24 if a.dtype.itemsize < 8 or a.dtype == np.complex64 else 2.0**-53)
    if out.dtype.kind == "c":
        u *= 4
    own = UNIT_ROUNDOFF[name] if name in UNIT_ROUNDOFF else float(np.finfo(out.dtype).eps) / 2
    error = np.abs(wide(out) - value)
    allowed = (k + 3) * u * bound
    allowed = allowed + own * (np.abs(value) + allowed) + SMALLEST.get(name, 0)
    assert np.all(error <= allowed), f"{np.max(error / allowed)} of the bound"
