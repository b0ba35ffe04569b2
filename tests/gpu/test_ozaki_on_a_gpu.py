"""float64 as products of int8 on the hardware: layouts, offsets, C, batches, configs, blocks; as exact as float64.

Errors are in units of the last place of float64 and of the sum of magnitudes, against long double.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from gemmule.core.dtype import FLOAT64, Precision
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.kernels.emulation.ozaki_products.spec import SPEC as PRODUCTS
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from support.float64_bounds import beyond_certain, largest_residues
from support.gpu import kernel_products
from support.gpu.device_arrays import STREAM, DeviceMatrix, strides_of
from support.oracle import assert_product, poisoned, random_matrix
from support.ozaki_blocks import small_blocks

__all__ = ["small_blocks"]

SPECS = {spec.name: spec for spec in REGISTRY}
SPEC, PLAIN = SPECS["ozaki_gemm"], SPECS["float64_gemm"]
LAYOUTS = list(itertools.product(("row", "col"), repeat=2))
TILES = [pytest.param(config, id=str(config).replace(" ", ",")) for config in PRODUCTS.configs]
U = FLOAT64.unit_roundoff
multiply = functools.partial(kernel_products.multiply, precision=Precision.OZAKI_15)


@pytest.fixture(autouse=True)
def _hopper():
    if get_device().capability != (9, 0):
        pytest.skip("needs compute capability 9.0")


def with_tile(config):
    """The kernel, with the products in one config."""

    def turned(one):
        if one is None:
            return None
        chosen = config if one.spec is PRODUCTS else one.config
        return dataclasses.replace(one, config=chosen, then=turned(one.then))

    return dataclasses.replace(SPEC, next_kernel=lambda *given: turned(SPEC.next_kernel(*given)))


def matrices(rng, *shapes):
    return [random_matrix(rng, FLOAT64, shape) for shape in shapes]


def eta(got, a, b, alpha=1, c=None, beta=0):
    wide = [x.astype(np.longdouble) for x in (a, b)]
    exact, size = alpha * (wide[0] @ wide[1]), abs(alpha) * (np.abs(wide[0]) @ np.abs(wide[1]))
    if c is not None:
        exact, size = exact + beta * c.astype(np.longdouble), size + abs(beta) * np.abs(c)
    assert np.isfinite(got).all()
    return float(np.max(np.abs(got - exact) / np.where(size > 0, size, 1))) / U


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("out", ["padded", "row", "col"])
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_layouts_and_offsets(layout, out, offset, rng):
    m, n, k = 261, 517, 203
    a, b = matrices(rng, (m, k), (k, n))
    got = multiply(SPEC, a, b, poisoned(FLOAT64, (m, n)), kinds=(*layout, out), offset=offset)
    assert eta(got, a, b) <= 3


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 300, 64), (65, 71, 23), (128, 256, 640), (1001, 1303, 711), (2049, 519, 63)], ids=str
)
@pytest.mark.parametrize("tile", TILES)
def test_ragged_tiles_and_addends(tile, shape, rng):
    m, n, k = shape
    a, b, c = matrices(rng, (m, k), (k, n), (m, n))
    got = multiply(with_tile(tile), a, b, poisoned(FLOAT64, (m, n)), c=c, alpha=-1.0, beta=0.5)
    assert eta(got, a, b, -1, c, 0.5) <= 3


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("out", ["row", "col"])
def test_blocks_of_columns(layout, out, small_blocks, rng):
    m, n, k = 530, 1300, 129
    a, b, c = matrices(rng, (m, k), (k, n), (m, n))
    got = multiply(SPEC, a, b, poisoned(FLOAT64, (m, n)), kinds=(*layout, out), c=c, alpha=2.0, beta=-1.0)
    assert eta(got, a, b, 2, c, -1) <= 3


@pytest.mark.parametrize("kinds", [("row", "apart"), ("apart", "broadcast")], ids="-".join)
@pytest.mark.parametrize("batch", [(3,), (2, 4)], ids=str)
def test_batches(batch, kinds, rng):
    m, n, k = 71, 133, 101
    a, b = (
        np.broadcast_to(
            random_matrix(rng, FLOAT64, shape if kind == "broadcast" else (*batch, *shape)), (*batch, *shape)
        )
        for kind, shape in zip(kinds, ((m, k), (k, n)), strict=True)
    )
    got = multiply(SPEC, a, b, poisoned(FLOAT64, (*batch, m, n)), kinds=(*kinds, "apart"), batch=batch)
    assert_product(got, a, b)


@pytest.mark.parametrize("tile", TILES[:3])
def test_sums_that_would_overflow(tile):
    """The largest residues for six moduli, of one sign: beyond 65,536 of K another product begins."""
    k = 140000
    # At this K a row of equal numbers is scaled to integers of 50 bits: to this one itself.
    whole = largest_residues(2**49)
    got = multiply(
        with_tile(tile), np.full((5, k), float(whole)), np.full((k, 5), float(whole)), poisoned(FLOAT64, (5, 5))
    )
    np.testing.assert_array_equal(got, float(k * whole * whole))


def test_many_calls_without_waiting(rng):
    """Launches may overlap; workspaces that follow each other in the stream are the same memory."""
    m, n, k = 389, 261, 515
    arrays = [matrices(rng, (m, k), (k, n)) for _ in range(8)]
    held = []
    for a, b in arrays:
        held.append(
            [
                DeviceMatrix(FLOAT64, x.shape, strides_of("row", (), *x.shape)).put(x)
                for x in (a, b, poisoned(FLOAT64, (m, n)))
            ]
        )
    for da, db, dd in held:
        problem = GemmProblem(m, n, k, (), da.matrix(), db.matrix(), None, dd.matrix(), precision=Precision.OZAKI_15)
        run_kernel(problem, Choice(SPEC, SPEC.default), {"a": da.address, "b": db.address, "d": dd.address}, 0, STREAM)
    for (a, b), (da, db, dd) in zip(arrays, held, strict=True):
        assert eta(dd.get(), a, b) <= 3
        for matrix in (da, db, dd):
            matrix.buffer.free()


def test_the_same_bits_every_time_and_for_every_power_of_two(rng):
    a, b = matrices(rng, (1031, 2048), (2048, 775))
    scales = np.exp2(rng.integers(-500, 500, (1031, 1)))
    first, *others = (multiply(SPEC, x, b, poisoned(FLOAT64, (1031, 775))) for x in (a, a, a, a * scales))
    others[-1] = others[-1] / scales
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint64), other.view(np.uint64))


@pytest.mark.parametrize("most", [1, 1000, 2**20])
def test_integers_are_exact(most, rng):
    # 53 bits hold every sum; half of A is what takes the other half off.
    a, b = (rng.integers(-most, most + 1, (256, 256)) for _ in range(2))
    a, b = np.hstack([a, -a]), np.vstack([b, b])
    b[300] += 1
    got = multiply(SPEC, a.astype(float), b.astype(float), poisoned(FLOAT64, (256, 256)))
    np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize("k", [1, 2, 3, 16, 700])
@pytest.mark.parametrize("family", ["normal", "of one sign", "scaled", "wide"])
def test_errors_are_within_what_is_certain(family, k, rng):
    a, b = (
        rng.random(shape) if family == "of one sign" else rng.standard_normal(shape) for shape in ((300, k), (k, 200))
    )
    if family == "scaled":
        a, b = a * np.exp2(rng.integers(-40, 41, (300, 1))), b * np.exp2(rng.integers(-40, 41, (1, 200)))
    if family == "wide":
        a, b = (x * np.exp(4 * rng.standard_normal(x.shape)) for x in (a, b))
    got = multiply(SPEC, a, b, poisoned(FLOAT64, (300, 200)))
    assert beyond_certain(got, a, b) <= 1
    # Where no number is alone with large ones of the other factor, they are those of float64 or less.
    if family != "wide" and (k >= 16 or family == "of one sign"):
        assert eta(got, a, b) <= max(eta(multiply(PLAIN, a, b, poisoned(FLOAT64, (300, 200))), a, b), 3)


def test_what_is_not_finite_stays_in_its_row_or_column(rng):
    a, b = matrices(rng, (70, 90), (90, 80))
    a[3, 5], a[4, 0], b[7, 9] = np.inf, np.nan, -np.inf
    bad = np.zeros((70, 80), np.bool_)
    bad[3:5], bad[:, 9] = True, True
    for kinds in (("row", "row", "row"), ("col", "col", "col")):
        got = multiply(SPEC, a, b, poisoned(FLOAT64, (70, 80)), kinds=kinds)
        np.testing.assert_array_equal(np.isnan(got), bad)
        fine = [np.delete(got, 9, 1)[row] for row in range(70) if row not in (3, 4)]
        rest = np.delete(a, (3, 4), 0), np.delete(b, 9, 1)
        assert eta(np.array(fine), *rest) <= 3


def test_zeros_and_numbers_at_the_ends_of_float64(rng):
    a, b = matrices(rng, (12, 150), (150, 40))
    a[0], b[:, 1] = 0, 0
    a[1] *= 2.0**-1050  # subnormal
    a[2] *= 2.0**1010
    a[3, ::2] *= 2.0**-900  # nothing is left of these beside the others
    a[4] = np.where(np.arange(150) == 7, 2.0**-1074, 0)
    got = multiply(SPEC, a, b, poisoned(FLOAT64, (12, 40)))
    assert (got[0] == 0).all()
    assert (got[:, 1] == 0).all()
    others = [2, 3, *range(5, 12)]
    assert eta(got[others] / 2.0**20, a[others] / 2.0**20, b) <= 3
    exact = (a[[1, 4]].astype(np.longdouble) @ b.astype(np.longdouble)).astype(np.float64)
    assert np.abs(got[[1, 4]] - exact).max() <= 2.0**-1073
    # Results beyond the largest number are infinite, of both signs.
    high = multiply(
        SPEC, np.array([[1.5e308, 1.5e308]]), np.array([[1.0, -1.0], [1.0, -1.0]]), poisoned(FLOAT64, (1, 2))
    )
    np.testing.assert_array_equal(high, [[np.inf, -np.inf]])
