"""float32 as three parts of bfloat16 on the virtual GPU, all checks on: the parts, their products, how exact both are.

The virtual tensor cores cut what they add as Hopper's do.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import BFLOAT16, FLOAT32, Precision
from gemmule.core.spec import Choice
from gemmule.kernels.emulation.bf16x6_gemm.spec import SPEC
from gemmule.kernels.emulation.bf16x6_products.spec import SPEC as PRODUCTS
from gemmule.vgpu import Options, VirtualGpuError, launch
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from gemmule.vgpu.ptx.parser import parse
from support.oracle import assert_product, poisoned, random_matrix
from support.ptx.hopper import SCHEDULES
from support.vgpu.kernel_products import laid_out, problem_of
from support.vgpu.mutations import synchronisation

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: The smallest tile.
SMALL = PRODUCTS.configs[-1]
U = FLOAT32.unit_roundoff


def problem_like(*operands, **numbers):
    return dataclasses.replace(problem_of(*operands, **numbers), precision=Precision.BF16X6)


def split(problem, a, b):
    """Split A and B; return the parts as the product's factors, and the product."""
    assert SPEC.why_not(problem, virtual_arch(), SPEC.default) is None
    recipe, then = SPEC.launch(problem, SPEC.default), SPEC.next_kernel(problem, SPEC.default)
    artifact = artifact_for(SPEC, SPEC.default, SPEC.signature(problem, SPEC.default), virtual_arch())
    artifact.check_launch(recipe)
    spaces = {name: np.full(size // 2, 77, BFLOAT16.numpy()) for name, size in then.workspaces.items()}
    launch(artifact, recipe, {"a": a, "b": b, **spaces}, options=Options(checks=True))
    factors = []
    for name in "ab":
        matrix = then.problem.operands()[name]
        strides = [2 * stride for stride in (*matrix.batch_strides, matrix.row_stride, matrix.col_stride)]
        bits = spaces[f"parts of {name}"].view(np.uint16)
        shape = (*problem.batch, matrix.rows, matrix.cols)
        factors.append(np.lib.stride_tricks.as_strided(bits, shape, strides).view(BFLOAT16.numpy()))
    return factors, then


def multiply(a, b, d, c=None, alpha=1, beta=0, config=SMALL):
    factors, then = split(problem_like(a, b, d, c=c, alpha=alpha, beta=beta), a, b)
    arrays = dict(zip("ab", factors, strict=True)) | {"d": d} | ({"c": c} if c is not None else {})
    run_kernel(then.problem, Choice(PRODUCTS, config), arrays, Options(checks=True, mma="hopper"))
    return d


def errors(got, a, b):
    """Errors in units of the last place of float32 and of the sum of magnitudes."""
    wide = [x.astype(np.float64) for x in (a, b)]
    size = np.abs(wide[0]) @ np.abs(wide[1])
    return np.abs(got - wide[0] @ wide[1]) / np.where(size > 0, size, 1) / U


def root_mean_square(x):
    return float(np.sqrt(np.mean(np.square(x))))


#: How A, B and the result lie. The first two are one specialisation, the transposed product among them.
LAYOUTS = [("col", "col", "row"), ("row", "row", "col")]
OTHERS = [("row", "row", "row"), ("row", "col", "row"), ("col", "row", "row"), ("col", "row", "col")]


@pytest.mark.parametrize(("shape", "offset"), [((129, 70, 67), 1), ((60, 72, 136), 0)], ids=["anywhere", "aligned"])
@pytest.mark.parametrize(
    "layout", [*LAYOUTS, *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)], ids="-".join
)
def test_layouts_offsets_and_addends(layout, shape, offset, rng):
    m, n, k = shape
    operands = [random_matrix(rng, FLOAT32, sides) for sides in ((m, k), (k, n), (m, n))]
    a, b, c = (laid_out(x, kind, offset) for x, kind in zip(operands, layout, strict=True))
    got = multiply(a, b, laid_out(poisoned(FLOAT32, (m, n)), layout[2], offset), c, 0.75, -1.5)
    assert_product(got, *operands, 0.75, -1.5)


def test_a_batch_of_which_b_is_one_matrix(rng):
    a, b = random_matrix(rng, FLOAT32, (2, 9, 70)), random_matrix(rng, FLOAT32, (70, 12))
    shared = np.broadcast_to(b, (2, 70, 12))
    _, then = split(problem := problem_like(a, shared, poisoned(FLOAT32, (2, 9, 12))), a, b)
    assert then.workspaces["parts of b"] == 3 * 128 * 64 * 2
    assert SPEC.launch(problem, SPEC.default).params[3].shape[-1] == 1
    assert_product(multiply(a, shared, poisoned(FLOAT32, (2, 9, 12))), a, shared)


@pytest.mark.slow
@pytest.mark.parametrize("config", PRODUCTS.configs, ids=lambda config: f"128x{config.tile_n}")
@pytest.mark.parametrize("layout", [("row", "col"), ("col", "row")], ids="-".join)
def test_every_config_takes_tile_after_tile(config, layout, rng):
    """One CTA for all tiles: stages and phases go round."""
    a, b = random_matrix(rng, FLOAT32, (140, 1300)), random_matrix(rng, FLOAT32, (1300, 200))
    moved = [laid_out(x, kind) for x, kind in zip((a, b), layout, strict=True)]
    got = multiply(*moved, poisoned(FLOAT32, (140, 200)), config=dataclasses.replace(config, ctas=1))
    assert errors(got, a, b).max() <= 3


def bits_at(rng, low, high, shape):
    """Numbers of random bits and signs, with exponents in a range."""
    exponents = rng.integers(low, high, shape, endpoint=True)
    return np.ldexp(rng.uniform(1, 2, shape), exponents).astype(np.float32) * rng.choice([-1, 1], shape)


def test_parts_are_all_of_a_number(rng):
    a = bits_at(rng, -110, 127, (33, 64)).astype(np.float32)
    # The largest, what would be rounded to infinity, ties, and zeros of both signs.
    most = np.finfo(np.float32).max
    a[0, :8] = most, -most, np.float32(3.3961776e38), -np.float32(3.395e38), 1 + 2.0**-8, 1 + 3 * 2.0**-8, 0.0, -0.0
    d = np.zeros((33, 64), np.float32)
    (parts, _), _ = split(problem_like(a, a[:1].repeat(64, 0), d), a, a[:1].repeat(64, 0))
    first, second, third = np.split(parts.astype(np.float64), 3, axis=1)
    assert np.isfinite(parts.astype(np.float32)).all()
    np.testing.assert_array_equal(first + second + third, a.astype(np.float64))
    normal = np.abs(a) < 3.3895e38
    nearest = a.astype(BFLOAT16.numpy())
    np.testing.assert_array_equal(first[normal], nearest.astype(np.float64)[normal])


def test_what_parts_cannot_hold(rng):
    """Below 2**-110 the last bits are lost, and what is not finite is no number in its row."""
    a, b = bits_at(rng, -125, -111, (5, 64)).astype(np.float32), np.eye(64, dtype=np.float32)
    a[1, 3], a[2, 4] = np.inf, np.nan
    got = multiply(a, b, poisoned(FLOAT32, (5, 64)))
    for row in (0, 3, 4):
        assert np.abs(got[row].astype(np.float64) - a[row]).max() <= 2.0**-133
        assert np.any(got[row] != a[row])
    assert np.isnan(got[1:3]).all()


FAMILIES = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "from 0 to 1": lambda rng, shape: rng.random(shape),
    "wide exponents": lambda rng, shape: (rng.random(shape) - 0.5) * np.exp(4 * rng.standard_normal(shape)),
    "wide, of one sign": lambda rng, shape: rng.random(shape) * np.exp(2 * rng.standard_normal(shape)),
}


