"""Products for precision='bf16x6': when they are chosen, what they launch, and what they are refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.arch import Arch
from gemmule.core.chips import H100_SXM
from gemmule.core.dtype import BFLOAT16, FLOAT32, Precision
from gemmule.core.errors import ArgumentError, DTypeError
from gemmule.core.launch import TensorMapParam
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem
from gemmule.core.roofline import fastest_unit
from gemmule.dispatch.select import choose
from gemmule.kernels.emulation.bf16x6_config import SixProductsConfig, SplitConfig
from gemmule.kernels.emulation.bf16x6_gemm.spec import SPEC
from gemmule.kernels.emulation.bf16x6_products.spec import SPEC as PRODUCTS
from gemmule.lab.products import gemm_problem
from gemmule.outofcore.calls.device_engine import memory_beside_workspaces

HOPPER = Arch.parse("sm_90a")


def problem_of(m, n, k, layout="nn", dtype="float32", precision=Precision.BF16X6):
    return dataclasses.replace(gemm_problem(m, n, k, dtype, dtype, layout), precision=precision)


def chosen(problem):
    return choose(problem, HOPPER, multiprocessors=132)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", [(8192, 8192, 8192), (4095, 4097, 4099), (512, 4096, 14336)], ids=str)
def test_large_products_take_it_when_they_are_asked_to(shape, layout):
    choice = chosen(problem_of(*shape, layout))
    assert choice.spec is SPEC
    assert choice.predicted_us > 0
    for precision in (Precision.IEEE, Precision.TF32):
        assert chosen(problem_of(*shape, layout, precision=precision)).spec.name != SPEC.name


@pytest.mark.parametrize("shape", [(2000, 70, 16), (300, 200, 0)], ids=str)
def test_products_for_which_splitting_does_not_pay(shape):
    choice = chosen(problem_of(*shape))
    assert choice.spec.name == "simt_gemm"
    reason = dict(choice.refused)[SPEC.name]
    assert reason.endswith("0") if 0 in shape else reason == "supported, but simt_gemm has a lower predicted time"


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_parts_lie_where_the_product_looks_for_them(layout):
    problem = problem_of(70, 130, 100, layout)
    then = SPEC.next_kernel(problem, SPEC.default)
    assert then.problem.k == 3 * 128
    assert (then.problem.a.rows, then.problem.b.cols) == (70, 130)
    assert then.problem.layout == layout
    # Lines along K hold three parts of 128; lines across it are of 128 and 192, three times 128 of them.
    sizes = {"a": 70 * 384 if layout[0] == "n" else 384 * 128, "b": 130 * 384 if layout[1] == "t" else 384 * 192}
    assert then.workspaces == {f"parts of {name}": 2 * size for name, size in sizes.items()}
    launch = then.spec.launch(then.problem, then.config)
    described = [param for param in launch.params if isinstance(param, TensorMapParam)]
    for param in described:
        assert param.dtype == BFLOAT16
        reach = param.extents[0] * 2 + (param.extents[1] - 1) * param.pitches[0]
        assert reach <= then.workspaces[f"parts of {param.operand}"]
    written = [param for param in SPEC.launch(problem, SPEC.default).params if param.operand.startswith("parts")]
    for param in written:
        spans = ((extent - 1) * stride for extent, stride in zip(param.shape, (1, *param.strides), strict=True))
        assert 2 * (sum(spans) + 1) <= then.workspaces[param.operand]


def test_a_matrix_for_all_of_a_batch_is_split_once():
    a, b, d = contiguous(FLOAT32, 64, 64, (5,)), contiguous(FLOAT32, 64, 64), contiguous(FLOAT32, 64, 64, (5,))
    b = dataclasses.replace(b, batch_strides=(0,))
    problem = GemmProblem(64, 64, 64, (5,), a, b, None, d, precision=Precision.BF16X6)
    then = SPEC.next_kernel(problem, SPEC.default)
    assert then.workspaces["parts of a"] == 5 * then.workspaces["parts of b"]
    assert then.problem.b.batch_strides == (0,)


def test_the_product_takes_nothing_but_parts():
    for problem in (problem_of(64, 64, 192), problem_of(64, 64, 192, dtype="bfloat16", precision=Precision.IEEE)):
        assert "the parts that bf16x6_gemm makes" in PRODUCTS.why_not(problem, HOPPER, PRODUCTS.default)
    assert "whole k-tiles" in PRODUCTS.why_not(problem_of(64, 64, 190, dtype="bfloat16"), HOPPER, PRODUCTS.default)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"precision": Precision.IEEE}, "for 'bf16x6'"),
        ({"alpha": 0}, "nothing to multiply"),
        ({"a": dataclasses.replace(contiguous(FLOAT32, 256, 256), col_stride=2, row_stride=512)}, "A has strides"),
        ({"d": contiguous(BFLOAT16, 256, 256)}, "D bfloat16"),
        ({"b": dataclasses.replace(contiguous(FLOAT32, 256, 256), alignment=2)}, "B begins within an element"),
    ],
)
def test_what_is_refused(change, reason):
    problem = dataclasses.replace(problem_of(256, 256, 256), **change)
    assert reason in SPEC.why_not(problem, HOPPER, SPEC.default)
    assert "sm_90a" in SPEC.why_not(problem_of(256, 256, 256), Arch.parse("sm_100a"), SPEC.default)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SplitConfig(threads=48),
        lambda: SixProductsConfig(tile_m=64),
        lambda: SixProductsConfig(tile_n=256),
        lambda: SixProductsConfig(stages=2),
        lambda: SixProductsConfig(depth=16),
        lambda: SixProductsConfig(stages=6),
    ],
)
def test_impossible_configs(make):
    with pytest.raises(ArgumentError, match="config "):
        make()


def test_the_unit_that_multiplies():
    assert fastest_unit(H100_SXM, FLOAT32, FLOAT32, Precision.BF16X6) == (
        "bf16_tensor",
        H100_SXM.peaks.bf16_tensor / 6,
    )
    assert fastest_unit(H100_SXM, FLOAT32, FLOAT32)[0] == "fp32"


def test_it_is_for_float32_and_the_host_computes_exactly():
    a = np.ones((3, 3), np.float32)
    np.testing.assert_array_equal(gm.matmul(a, a, precision="bf16x6", executor="cpu"), 3 * a)
    with pytest.raises(DTypeError, match="precision='bf16x6' is for float32 products, not float64 x float64"):
        gm.matmul(a.astype(np.float64), a.astype(np.float64), precision="bf16x6", executor="cpu")


def test_a_budget_leaves_room_for_the_parts():
    """A and B and their parts: 2.5 times the matrices."""
    assert memory_beside_workspaces(10 << 30, Precision.BF16X6) == 4 << 30
    assert memory_beside_workspaces(10 << 30, Precision.IEEE) == 10 << 30


def test_long_sums_are_kept_for_each_cta():
    then, short = (SPEC.next_kernel(problem_of(1024, 1024, k), SPEC.default) for k in (1025, 1024))
    launch = PRODUCTS.launch(then.problem, then.config)
    (space,) = launch.workspaces
    assert space.nbytes == launch.grid[0] * then.config.tile_elements * 4
    assert launch.params[-1].shape == (space.nbytes // 4,)
    assert PRODUCTS.launch(short.problem, short.config).workspaces == ()
