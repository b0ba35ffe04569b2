"""What hopper_grouped refuses, and which config a call gets."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT16, FLOAT32, Precision
from gemmule.core.errors import UnsupportedError
from gemmule.core.grouped_problem import GroupedProblem
from gemmule.core.launch import TensorMapParam
from gemmule.core.layout import contiguous
from gemmule.dispatch.grouped import choose_grouped
from gemmule.kernels.hopper.grouped.spec import SPEC
from gemmule.kernels.hopper.tile_config import MAX_SHARED_BYTES, why_not_promoted
from gemmule.kernels.parts.grouped_tiles import MAX_GROUPS

HOPPER = Arch.parse("sm_90a")


def rows(m=4096, n=2048, k=1024, groups=8, dtype=BFLOAT16):
    """Groups of rows, with the weights of a layer."""
    weights = contiguous(dtype, n, k, (groups,)).transposed()
    return GroupedProblem("m", m, n, k, groups, contiguous(dtype, m, k), weights, contiguous(dtype, m, n))


def parts_of_k(m=2048, n=1024, k=4096, groups=8):
    a = contiguous(BFLOAT16, k, m).transposed()
    return GroupedProblem("k", m, n, k, groups, a, contiguous(BFLOAT16, k, n), contiguous(BFLOAT16, m, n, (groups,)))


@pytest.mark.parametrize("problem", [rows(), parts_of_k()], ids=["m", "k"])
def test_both_are_taken_with_every_config(problem):
    for config in SPEC.configs:
        assert SPEC.why_not(problem, HOPPER, config) is None
        recipe = SPEC.launch(problem, config)
        assert recipe.shared_bytes <= MAX_SHARED_BYTES
        assert recipe.grid[0] % config.cluster_size == 0
        assert 0 < recipe.grid[0] <= config.ctas
        # Memory that nobody cleared will do, so that a launch is a dependent one.
        assert recipe.overlaps
        assert [(x.name, x.zeroed) for x in recipe.workspaces] == [("counter", False)] * config.dynamic


@pytest.mark.parametrize(
    ("problem", "fetched"),
    [(rows(), 256), (rows(m=1024), 128), (rows(m=1024, dtype=FLOAT8_E4M3), 128), (parts_of_k(m=1024), 256)],
    ids=["many rows", "few", "few of 8 bits", "k"],
)
def test_what_l2_fetches_of_operands(problem, fetched):
    """All rows begin at multiples of 256 bytes."""
    maps = [x for x in SPEC.launch(problem, SPEC.default).params if isinstance(x, TensorMapParam) and x.operand in "ab"]
    assert [one.fetched_bytes for one in maps] == [fetched] * 2


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (dataclasses.replace(rows(), a=rows(dtype=FLOAT32).a), "both of one type among bfloat16, float16 and float32"),
        (dataclasses.replace(rows(), b=rows(dtype=FLOAT16).b), "A is bfloat16 and B is float16"),
        (dataclasses.replace(rows(), d=contiguous(FLOAT16, 4096, 2048)), "the output is float16"),
        (rows(groups=MAX_GROUPS + 1), f"{MAX_GROUPS + 1} groups, of at most {MAX_GROUPS}; multiply them in several"),
        (rows(k=1001), "TMA needs positive multiples of 16"),
        (rows(k=0), "nothing to multiply"),
        # Offsets that decrease may let every group have all rows: 2**28 rows of 512 are 2**31 tiles.
        (rows(m=1 << 28, n=8, k=8, groups=512), "the number of tiles is beyond"),
        (dataclasses.replace(rows(), d=contiguous(BFLOAT16, 2048, 4096).transposed()), "D is not row-major"),
        (
            dataclasses.replace(rows(), a=contiguous(BFLOAT16, 1024, 4096).transposed()),
            "A is contiguous along M, which the offsets divide",
        ),
        (
            dataclasses.replace(rows(), axis="row", a=contiguous(BFLOAT16, 1024, 4096).transposed()),
            "A is contiguous along M, which the matrices divide",
        ),
        (
            dataclasses.replace(parts_of_k(), b=contiguous(BFLOAT16, 1024, 4096).transposed()),
            "B is contiguous along K, which the offsets divide",
        ),
        # Of one element, B is loaded as contiguous along K, where a last, empty group would begin between 16 bytes.
        (
            dataclasses.replace(parts_of_k(n=1, k=1), b=dataclasses.replace(contiguous(BFLOAT16, 1, 1), row_stride=8)),
            "B is contiguous along K, which the offsets divide",
        ),
    ],
)
def test_one_reason(problem, reason):
    with pytest.raises(UnsupportedError, match=reason) as caught:
        choose_grouped(problem, HOPPER)
    assert "\n" not in str(caught.value)


def rows_of_8_bits(**changes):
    problem = rows(dtype=FLOAT8_E4M3)
    changes = {"d": contiguous(BFLOAT16, 4096, 2048), "precision": Precision.FLOAT8} | changes
    return dataclasses.replace(problem, **changes)


def test_8_bit_floats_have_configs_of_their_own():
    for multiprocessors in (132, None):
        choice = choose_grouped(rows_of_8_bits(), HOPPER, multiprocessors=multiprocessors)
        assert why_not_promoted(choice.config) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"precision": Precision.IEEE}, "pass precision='float8'"),
        ({"d": contiguous(FLOAT8_E4M3, 4096, 2048)}, "the output is float8_e4m3fn"),
        ({"b": contiguous(FLOAT8_E4M3, 1024, 2048, (8,))}, "not contiguous along K"),
    ],
)
def test_8_bit_floats_that_are_refused(changes, reason):
    with pytest.raises(UnsupportedError, match=reason):
        choose_grouped(rows_of_8_bits(**changes), HOPPER)


def test_tokens_fewer_than_groups_are_no_more_groups():
    """One token of 8 experts among 128: tiles are as many as tokens."""
    few, all_groups = (choose_grouped(rows(m=8, groups=groups), HOPPER, multiprocessors=132) for groups in (128, 8))
    assert few.predicted_us < 2 * all_groups.predicted_us


def test_other_gpus_are_refused():
    with pytest.raises(UnsupportedError, match="wgmma is an instruction of sm_90a"):
        choose_grouped(rows(), Arch.parse("sm_80"))


def test_as_many_groups_as_there_is_room_for():
    assert SPEC.refuses(rows(groups=MAX_GROUPS), HOPPER) is None


def test_groups_of_few_rows_get_lower_tiles():
    few, many = (choose_grouped(rows(m=m, groups=64), HOPPER, multiprocessors=132).config for m in (64 * 16, 64 * 4096))
    assert few.tile_m * few.cluster_m < many.tile_m * many.cluster_m