def in_order(a, b):
    """The product in float32, one term after the other, as float32 units sum it."""
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for column, row in zip(a.T.astype(np.float64), b.astype(np.float64), strict=True):
        total = (total + np.outer(column, row)).astype(np.float32)
    return total


# Sums of more than 1024 are kept in device memory meanwhile, and of more than 2048 added to those.
QUICK = [("normal", 1), ("wide, of one sign", 64), ("from 0 to 1", 1100)]
LONGER = [pytest.param(*one, marks=pytest.mark.slow) for one in itertools.product(FAMILIES, (1, 64, 1100, 2200))]


@pytest.mark.parametrize(("family", "k"), [*QUICK, *(one for one in LONGER if one.values not in QUICK)])
def test_errors_are_less_than_those_of_float32(family, k, rng):
    a, b = (FAMILIES[family](rng, shape).astype(np.float32) for shape in ((100, k), (k, 60)))
    got = multiply(a, b, poisoned(FLOAT32, (100, 60)))
    found = errors(got, a, b)
    assert found.max() <= k + 3
    # Of 6000 elements it varies by some percent, where the largest error may double.
    assert root_mean_square(found) <= 1.2 * max(root_mean_square(errors(in_order(a, b), a, b)), 1)


def test_integers_and_powers_of_two_are_exact(rng):
    a, b = (rng.integers(-500, 501, shape).astype(np.float32) for shape in ((20, 66), (66, 20)))
    exact = multiply(a, b, poisoned(FLOAT32, (20, 20)))
    np.testing.assert_array_equal(exact, a.astype(np.float64) @ b.astype(np.float64))
    x = random_matrix(rng, FLOAT32, (20, 66))
    factors = np.float32(1), np.float32(2.0**-40)
    first, scaled = (multiply(x * factor, b, poisoned(FLOAT32, (20, 20))) for factor in factors)
    np.testing.assert_array_equal(first, scaled * np.float32(2.0**40))


