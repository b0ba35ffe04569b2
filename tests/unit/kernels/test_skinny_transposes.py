"""Transposes of matrices with a short side, and permutations that keep the last axis: refusals, choices, units."""

from __future__ import annotations

import dataclasses

import pytest

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.core.layout import compact_strides
from gemmule.core.permutation import transpose_problem
from gemmule.dispatch.select import choose
from gemmule.kernels.transpose.rows.runs import RowsConfig, runs_of, unit_of_rows
from gemmule.kernels.transpose.rows.spec import SPEC as ROWS
from gemmule.kernels.transpose.skinny.config import SkinnyConfig
from gemmule.kernels.transpose.skinny.spec import SPEC as SKINNY
from gemmule.lab.transposes import transpose_of

HOPPER = Arch.parse("sm_90a")


def chosen(problem):
    return choose(problem, HOPPER, multiprocessors=132)


@pytest.mark.parametrize(
    ("config", "fields", "rule"),
    [
        (SkinnyConfig, {"span_bytes": 128}, "a power of 2 from 256"),
        (SkinnyConfig, {"span_bytes": 768}, "a power of 2 from 256"),
        (SkinnyConfig, {"threads": 100}, "a multiple of 32 up to 1024"),
        (RowsConfig, {"vector": 12}, "vector must be 4, 8 or 16"),
    ],
)
def test_configs_that_make_no_sense(config, fields, rule):
    with pytest.raises(ArgumentError, match=rule):
        config(**fields)


def gapped(problem, side):
    matrix = getattr(problem, side)
    field = "col_stride" if side == "source" else "row_stride"
    return dataclasses.replace(problem, **{side: dataclasses.replace(matrix, **{field: getattr(matrix, field) + 1})})


def overlapping(problem):
    return dataclasses.replace(problem, source=dataclasses.replace(problem.source, col_stride=2))


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (transpose_of(97, 10001, 1), "structures of 97 elements are larger than 96"),
        (transpose_of(3, 301, 1), "rows of 301 elements are less than 512 bytes"),
        (gapped(transpose_of(3, 10001, 1), "target"), "has gaps between them"),
        (gapped(transpose_of(10001, 3, 1), "source"), "has gaps between them"),
        (gapped(transpose_of(3, 10001, 1), "source"), None),
        (gapped(transpose_of(10001, 3, 1), "target"), None),
        (transpose_of(64, 16000, 1), "whole vectors are faster"),
        (transpose_of(64, 16001, 1), "are faster as whole rows"),
        (transpose_of(39, 16001, 1), None),
        (transpose_of(10001, 32, 4), "structures of 32 elements are larger than 31"),
        (transpose_of(16, 10001, 8), "whole rows of 128 bytes"),
        (transpose_of(31, 10001, 4), None),
        (overlapping(transpose_of(3, 10001, 1)), "the row stride of the source is 2 bytes"),
    ],
)
def test_what_spans_take(problem, reason):
    found = SKINNY.why_not(problem, HOPPER, SkinnyConfig(256))
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize("config", SKINNY.configs, ids=str)
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(("m", "n"), [(3, 4096), (3, 4097), (10001, 2), (7, 100003)])
def test_spans_cover_rows_that_begin_anywhere(config, itemsize, m, n):
    problem = transpose_of(m, n, itemsize)
    if SKINNY.why_not(problem, HOPPER, config):
        pytest.skip("not taken")
    (spans, *ones) = SKINNY.launch(problem, config).grid
    assert ones == [1, 1]
    # The last span ends where a sector does, up to a sector before the others of a row that begins late in one.
    assert spans * config.span(itemsize) - config.before(itemsize) >= max(m, n)
    assert SKINNY.launch(problem, config).shared_bytes <= 99 << 10


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_matrices_with_a_short_side_take_it(itemsize):
    for m, n in [(3, 10_000_019), (10_000_019, 3)]:
        assert chosen(transpose_of(m, n, itemsize)).spec is SKINNY
    assert chosen(transpose_of(8191, 8193, itemsize)).spec is not SKINNY


def test_tiles_that_are_nearly_empty_at_an_edge_are_not_chosen():
    # Rows of 528 bytes fill one tile of 512 and a thirty-second of another; those of 512 fill one.
    for m, n in [(33, 100_000), (100_000, 33)]:
        assert chosen(transpose_of(m, n, 16)).spec is SKINNY
    assert chosen(transpose_of(32, 150_000, 16)).spec.name == "transpose_tiled"


