"""Of two operands that TMA cannot load the smaller one is packed, and the larger one stays: limits, recipe, choice."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.epilogue import Epilogue, Expression
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import ExtentsParam, TensorMapParam, TensorParam
from gemmule.core.spec import Choice
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm_repacked.config import PackingConfig
from gemmule.kernels.hopper.gemm_repacked.spec import SPEC
from gemmule.kernels.hopper.gemm_unaligned_a import spec as unaligned_a
from gemmule.kernels.hopper.gemm_unaligned_a.config import UnalignedAConfig
from gemmule.kernels.hopper.gemm_unaligned_a.spec import SPEC as UNALIGNED_A
from gemmule.kernels.hopper.refusals import HOPPER
from gemmule.lab.products import gemm_problem

ONE = PackingConfig(packs=1)


def product(m, n, k, layout="nn", dtype="bfloat16", **more):
    return gemm_problem(m, n, k, dtype, dtype, layout, **more)


def launches(problem):
    (pack, multiply), _ = Choice(SPEC, ONE).launches(problem)
    return pack.launch, multiply


@pytest.mark.parametrize(
    ("shape", "layout", "packed", "order"),
    [
        ((515, 301, 263), "nn", "b", None),
        ((515, 301, 263), "nt", "b", None),
        ((515, 301, 263), "tn", "b", "k_lines"),
        ((515, 301, 263), "tt", "b", "k_elements"),
        ((301, 515, 263), "nn", "a", "k_elements"),
        ((301, 515, 263), "nt", "a", None),
        ((301, 515, 263), "tn", "a", "k_lines"),
        ((301, 515, 263), "tt", "a", None),
    ],
)
def test_the_smaller_operand_is_packed_in_the_order_that_the_larger_one_needs(shape, layout, packed, order):
    problem = product(*shape, layout)
    pack, multiply = launches(problem)
    assert pack.params[0].operand == packed
    assert dict(SPEC.signature(problem, ONE)).get("order") == order
    assert multiply.spec is UNALIGNED_A
    assert multiply.config.swap_ab == (packed == "a")


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_every_class_of_lines_has_a_map_from_a_multiple_of_16_bytes_on(layout):
    m, n, k = 515, 301, 263
    _, multiply = launches(product(m, n, k, layout))
    lines, length = (m, k) if layout == "nt" else (k, m)
    maps = [one for one in multiply.launch.params if isinstance(one, TensorMapParam) and one.operand == "a"]
    shapes = [one for one in multiply.launch.params if isinstance(one, ExtentsParam) and one.operand == "a"]
    assert len(maps) == len(shapes) == 8
    for first, (one, shape) in enumerate(zip(maps, shapes, strict=True)):
        begin = 2 * first * length
        assert one.offset % 16 == one.pitches[0] % 16 == 0
        assert 0 <= begin - one.offset < 16
        assert one.extents == (length + (begin - one.offset) // 2, len(range(first, lines, 8)), 1)
        assert shape.extents == (one.extents[1], one.extents[0], 1)
        # Nothing of it lies outside of the matrix.
        assert one.offset + (one.extents[1] - 1) * one.pitches[0] + 2 * one.extents[0] <= 2 * m * k


def test_whole_k_tiles_are_written_where_k_is_permuted():
    pack, multiply = launches(product(515, 301, 130, "tn"))
    source, copy = pack.params
    assert isinstance(source, TensorParam)
    assert (source.shape, copy.shape) == ((301, 130, 1), (301, 130, 1))
    (b,) = (one for one in multiply.launch.params if isinstance(one, TensorMapParam) and one.operand == "b")
    assert b.extents[:2] == (301, 192)
    _, workspaces = Choice(SPEC, ONE).launches(product(515, 301, 130, "tn"))
    assert workspaces == {"packed b": 2 * 320 * 192}


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (product(515, 301, 263, batch=(2,)), "there is a batch; one operand is repacked of two matrices only"),
        (product(515, 304, 263), "TMA can load B as it is"),
        (product(515, 301, 7, "nt"), "an extent is less than 8, the classes of lines"),
        (product(515, 301, 263, misaligned=True), "A begins at a multiple of 2 bytes; this kernel needs 16"),
        (product(515, 301, 263, "nt", "int8"), "the operands are A int8, B int8, D int8"),
        (
            dataclasses.replace(product(515, 301, 263), epilogue=Epilogue(Expression(("acc", "gelu 0")))),
            "epilogue",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals(problem, reason):
    assert reason in SPEC.why_not(problem, HOPPER, ONE)


@pytest.mark.parametrize("swap_ab", [0, 1])
def test_an_operand_as_it_lies_has_8_lines_apart_and_the_other_one_is_aligned(swap_ab):
    name, other = "AB"[swap_ab], "BA"[swap_ab]

    def reason(lines, extent, stride=263, **facts):
        problem = product(extent, lines, 263, "tt") if swap_ab else product(lines, extent, 263)
        facts[("row_stride", "col_stride")[swap_ab]] = stride
        operand = dataclasses.replace(getattr(problem, name.lower()), **facts)
        problem = dataclasses.replace(problem, **{name.lower(): operand})
        return unaligned_a.why_not(problem, HOPPER, UnalignedAConfig(swap_ab=swap_ab))

    assert reason(8, 304) is None
    assert reason(7, 304) == "an operand has 7 lines, of at least 8"
    assert reason(515, 304, alignment=2) == f"{name} begins at a multiple of 2 bytes; this kernel needs 16"
    assert reason(515, 304, stride=0) == f"{name} has lines 0 elements apart; this kernel takes them in order"
    assert reason(515, 301).startswith(f"{other} has a leading dimension of 602 bytes")


def test_batches_are_refused_as_they_lie():
    assert "there is a batch" in UNALIGNED_A.refuses(product(515, 304, 263, batch=(2,)), HOPPER)


def test_configs():
    with pytest.raises(ArgumentError, match="packs must be 1 or 2"):
        PackingConfig(packs=3)
    with pytest.raises(ArgumentError, match="tile_m must be a multiple of 128"):
        UnalignedAConfig(tile_m=64)
    with pytest.raises(ArgumentError, match="cluster_k must be 1"):
        UnalignedAConfig(cluster_k=2)
    with pytest.raises(ArgumentError, match="cluster_m and cluster_n must be 1, 2 or 4"):
        UnalignedAConfig(cluster_m=3)


@pytest.mark.parametrize(
    ("shape", "layout", "packs"),
    [
        ((7475, 207, 6087), "nt", 1),
        ((287, 4115, 6187), "tt", 1),
        ((4095, 4095, 4095), "nt", 2),
        ((517, 685, 1501), "nn", 2),
    ],
)
def test_the_larger_operand_stays_where_that_is_faster(shape, layout, packs):
    choice = choose(product(*shape, layout), HOPPER, multiprocessors=132)
    assert (choice.spec, choice.config.packs) == (SPEC, packs)
