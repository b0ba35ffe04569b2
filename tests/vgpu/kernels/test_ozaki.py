"""float64 as residues of int8 on the virtual GPU, all checks on: each launch, and what they make together."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import FLOAT64, INT8_PRODUCTS, Precision
from gemmule.kernels.emulation import ozaki_chain
from gemmule.kernels.emulation.ozaki_gemm import spec as own
from gemmule.kernels.emulation.ozaki_gemm.spec import SPEC
from gemmule.kernels.emulation.ozaki_products.spec import SPEC as PRODUCTS
from gemmule.kernels.emulation.residues import MODULI, product
from gemmule.vgpu import Options, launch
from gemmule.vgpu.arch import virtual_arch
from support.float64_bounds import beyond_certain, largest_residues
from support.oracle import poisoned
from support.ozaki_blocks import small_blocks
from support.vgpu.kernel_products import laid_out, problem_of

__all__ = ["small_blocks"]

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

COUNT = 15
U = FLOAT64.unit_roundoff


def problem_like(*operands, precision=Precision.OZAKI_15, **numbers):
    return dataclasses.replace(problem_of(*operands, **numbers), precision=precision)


def multiply(a, b, d, c=None, alpha=1, beta=0, config=None, spaces=None, precision=Precision.OZAKI_15):
    """Run every launch; what they leave in workspaces is in `spaces`."""
    problem = problem_like(a, b, d, c=c, alpha=alpha, beta=beta, precision=precision)
    assert SPEC.why_not(problem, virtual_arch(), SPEC.default) is None
    then = SPEC.next_kernel(problem, SPEC.default)
    arrays = {"a": a, "b": b, "d": d} | ({"c": c} if c is not None else {})
    # What a kernel must not rely on is not zero.
    spaces = {} if spaces is None else spaces
    spaces |= {name: np.full(size, 77, np.uint8) for name, size in then.workspaces.items()}
    arrays |= spaces
    run(SPEC, SPEC.default, problem, arrays)
    turned = not problem.d.is_row_major
    for one in then.chain():
        given = {name: beyond(arrays[of], one.beyond.get(name, 0), turned) for name, of in one.operands.items()}
        chosen = config if config is not None and one.spec is PRODUCTS else one.config
        run(one.spec, chosen, one.problem, arrays | given)
    return d


def run(spec, config, problem, arrays):
    recipe = spec.launch(problem, config)
    artifact = artifact_for(spec, config, spec.signature(problem, config), virtual_arch())
    named = {param.operand for param in recipe.params if hasattr(param, "operand")}
    launch(artifact, recipe, {name: arrays[name] for name in named}, options=Options(checks=True))


def beyond(array, nbytes, turned):
    """The array from so many bytes on: of a matrix other columns, or rows where the transposed product is computed."""
    if array.ndim == 1:
        return array[nbytes:]
    axis = 0 if turned else 1
    first = nbytes // array.strides[axis]
    return array[first:] if turned else array[:, first:]


def exact(a, b):
    """The product without any error, as fractions."""
    rows = [[Fraction(float(x)) for x in row] for row in a]
    cols = [[Fraction(float(x)) for x in col] for col in b.T]
    return [[sum((x * y for x, y in zip(row, col, strict=True)), Fraction(0)) for col in cols] for row in rows]


def eta(got, a, b, alpha=1, c=None, beta=0):
    """The largest error, in units of the last place of float64 and of the sum of magnitudes, against long double."""
    wide = [x.astype(np.longdouble) for x in (a, b)]
    right, size = alpha * (wide[0] @ wide[1]), abs(alpha) * (np.abs(wide[0]) @ np.abs(wide[1]))
    if c is not None:
        right, size = right + beta * c.astype(np.longdouble), size + abs(beta) * np.abs(c)
    assert np.isfinite(got).all()
    return float(np.max(np.abs(got - right) / np.where(size > 0, size, 1))) / U


#: How A, B and the result lie, and elements before each.
LAYOUTS = [(("row", "row", "row"), 1), (("col", "col", "col"), 0)]
OTHERS = [
    (("row", "col", "row"), 0),
    (("col", "row", "row"), 1),
    (("row", "row", "col"), 0),
    (("col", "col", "row"), 1),
]


@pytest.mark.parametrize(
    ("layout", "offset"), [*LAYOUTS, *(pytest.param(*one, marks=pytest.mark.slow) for one in OTHERS)]
)
def test_layouts_offsets_and_addends(layout, offset, rng):
    m, n, k = 37, 29, 141
    a, b, c = (rng.standard_normal(shape) for shape in ((m, k), (k, n), (m, n)))
    laid = [laid_out(x, kind, offset) for x, kind in zip((a, b, c), layout, strict=True)]
    d = laid_out(poisoned(FLOAT64, (m, n)), layout[2], offset)
    multiply(laid[0], laid[1], d, laid[2], 0.75, -1.5)
    assert eta(d, a, b, 0.75, c, -1.5) <= 3


@pytest.mark.parametrize("layout", [("row", "row", "row"), pytest.param(("col", "row", "col"), marks=pytest.mark.slow)])
def test_blocks_of_columns(layout, small_blocks, rng):
    m, n, k = (6, 530, 9) if layout[2] == "row" else (530, 6, 9)
    a, b, c = (rng.standard_normal(shape) for shape in ((m, k), (k, n), (m, n)))
    laid = [laid_out(x, kind) for x, kind in zip((a, b, c), layout, strict=True)]
    d = laid_out(poisoned(FLOAT64, (m, n)), layout[2])
    multiply(laid[0], laid[1], d, laid[2], -1.0, 2.0)
    assert eta(d, a, b, -1, c, 2) <= 3


def test_parts_of_a_long_k(monkeypatch, rng):
    """Products of a part are added to those before it, modulo each."""
    monkeypatch.setattr(ozaki_chain, "MOST_K", 256)
    own._next_kernel.cache_clear()
    a, b = rng.random((7, 600)), rng.random((600, 9))
    problem = problem_like(a, b, poisoned(FLOAT64, (7, 9)))
    assert sum(one.spec is PRODUCTS for one in SPEC.next_kernel(problem, SPEC.default).chain()) == 3
    got = multiply(a, b, poisoned(FLOAT64, (7, 9)))
    own._next_kernel.cache_clear()
    assert eta(got, a, b) <= 3


def integer_of(line, scale):
    """A line of numbers times a power of two, rounded to the nearest integers, ties to even ones."""
    return [round(Fraction(float(x)) * Fraction(2) ** int(scale)) for x in line]


def test_scales_and_residues_are_what_they_should_be(rng):
    m, n, k = 9, 5, 200
    a = rng.standard_normal((m, k)) * np.exp2(rng.integers(-500, 500, (m, 1)))
    b = rng.standard_normal((k, n)) * np.exp2(rng.integers(-30, 30, (k, n)))
    a[2] = 0
    spaces = {}
    multiply(a, b, poisoned(FLOAT64, (m, n)), spaces=spaces)
    limit = Fraction(product(COUNT), 2)
    for name, lines in (("rows", a), ("columns", b.T)):
        scales = spaces[f"scales of {name}"].view(np.int32)[: len(lines)]
        residues = spaces[f"residues of {name}"].view(np.int8).reshape(COUNT, len(lines), 256)
        for i, (line, scale) in enumerate(zip(lines, scales, strict=True)):
            whole = integer_of(line, scale)
            norm = sum(x * x for x in whole)
            # As large as powers of two allow, but for what is left for roundings.
            assert norm < limit
            assert norm * 4 * (1 + Fraction(1, 2**19)) > limit or not line.any()
            # Of 128 along K every 32nd lies beside each other.
            there = np.reshape(whole + [0] * 56, (2, 4, 32)).swapaxes(1, 2).ravel()
            for of, modulus in enumerate(MODULI[:COUNT]):
                got = residues[of, i].astype(object)
                assert not np.any((got - there) % modulus)
                assert np.abs(got).max() <= modulus // 2


def test_integers_are_exact_though_they_cancel(rng):
    a, b = (rng.integers(-(2**20), 2**20, shape) for shape in ((20, 66), (66, 20)))
    a, b = np.hstack([a, -a]), np.vstack([b, b])
    b[70] += 1
    got = multiply(a.astype(float), b.astype(float), poisoned(FLOAT64, (20, 20)))
    np.testing.assert_array_equal(got, a @ b)


def test_what_is_not_finite_and_numbers_at_the_ends(rng):
    a, b = rng.standard_normal((8, 40)), rng.standard_normal((40, 6))
    a[1, 3], a[2, 5], b[7, 4] = np.inf, np.nan, -np.inf
    a[3], b[:, 0] = 0, 0
    a[4] *= 2.0**1010
    a[5] *= 2.0**-1050
    a[6, ::2] *= 2.0**-800
    got = multiply(a, b, poisoned(FLOAT64, (8, 6)))
    bad = np.zeros((8, 6), np.bool_)
    bad[1:3], bad[:, 4] = True, True
    np.testing.assert_array_equal(np.isnan(got), bad)
    fine = np.delete(b, 4, 1)
    others = [0, 3, 4, 6, 7]
    assert eta(np.delete(got, 4, 1)[others], a[others], fine) <= 3
    assert not got[3, :4].any()
    assert not got[[0, 4, 5, 6, 7], 0].any()
    exact_row = np.array([[float(x) for x in row] for row in exact(a[5:6], fine)])
    assert np.abs(np.delete(got, 4, 1)[5] - exact_row).max() <= 2.0**-1074
    beyond_all = multiply(np.array([[1.5e308, 1.5e308]]), np.array([[1.0, -1], [1, -1]]), poisoned(FLOAT64, (1, 2)))
    np.testing.assert_array_equal(beyond_all, [[np.inf, -np.inf]])


@pytest.mark.parametrize(("family", "k"), [("normal", 2), ("of one sign", 64), ("wide", 40)])
def test_errors_are_within_what_is_certain(family, k, rng):
    a, b = (
        rng.random(shape) if family == "of one sign" else rng.standard_normal(shape) for shape in ((40, k), (k, 30))
    )
    if family == "wide":
        a, b = (x * np.exp(4 * rng.standard_normal(x.shape)) for x in (a, b))
    got = multiply(a, b, poisoned(FLOAT64, (40, 30)))
    assert beyond_certain(got, a, b) <= 1
    assert family != "of one sign" or eta(got, a, b) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("config", PRODUCTS.configs, ids=lambda config: str(config).replace(" ", ","))
def test_every_config_takes_tile_after_tile(config, rng):
    """One cluster for all tiles: stages and phases go round."""
    a, b = rng.standard_normal((300, 700)), rng.standard_normal((700, 40))
    few = dataclasses.replace(config, ctas=config.cluster_size)
    got = multiply(a, b, poisoned(FLOAT64, (300, 40)), config=few)
    assert eta(got, a, b) <= 3


@pytest.mark.slow
def test_sums_that_would_overflow():
    """Behind 65,536 of K another product begins."""
    k = 74000
    # At this K equal numbers are scaled to integers of 50 bits: this one to itself.
    whole = largest_residues(2**49)
    a = np.full((1, k), float(whole))
    got = multiply(a, a.T.copy(), poisoned(FLOAT64, (1, 1)))
    assert got[0, 0] == float(k * whole * whole)


@pytest.mark.slow
def test_each_product_more_is_four_bits_more(rng):
    """Numbers of wide exponents, of which bits are lost whatever the number of products."""
    a, b = ((rng.random(shape) - 0.5) * np.exp(8 * rng.standard_normal(shape)) for shape in ((20, 40), (40, 20)))
    found = [
        eta(multiply(a, b, poisoned(FLOAT64, (20, 20)), precision=one), a, b) for one in sorted(INT8_PRODUCTS, key=str)
    ]
    assert found[0] > 2 * found[1] > 4 * found[2]
