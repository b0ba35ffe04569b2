"""Real times complex matrices on the host, by products of real numbers."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.host.gemm import gemm

#: Rows, columns, neither, and the other byte order.
WAYS = ("rows", "columns", "strided", "swapped")


def laid_out(values, way):
    if way == "columns":
        return np.ascontiguousarray(values.swapaxes(-1, -2)).swapaxes(-1, -2)
    if way == "strided":
        return np.repeat(np.repeat(values, 2, -1), 2, -2)[..., ::2, ::2]
    return values.astype(values.dtype.newbyteorder()) if way == "swapped" else np.ascontiguousarray(values)


def draw(rng, name, shape, way):
    values = 4 * rng.standard_normal(shape)
    if np.dtype(name).kind == "c":
        values = values + 4j * rng.standard_normal(shape)
    return laid_out((np.abs(values).round() if np.dtype(name).kind in "iub" else values).astype(name), way)


@pytest.mark.parametrize("other", ["complex64", "complex128", "clongdouble"])
@pytest.mark.parametrize("real", ["float64", "float32", "float16", "int8", "int64", "bool", "longdouble"])
@pytest.mark.parametrize("complex_first", [False, True])
def test_every_layout_and_scalar(real, other, complex_first, rng):
    names = (other, real) if complex_first else (real, other)
    for _ in range(40):
        m, n, k = (int(x) for x in rng.integers(0, 40, 3))
        batch = ((), (3,), (2, 2))[rng.integers(3)]
        a = draw(rng, names[0], (*batch, m, k), rng.choice(WAYS))
        b = draw(rng, names[1], (*(batch if rng.random() < 0.5 else ()), k, n), rng.choice(WAYS))
        out_type = rng.choice(["complex64", np.result_type(a, b).name])
        out = draw(rng, out_type, (*batch, m, n), rng.choice(WAYS))
        alpha, beta = ((1, 0), (-2.5, 2), (2 + 0j, -1 + 0j), (1j, 1), (3, 0.5j), (2, 1))[rng.integers(6)]
        c = draw(rng, rng.choice([other, "float32"]), out.shape, rng.choice(WAYS)) if beta else None
        if beta and rng.random() < 0.3:
            out[...] = c
            c = out
        elif beta and rng.random() < 0.3:
            c = c[..., :1, :] if m else c
        exact = alpha * (a.astype(np.clongdouble) @ b.astype(np.clongdouble))
        exact = exact + (beta * c.astype(np.clongdouble) if beta else 0)
        gemm(a, b, out, alpha=alpha, beta=beta, c=c)
        loose = {"complex64", "float32", "float16"} & {real, other, out_type}
        np.testing.assert_allclose(out, exact, rtol=1e-5 if loose else 1e-12, atol=1e-3 if loose else 1e-10)


@pytest.mark.parametrize("size", [1, 70])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("complex_first", [False, True])
def test_infinite_parts_stay_in_their_part(complex_first, way, size):
    a, b = np.ones((size, 2)), np.ones((2, size), complex)
    b[0], b[1] = complex(np.inf, 1), complex(-1, -np.inf)
    a, b = laid_out(a, way), laid_out(b, way)
    out = np.empty((size, size), complex)
    gemm(*((b.T, a.T) if complex_first else (a, b)), out)
    np.testing.assert_array_equal(out.real, np.inf)
    np.testing.assert_array_equal(out.imag, -np.inf)
