"""Products of 8-bit floats with scales on the virtual GPU, all checks on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.epilogues.scaling import Scaling
from gemmule.core.block_scales import BlockScales
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT32, Precision
from gemmule.core.epilogue import ACC, Epilogue, Expression
from gemmule.core.layout import StridedMatrix
from gemmule.core.spec import Choice
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC
from gemmule.vgpu import Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.execute import run_kernel
from support.float8_bounds import SEEN
from support.oracle import poisoned, random_matrix
from support.scaled_products import FORMS, reference, scales_of
from support.vgpu.kernel_products import laid_out, problem_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Two blocks of columns in one tile, columns that begin within a block (promoted in halves, one while the other is
#: multiplied), halves one after the other, tiles of several rounds, with early divisions too, tall ones, clusters,
#: swapped operands, and parts of K.
SMALL = HopperGemmConfig(tile_m=64, tile_n=16, stages=3, pingpong=1, cluster_m=1)
WIDE = HopperGemmConfig(tile_m=128, tile_n=192, stages=3, cluster_m=1)
HALVES = HopperGemmConfig(tile_m=128, tile_n=256, stages=3, cluster_m=1)
ROUNDS = HopperGemmConfig(tile_m=128, tile_n=160, stages=3, cluster_m=1, ctas=2)
#: Tiles that begin anywhere within a block, and have parts of three; written in epilogue tiles of half the columns.
ODD = HopperGemmConfig(tile_m=128, tile_n=176, stages=3, cluster_m=1, ctas=3)
COLUMNS = HopperGemmConfig(tile_m=128, tile_n=144, stages=3, cluster_m=1, ctas=2)
EARLY = HopperGemmConfig(tile_m=128, tile_n=128, stages=3, cluster_m=1, ctas=3)
#: Narrow tiles at the right edge, in waves that they do not fill.
NARROW = dataclasses.replace(EARLY, ctas=5)
TALL = HopperGemmConfig(tile_m=256, tile_n=112, stages=3, cluster_m=1)
TALL_CLUSTERS = HopperGemmConfig(tile_m=256, tile_n=112, stages=3, cluster_m=2, group=4)
CLUSTERS = HopperGemmConfig(tile_m=64, tile_n=32, stages=3, pingpong=1, cluster_m=2, cluster_n=2, ctas=4)
OF_EIGHT = HopperGemmConfig(tile_m=128, tile_n=80, stages=7, cluster_m=2, cluster_n=4)
SWAPPED = HopperGemmConfig(tile_m=64, tile_n=16, stages=3, pingpong=1, cluster_m=1, swap_ab=1)
PARTS_OF_K = HopperGemmConfig(tile_m=64, tile_n=64, stages=3, pingpong=1, cluster_m=1, cluster_k=2)


#: Several tiles a CTA, and a pair.
SEVERAL = dataclasses.replace(WIDE, ctas=2)
PAIRS = dataclasses.replace(WIDE, cluster_m=2, ctas=4)


def _matrix(scales):
    row, col = (0 if extent == 1 else stride // scales.itemsize
                for extent, stride in zip(scales.shape, scales.strides, strict=True))  # fmt: skip
    return StridedMatrix(FLOAT32, *scales.shape, row, col, (), scales.itemsize)


def multiply(a, b, scales, lines, config, out=FLOAT32):
    d = poisoned(out, (a.shape[0], b.shape[1]))
    epilogue = Epilogue(Expression((ACC,)), scales=BlockScales(*map(_matrix, scales), *lines))
    problem = dataclasses.replace(problem_of(a, b, d), precision=Precision.FLOAT8, epilogue=epilogue)
    assert SPEC.why_not(problem, virtual_arch(), config) is None
    arrays = {"a": a, "b": b, "d": d, "scale_a": scales[0], "scale_b": scales[1]}
    run_kernel(problem, Choice(SPEC, config), arrays, Options(checks=True, mma="hopper"))
    return d


def assert_scaled(got, exact, size):
    rounding = 2.0**-8 if got.dtype != np.float32 else 2.0**-24
    error = np.abs(got.astype(np.float64) - exact)
    assert (error <= rounding * np.abs(exact) + SEEN * size).all(), (error / np.where(size > 0, size, 1)).max()


@pytest.mark.parametrize(
    ("form", "lines", "shape", "config"),
    [
        ("block", (1, 128), (70, 136, 272), SMALL),
        pytest.param("block1", (1, 1), (65, 24, 144), SMALL, marks=pytest.mark.slow),
        ("block", (1, 128), (9, 200, 400), SWAPPED),
        ("block by row", (128, 1), (150, 72, 656), PARTS_OF_K),
        pytest.param("block", (1, 128), (150, 400, 784), WIDE, marks=pytest.mark.slow),
        ("block", (1, 128), (140, 272, 528), HALVES),
        pytest.param("block", (1, 128), (140, 552, 272), ODD, marks=pytest.mark.slow),
        ("block1", (1, 1), (140, 176, 144), ROUNDS),
        ("block1", (1, 1), (140, 304, 272), COLUMNS),
        ("block1", (1, 1), (400, 272, 144), NARROW),
        ("block1", (1, 1), (260, 256, 144), dataclasses.replace(NARROW, ctas=4)),
        pytest.param("block1", (1, 1), (130, 56, 144), NARROW, marks=pytest.mark.slow),
        pytest.param("block1", (1, 1), (184, 400, 144), dataclasses.replace(NARROW, swap_ab=1), marks=pytest.mark.slow),
        pytest.param("block1", (1, 1), (320, 136, 272), TALL, marks=pytest.mark.slow),
        pytest.param("block1", (1, 1), (560, 136, 272), TALL_CLUSTERS, marks=pytest.mark.slow),
        pytest.param("block", (1, 128), (400, 272, 144), EARLY, marks=pytest.mark.slow),
        ("block", (1, 128), (140, 136, 1168), EARLY),
        pytest.param("block1", (1, 1), (1300, 336, 144), ROUNDS, marks=pytest.mark.slow),
        pytest.param("block", (1, 128), (150, 400, 112), WIDE, marks=pytest.mark.slow),
        pytest.param("block", (1, 128), (300, 600, 1040), HALVES, marks=pytest.mark.slow),
        pytest.param("block", (1, 128), (320, 136, 272), TALL, marks=pytest.mark.slow),
        pytest.param("block by row", (128, 1), (257, 120, 144), TALL, marks=pytest.mark.slow),
        pytest.param("block1", (1, 1), (200, 72, 528), CLUSTERS, marks=pytest.mark.slow),
        pytest.param("block", (1, 128), (270, 328, 272), OF_EIGHT, marks=pytest.mark.slow),
    ],
)
def test_blocks(form, lines, shape, config, rng):
    m, n, k = shape
    a, b = random_matrix(rng, FLOAT8_E4M3, (m, k)), random_matrix(rng, FLOAT8_E5M2, (k, n))
    scales = scales_of(form, shape, rng)
    got = multiply(a, laid_out(b, "col"), scales, lines, config)
    assert_scaled(got, *reference(a, b, *scales))


@pytest.mark.parametrize(
    ("shape", "config"),
    [
        ((300, 400, 272), SEVERAL),
        ((300, 400, 128), SEVERAL),
        pytest.param((500, 584, 528), PAIRS, marks=pytest.mark.slow),
        ((140, 536, 144), dataclasses.replace(HALVES, ctas=2)),
        pytest.param((140, 424, 272), dataclasses.replace(SEVERAL, tile_n=208), marks=pytest.mark.slow),
        pytest.param((140, 552, 272), ODD, marks=pytest.mark.slow),
        ((9, 200, 400), SWAPPED),
        ((150, 72, 656), PARTS_OF_K),
        pytest.param((320, 264, 272), TALL, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_rows_and_columns(shape, config, rng):
    """Scales as inputs of the epilogue: the lanes of a warp share those of columns."""
    m, n, k = shape
    a, b = random_matrix(rng, FLOAT8_E4M3, (m, k)), random_matrix(rng, FLOAT8_E5M2, (k, n))
    scales, d = scales_of("row", shape, rng), poisoned(BFLOAT16, (m, n))
    expression, _ = Scaling(None, True, False, False).traced
    inputs = tuple(StridedMatrix(FLOAT32, m, n, *strides, (), 4) for strides in ((1, 0), (0, 1)))
    problem = problem_of(a, laid_out(b, "col"), d)
    problem = dataclasses.replace(problem, precision=Precision.FLOAT8, epilogue=Epilogue(expression, inputs))
    assert SPEC.why_not(problem, virtual_arch(), config) is None
    arrays = {"a": a, "b": laid_out(b, "col"), "d": d, "e0": scales[0], "e1": scales[1]}
    run_kernel(problem, Choice(SPEC, config), arrays, Options(checks=True, mma="hopper"))
    assert_scaled(d, *reference(a, b, *scales))


@pytest.mark.parametrize("form", [form if form in ("row", "block") else pytest.param(form, marks=pytest.mark.slow)
                                  for form in FORMS])  # fmt: skip
def test_scaled_gemm(form, rng):
    """The public function, as on the host, with a bias."""
    shape = (33, 48, 272)
    a, b = random_matrix(rng, FLOAT8_E4M3, (33, 272)), laid_out(random_matrix(rng, FLOAT8_E4M3, (272, 48)), "col")
    scales, bias = scales_of(form, shape, rng), random_matrix(rng, FLOAT32, (48,))
    exact, size = reference(a, b, *scales)
    for executor in ("vgpu", "cpu"):
        # As on a chip tiles are small; the first config of all is compiled longest.
        chip = "h200" if executor == "vgpu" else None
        got = gm.scaled_gemm.plan(a, b, *scales, bias=bias, executor=executor, chip=chip).execute()
        assert got.dtype == BFLOAT16.numpy()
        assert_scaled(got, exact + bias, size)
