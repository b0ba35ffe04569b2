"""What refuses ``precision="ozaki"`` early, on the virtual GPU: pairs of lines, and lines that are measured first."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

import gemmule as gm
from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import Precision
from gemmule.kernels.emulation.guard_words import NEVER, SHORTFALL, SHORTFALL_WORDS
from gemmule.kernels.emulation.ozaki_gemm import first_launches
from gemmule.vgpu import Options, VirtualGpuError, launch
from gemmule.vgpu.arch import virtual_arch
from support.vgpu.kernel_products import problem_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")


@pytest.fixture(autouse=True)
def _checks(monkeypatch):
    monkeypatch.setenv("GEMMULE_VGPU_CHECKS", "1")


def shortfall_of(ptx, problem, a, b, **options):
    """What the first launch writes, from PTX that may not be its own."""
    found = np.full(SHORTFALL_WORDS, 0x7F7F7F7F, np.int32)
    arrays = {"a": a, "b": b, SHORTFALL: found}
    launch(
        ptx,
        first_launches.PAIRS.launch(problem, first_launches.PAIRS.default),
        arrays,
        options=Options(checks=True, **options),
    )
    return found[0]


@pytest.mark.parametrize(("schedule", "seed"), [("late", 0), ("eager", 0), *(("random", seed) for seed in range(4))])
def test_no_cta_raises_the_shortfall_before_it_is_set(schedule, seed, rng):
    """Two CTAs find small pairs: without the cluster's barrier, that the first one's 0 is earlier is luck."""
    a, b = rng.standard_normal((64, 40)), rng.standard_normal((40, 64))
    for line in (48, 56):
        a[line], b[:, line] = 0, 0
        a[line, 0], b[1, line] = 1, 1
    problem = dataclasses.replace(problem_of(a, b, np.zeros((64, 64))), precision=Precision.OZAKI)
    config = first_launches.PAIRS.default
    ptx = artifact_for(
        first_launches.PAIRS, config, first_launches.PAIRS.signature(problem, config), virtual_arch()
    ).ptx
    assert shortfall_of(ptx, problem, a, b, schedule=schedule, seed=seed) == NEVER
    # One of them may be of one line, which the native kernel computes.
    single = a.copy()
    single[48] = 1
    assert shortfall_of(ptx, problem, single, b, schedule=schedule, seed=seed) == 0
    without = re.sub(r"barrier\.cluster\.\w+;", "membar.cta;", ptx)
    assert without != ptx
    with pytest.raises(VirtualGpuError, match=r"race in ozaki_pairs"):
        shortfall_of(without, problem, a, b, schedule=schedule, seed=seed)


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