@pytest.mark.parametrize(
    ("shape", "itemsize", "name"),
    [((2_271_146, 33), 2, "transpose_skinny"), ((2_271_146, 34), 2, "transpose_whole_sectors")],
)
def test_larger_structures_of_2_bytes_are_rows_of_tiles(shape, itemsize, name):
    cols, rows = shape
    problem = transpose_problem((rows, cols), (1, rows), (cols, 1), itemsize, (256, 256))
    assert chosen(problem).spec.name == name


@pytest.mark.parametrize(
    ("m", "n", "itemsize", "config"),
    [
        (3, 8_000_001, 1, SkinnyConfig(2048)),
        (8_000_001, 3, 1, SkinnyConfig(2048)),
        (5, 4_800_001, 1, SkinnyConfig(1024)),
        (16, 1_500_001, 1, SkinnyConfig(512)),
        (3, 2_000_001, 8, SkinnyConfig(2048)),
        (3, 2_000_001, 16, SkinnyConfig(4096)),
        (100_000, 33, 1, SkinnyConfig(256, 256)),
        (33, 100_000, 8, SkinnyConfig(512, 256)),
    ],
)
def test_a_span_that_was_about_the_fastest_is_chosen(m, n, itemsize, config):
    assert chosen(transpose_of(m, n, itemsize)).config == config


def test_large_elements_are_moved_in_tiles_that_do_not_launch_too_many():
    assert chosen(transpose_of(1000, 1001, 16)).config.read_bytes >= 256


def permuted(shape, axes, itemsize):
    strides = compact_strides(shape)
    new = tuple(shape[axis] for axis in axes)
    return transpose_problem(new, tuple(strides[axis] for axis in axes), compact_strides(new), itemsize, (16, 16))


@pytest.mark.parametrize(
    ("shape", "axes", "itemsize"),
    [
        ((2, 3, 600_000_000), (1, 0, 2), 4),
        ((2, 3, 150_000_000), (1, 0, 2), 16),
        ((4, 2, 2, 400_000_000), (0, 2, 1, 3), 8),
    ],
)
def test_runs_whose_bytes_32_bit_numbers_do_not_count_are_refused(shape, axes, itemsize):
    problem = permuted(shape, axes, itemsize)
    assert "are not counted by 32-bit numbers" in ROWS.why_not(problem, HOPPER, ROWS.default)
    assert chosen(problem).spec.name == "transpose_blocks"


@pytest.mark.parametrize(
    ("width", "itemsize", "unit"),
    [(16, 2, 16), (12, 2, 8), (10, 2, 4), (9, 2, 2), (9, 1, 1), (3, 16, 16)],
)
def test_units_are_as_large_as_rows_are_aligned(width, itemsize, unit):
    shape = (5, 7, width)
    problem = permuted(shape, (1, 0, 2), itemsize)
    assert unit_of_rows(problem) == unit
    runs = runs_of(problem)
    units = runs.units
    assert units.bytes_min == problem.bytes_min
    # Rows of the target follow one another along the first axis; runs of them along the other.
    row = shape[2] * itemsize
    assert runs.merged == (unit < 16 <= row)
    assert runs.bytes == (5 * row if runs.merged else row)
    assert (units.rows, units.cols, units.batch) == (7, row // unit, (1, 1, 5) if runs.merged else (5, 1, 1))
    assert units.source.row_stride * unit == row
    assert units.target.row_stride * unit == 5 * row


def test_rows_that_do_not_follow_one_another_are_no_runs():
    problem = permuted((5, 7, 33), (1, 0, 2), 2)
    apart = dataclasses.replace(problem.target, row_stride=5 * 40, batch_strides=(40,))
    assert runs_of(problem).merged
    assert not runs_of(dataclasses.replace(problem, target=apart)).merged


def test_the_memory_of_rows_in_reverse_order_begins_before_the_first():
    problem = permuted((5, 7, 64), (1, 0, 2), 1)
    assert runs_of(problem).memory == (0, 5 * 7 * 4)
    source = problem.source
    reverse = dataclasses.replace(source, row_stride=-source.row_stride, batch_strides=(-source.batch_strides[0],))
    assert runs_of(dataclasses.replace(problem, source=reverse)).memory == (-(5 * 7 - 1) * 4, 4)


def test_permutations_that_keep_the_last_axis_take_rows():
    assert chosen(permuted((8, 2048, 32, 128), (0, 2, 1, 3), 2)).spec is ROWS
    assert chosen(permuted((8, 2048, 32, 128), (0, 2, 3, 1), 2)).spec is not ROWS
    assert "must be 1" in ROWS.why_not(transpose_of(40, 50, 4), HOPPER, RowsConfig())
