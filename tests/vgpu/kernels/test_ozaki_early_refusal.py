"""What refuses ``precision="ozaki"`` early, on the virtual GPU: pairs of lines, and lines that are measured first."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

import gemmule as gm
from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import Precision
from gemmule.core.launch import ScalarParam
from gemmule.kernels.emulation.guard_words import NEVER, SHORTFALL
from gemmule.kernels.emulation.ozaki_gemm import first_launches
from gemmule.vgpu import Options, VirtualGpuError, launch
from gemmule.vgpu.arch import virtual_arch
from support.vgpu.kernel_products import problem_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")


@pytest.fixture(autouse=True)
def _checks(monkeypatch):
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")


def shortfall_of(ptx, problem, a, b, **options):
    """The shortfall behind pairs of lines, from PTX that may not be their own."""
    words = first_launches.words_launch(problem, first_launches.SET_WORDS.default).params
    found = np.array([one.value for one in words if isinstance(one, ScalarParam)], np.int32)
    arrays = {"a": a, "b": b, SHORTFALL: found}
    launch(
        ptx,
        first_launches.PAIRS.launch(problem, first_launches.PAIRS.default),
        arrays,
        options=Options(checks=True, **options),
    )
    return found[0]


def pairs_of(a, b):
    """The first launch's problem and PTX."""
    problem = dataclasses.replace(problem_of(a, b, np.zeros((len(a), b.shape[1]))), precision=Precision.OZAKI)
    config = first_launches.PAIRS.default
    signature = first_launches.PAIRS.signature(problem, config)
    return problem, artifact_for(first_launches.PAIRS, config, signature, virtual_arch()).ptx


def apart(rng, rows, columns, m=64, n=64, k=40):
    """Numbers of like magnitude, but lines with one element each: those of rows meet those of columns with zeros."""
    a, b = (rng.uniform(1, 2, shape) * rng.choice([-1.0, 1.0], shape) for shape in ((m, k), (k, n)))
    for row in rows:
        a[row], a[row, 0] = 0, 1
    for column in columns:
        b[:, column], b[1, column] = 0, 1
    return a, b


@pytest.mark.parametrize(("schedule", "seed"), [("late", 0), ("eager", 0), *(("random", seed) for seed in range(4))])
def test_pairs_are_found_when_all_ctas_have_compared_theirs(schedule, seed, rng):
    """Rows of two CTAs: without the cluster's barriers, that the others' columns and pairs are written is luck."""
    a, b = apart(rng, (40, 48, 56), (7, 39, 63))
    problem, ptx = pairs_of(a, b)
    assert shortfall_of(ptx, problem, a, b, schedule=schedule, seed=seed) == NEVER
    without = re.sub(r"barrier\.cluster\.\w+;", "membar.cta;", ptx)
    assert without != ptx
    with pytest.raises(VirtualGpuError, match=r"race in ozaki_pairs"):
        shortfall_of(without, problem, a, b, schedule=schedule, seed=seed)


@pytest.mark.parametrize(
    ("rows", "columns", "refused"),
    [
        # As many as there is room for, and one more.
        ((5, 6), range(64), False),
        ((5, 6, 50), range(64), True),
        (range(64), (7, 40), False),
        (range(64), (7, 40, 63), True),
        # Pairs of a column and few rows are of these.
        ((5, 6), (7, 40), False),
        ((5, 6, 50), (7,), True),
        ((), (), False),
    ],
)
def test_pairs_of_more_lines_than_there_is_room_for_refuse_the_product(rows, columns, refused, rng):
    a, b = apart(rng, rows, columns)
    problem, ptx = pairs_of(a, b)
    assert shortfall_of(ptx, problem, a, b) == (NEVER if refused else 0)


@pytest.mark.parametrize("k", [9, 1100, pytest.param(18000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("order", ["CC", "FF"])
def test_lines_that_are_compared_are_spread_over_the_matrix(order, k, rng):
    """Of many rows and columns 32 pairs, of which two lines refuse, by samples of several rounds; not those between."""
    m, n = 2050, 2100
    seen = [[number // 2 * extent // 32 // 2 * 2 + number % 2 for number in range(64)] for extent in (m, n)]
    for rows, columns, refused in (
        (seen[0][20:22], seen[1][40:42], True),
        (seen[0][-2:], seen[1][:2], True),
        (seen[0][:1], seen[1][:8], False),
        (sorted({*range(m)} - {*seen[0]}), seen[1][:8], False),
    ):
        a, b = apart(rng, rows, columns, m, n, k)
        a, b = (np.asarray(x, order=kind) for x, kind in zip((a, b), order, strict=True))
        problem, ptx = pairs_of(a, b)
        assert shortfall_of(ptx, problem, a, b) == (NEVER if refused else 0)


@pytest.mark.parametrize("order", ["CC", pytest.param("CF", marks=pytest.mark.slow)])
def test_many_lines_among_the_first_refuse_the_product(order, rng):
    """Of 66 rows that may be native, 6 of the eighth that is measured first; all others of the rest."""
    a, b = rng.uniform(1, 2, (2112, 16)), rng.uniform(1, 2, (16, 64))
    early = [row for row in range(len(a)) if row // 2 % 8 == 0]
    rest = [row for row in range(len(a)) if row // 2 % 8]

    def ran(rows):
        large = a.copy()
        large[rows, 3] = np.inf
        layouts = (np.asarray(x, order=kind) for x, kind in zip((large, b), order, strict=True))
        return gm.matmul.plan(*layouts, precision="ozaki", executor="vgpu").decision()

    assert ran(early[-6:] + rest[:60]) == ("ozaki-14, ieee in 66 rows",)
    assert ran(early[:6] + rest[-61:]) == ("ieee",)
    assert ran(early[20:27]) == ("ieee",)
