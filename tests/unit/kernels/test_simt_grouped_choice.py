"""What simt_grouped takes and refuses, its launches, and which config a call gets."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT32, FLOAT64, INT8
from gemmule.core.epilogue import Epilogue, Expression
from gemmule.core.errors import UnsupportedError
from gemmule.core.grouped_problem import GroupedProblem
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem
from gemmule.dispatch.grouped import choose_grouped
from gemmule.dispatch.rates_table import rates_for
from gemmule.kernels.parts.grouped_tiles import MAX_GROUPS
from gemmule.kernels.simt.gemm.spec import SPEC as GEMM
from gemmule.kernels.simt.grouped.spec import SPEC

ARCHS = [Arch.parse("sm_90a"), Arch.parse("sm_80"), Arch.parse("sm_100a")]
HOPPER = ARCHS[0]


def matrix(rows, cols, row_major, batch=()):
    return contiguous(FLOAT32, rows, cols, batch) if row_major else contiguous(FLOAT32, cols, rows, batch).transposed()


def grouped(axis, majors=(True, False), m=4096, n=2048, k=1024, groups=8):
    batches = {name: (groups,) if divided == axis else () for name, divided in (("b", "m"), ("a", "n"), ("d", "k"))}
    a, b = matrix(m, k, majors[0], batches["a"]), matrix(k, n, majors[1], batches["b"])
    return GroupedProblem(axis, m, n, k, groups, a, b, contiguous(FLOAT32, m, n, batches["d"]))


@pytest.mark.parametrize("arch", ARCHS, ids=str)
@pytest.mark.parametrize("axis", "mnk")
def test_every_layout_is_taken_with_every_config(arch, axis):
    for majors in itertools.product((True, False), repeat=2):
        problem = grouped(axis, majors, m=1001, n=999, k=37)
        assert choose_grouped(problem, arch, multiprocessors=108).spec is SPEC
        for config in SPEC.configs:
            assert SPEC.why_not(problem, arch, config) is None
            assert config.cluster_size == 1


def test_copies_are_of_elements_where_groups_begin_within_a_row():
    """Of operands that are contiguous along what is divided, and of the result of groups of columns."""
    for axis, operand, majors in (("m", "a", (False, False)), ("n", "b", (True, True)), ("n", "d", (True, True))):
        types = dict(SPEC.signature(grouped(axis, majors), SPEC.default))
        assert types["d_vector" if operand == "d" else f"{operand}_copies"] == ("1" if operand == "d" else "4")
    types = dict(SPEC.signature(grouped("k", (False, True)), SPEC.default))
    assert (types["a_copies"], types["b_copies"], types["d_vector"]) == ("16", "16", "4")


def test_there_is_a_cta_for_each_of_the_most_tiles():
    config = SPEC.default
    rows, cols = -(-4096 // config.tile_m), -(-2048 // config.tile_n)
    assert SPEC.launch(grouped("m"), config).grid == ((rows + 8) * cols, 1, 1)
    assert SPEC.launch(grouped("n"), config).grid == (rows * (cols + 8), 1, 1)
    assert SPEC.launch(grouped("k"), config).grid == (rows * cols * 8, 1, 1)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (dataclasses.replace(grouped("m"), b=contiguous(FLOAT64, 1024, 2048, (8,))), "A is float32 and B is float64"),
        (dataclasses.replace(grouped("m"), d=contiguous(INT8, 4096, 2048)), "the output is int8"),
        (grouped("m", groups=MAX_GROUPS + 1), f"{MAX_GROUPS + 1} groups, of at most {MAX_GROUPS}"),
        (grouped("m", k=0), "nothing to multiply"),
        # Offsets that decrease may let every group have all rows.
        (grouped("m", m=1 << 27, n=8, k=8, groups=512), "there may be 1073741824 tiles; multiply fewer groups"),
        (dataclasses.replace(grouped("m"), d=matrix(4096, 2048, False)), "D is not row-major"),
        (
            dataclasses.replace(grouped("m"), a=dataclasses.replace(grouped("m").a, col_stride=2, row_stride=2048)),
            "A has strides .*; pass a copy",
        ),
        (dataclasses.replace(grouped("k"), epilogue=Epilogue(Expression(("acc", "neg 0")))), "the offsets divide K"),
        (
            dataclasses.replace(
                grouped("m"),
                epilogue=Epilogue(Expression(("acc", "up", "gate 0 1")), second=matrix(1024, 2048, False, (8,))),
            ),
            "the epilogue is gated",
        ),
        (
            dataclasses.replace(
                grouped("m"),
                epilogue=Epilogue(Expression(("acc", "e0", "add 0 1")), (contiguous(BFLOAT16, 4096, 2048, (1,)),)),
            ),
            "an input of the epilogue has rows",
        ),
    ],
)
def test_one_reason(problem, reason):
    with pytest.raises(UnsupportedError, match=reason) as caught:
        choose_grouped(problem, HOPPER)
    assert "\n" not in str(caught.value)


def test_as_many_groups_of_k_as_one_likes():
    assert SPEC.refuses(grouped("k", groups=MAX_GROUPS + 1), HOPPER) is None


@pytest.mark.parametrize("chip", ["NVIDIA H100 80GB HBM3", "NVIDIA H200"])
def test_one_group_takes_the_time_of_a_product(chip):
    gpu = rates_for(chip, 132)
    one = grouped("k", (False, True), 1000, 2000, 3000, groups=1)
    product = GemmProblem(1000, 2000, 3000, (), one.a, one.b, None, contiguous(FLOAT32, 1000, 2000))
    assert SPEC.costs(one, SPEC.configs, gpu) == pytest.approx(GEMM.costs(product, SPEC.configs, gpu), rel=1e-5)


def test_groups_of_few_rows_get_lower_tiles():
    few, many = (
        choose_grouped(grouped("m", m=m, groups=64), HOPPER, multiprocessors=132).config for m in (64 * 16, 64 * 4096)
    )
    assert few.tile_m < many.tile_m