#: What no check misses, by its beginning, and why: some of such instructions, not all.
HARMLESS = {
    "wgmma.fence": "nothing but the wait before it touches the sums between two slices",
    "mbarrier.try_wait": "two stages are free at the same time: who has waited for one need not for the other",
}


@pytest.mark.slow
def test_every_synchronisation_instruction_is_missed(rng):
    """Removed in turn: a check must find that each is missing."""
    a, b = random_matrix(rng, FLOAT32, (128, 400)), random_matrix(rng, FLOAT32, (400, 128))
    factors, then = split(problem_like(a, b, poisoned(FLOAT32, (128, 128))), a, b)
    config = dataclasses.replace(SMALL, ctas=1, stages=4)
    artifact = artifact_for(PRODUCTS, config, PRODUCTS.signature(then.problem, config), virtual_arch())
    recipe = PRODUCTS.launch(then.problem, config)
    seen, unseen = [], []
    for instruction in synchronisation(parse(artifact.ptx)):
        lines = artifact.ptx.split("\n")
        target = str(instruction.operands[0]).split("#")[0] if instruction.operands else ""
        waits = "try_wait" in instruction.modifiers
        lines[instruction.line - 1] = f"setp.eq.u32 {target}, 0, 0;" if waits else "membar.cta;"
        found = False
        for schedule in SCHEDULES:
            d = poisoned(FLOAT32, (128, 128))
            try:
                launch("\n".join(lines), recipe, dict(zip("abd", (*factors, d), strict=True)),
                       options=Options(checks=True, schedule=schedule))  # fmt: skip
            except VirtualGpuError:
                found = True
                break
            assert_product(d, a, b)
        (seen if found else unseen).append(instruction.text)
    assert [text for text in unseen if not text.startswith(tuple(HARMLESS))] == []
    waits = [[text for text in texts if "try_wait" in text] for texts in (seen, unseen)]
    assert len(waits[0]) > len(waits[1])
