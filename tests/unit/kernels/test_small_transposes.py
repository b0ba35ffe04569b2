"""Transposes of small matrices, in registers, gathered, word-aligned: refusals, choices, and grids that cover them."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.dispatch.select import choose
from gemmule.kernels.transpose.gathered.spec import SPEC as GATHERED
from gemmule.kernels.transpose.in_registers.spec import SPEC as IN_REGISTERS
from gemmule.kernels.transpose.word_aligned.spec import SPEC as WORD_ALIGNED
from gemmule.kernels.transpose.word_tile_config import GatheredConfig, WarpTileConfig, WordAlignedConfig
from gemmule.lab.transposes import transpose_of
from support.batched_transposes import batched

HOPPER = Arch.parse("sm_90a")
SPECS = (IN_REGISTERS, GATHERED, WORD_ALIGNED)


def configs(*specs):
    """Each config of specs, for each size of elements."""
    cases = [(spec, config, itemsize) for spec in specs for config in spec.configs for itemsize in (1, 2)]
    return pytest.mark.parametrize(
        ("spec", "config", "itemsize"), cases, ids=lambda value: getattr(value, "name", str(value))
    )


@pytest.mark.parametrize(
    ("config", "fields", "rule"),
    [
        (WarpTileConfig, {"lanes": 3}, "lanes must divide the 32"),
        (WarpTileConfig, {"lanes": 64}, "lanes must divide the 32"),
        (WarpTileConfig, {"warps": 33}, "up to 32 warps"),
        (WarpTileConfig, {"warps": 0}, "warps must be 1 or more"),
        (GatheredConfig, {"lanes": 3}, "lanes must divide the 32"),
        (GatheredConfig, {"words": 0}, "words must be 1 or more"),
        (WordAlignedConfig, {"lanes": 8}, "lanes must be 16 or 32"),
        (WordAlignedConfig, {"words": 12}, "words 8, 16 or 32"),
        (WordAlignedConfig, {"threads": 96}, "power of 2 from 32 to 1024"),
        (WordAlignedConfig, {"threads": 2048}, "power of 2 from 32 to 1024"),
        (WordAlignedConfig, {"begin": 12}, "begin must be 4, 8, 16 or 32"),
        (WordAlignedConfig, {"begin": 32}, "divide the rows of all threads"),
        (WordAlignedConfig, {"threads": 0}, "threads must be 1 or more"),
    ],
)
def test_configs_that_make_no_sense(config, fields, rule):
    with pytest.raises(ArgumentError, match=rule):
        config(**fields)


def with_row_stride(problem, stride):
    return dataclasses.replace(problem, source=dataclasses.replace(problem.source, col_stride=stride))


@pytest.mark.parametrize(
    ("spec", "problem", "reason"),
    [
        (IN_REGISTERS, transpose_of(32, 32, 4), "elements of 4 bytes are not supported; the kernel moves 1 or 2 bytes"),
        (IN_REGISTERS, transpose_of(62, 64, 1), "rows must begin and end at multiples of 4 bytes"),
        (IN_REGISTERS, transpose_of(64, 31, 2), "rows must begin and end at multiples of 4 bytes"),
        (IN_REGISTERS, transpose_of(400, 412, 1), "164800 bytes, more than 163840"),
        (IN_REGISTERS, batched(transpose_of(64, 64, 1), (41,)), "167936 bytes, more than 163840"),
        (IN_REGISTERS, transpose_of(64, 64, 2), "8192 bytes, more than 4096"),
        (IN_REGISTERS, batched(transpose_of(16, 16, 2), (3, 2)), "more than one dimension"),
        (IN_REGISTERS, transpose_of(1, 2**20, 1), "rows must begin and end at multiples of 4 bytes"),
        (GATHERED, transpose_of(33, 31, 4), "elements of 4 bytes"),
        (GATHERED, transpose_of(64, 64, 1), "whole vectors are faster"),
        (GATHERED, transpose_of(8191, 8193, 1), "are moved in tiles"),
        (GATHERED, transpose_of(3, 10001, 1), "a matrix of 3 rows of 10001 elements is narrower than 16"),
        (GATHERED, transpose_of(10001, 15, 2), "is narrower than 16"),
        (GATHERED, batched(transpose_of(65, 67, 1), (1001,)), "are moved in tiles"),
        (GATHERED, batched(transpose_of(19, 17, 2), (3, 2)), "more than one dimension"),
        (WORD_ALIGNED, transpose_of(511, 513, 4), "elements of 4 bytes"),
        (WORD_ALIGNED, transpose_of(512, 512, 1), "whole vectors are faster"),
        (WORD_ALIGNED, transpose_of(8191, 8193, 1), "are moved in tiles"),
        (WORD_ALIGNED, transpose_of(3, 10001, 1), "a matrix of 3 rows of 10001 elements is narrower than 16"),
        (WORD_ALIGNED, batched(transpose_of(65, 67, 1), (1001,)), "are moved in tiles"),
        (WORD_ALIGNED, batched(transpose_of(19, 17, 2), (3, 2)), "more than one dimension"),
        (WORD_ALIGNED, with_row_stride(transpose_of(511, 513, 1), 3), "the row stride of the source is 3 bytes"),
        (WORD_ALIGNED, with_row_stride(transpose_of(511, 513, 2), -1), "the row stride of the source is 2 bytes"),
        (WORD_ALIGNED, with_row_stride(transpose_of(511, 513, 1), 1 << 22), "reach over 1073741824 bytes"),
        (WORD_ALIGNED, with_row_stride(transpose_of(511, 513, 1), -(1 << 22)), "reach over 1073741824 bytes"),
    ],
)
def test_what_is_refused(spec, problem, reason):
    assert reason in spec.refuses(problem, HOPPER)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_gaps_between_elements_are_refused(spec):
    problem = transpose_of(32, 32, 2)
    gaps = dataclasses.replace(problem, source=dataclasses.replace(problem.source, row_stride=2))
    assert "a stride of 2 in the source" in spec.why_not(gaps, HOPPER, spec.default)


@configs(IN_REGISTERS)
def test_a_thread_for_each_word(spec, config, itemsize):
    tile_i, tile_j = config.tile_i(itemsize), config.tile_words * 4 // itemsize
    assert tile_i * tile_j * itemsize == 32 * config.warps * 4 * (4 // itemsize)
    recipe = spec.launch(batched(transpose_of(100, 52, itemsize), (3,)), config)
    assert recipe.block == (32 * config.warps, 1, 1)
    assert recipe.grid == (-(-100 // tile_j), -(-52 // tile_i), 3)


@configs(GATHERED, WORD_ALIGNED)
def test_every_row_and_word_has_a_cta(spec, config, itemsize):
    for cols in range(95, 105):
        recipe = spec.launch(batched(transpose_of(cols, 131, itemsize), (3,)), config)
        # A row that begins at the last element before a multiple of the alignment needs the most words.
        words = (config.row_alignment - itemsize + cols * itemsize + 3) // 4
        assert recipe.grid == (-(-words // config.tile_words), -(-131 // config.tile_i(itemsize)), 3)
        assert recipe.block == (config.threads, 1, 1)
        assert recipe.overlaps


@configs(GATHERED)
def test_threads_of_gathered_words(spec, config, itemsize):
    assert config.tile_i(itemsize) * config.tile_words == 32 * config.warps * config.words


@configs(WORD_ALIGNED)
def test_the_rows_of_a_tile_do_not_overlap(spec, config, itemsize):
    pack, words = 4 // itemsize, config.class_words(itemsize)
    rows = config.class_rows(itemsize) * pack
    starts = sorted(row % pack * words + row // pack * config.row_words for row in range(rows))
    assert all(b - a >= config.lanes for a, b in itertools.pairwise(starts))
    assert 4 * (starts[-1] + config.lanes) <= config.tile_bytes(itemsize)
    # Every element of a word that begins anywhere has a row.
    assert rows >= config.held(itemsize) == config.words * pack + config.begin // itemsize - 1


@pytest.mark.parametrize(
    ("itemsize", "shape", "name"),
    [
        (1, (32, 32), "transpose_in_registers"),
        (1, (384, 384), "transpose_in_registers"),
        (1, (8192, 8192), "transpose_tiled"),
        (1, (65, 67), "transpose_gathered"),
        (1, (300, 301), "transpose_gathered"),
        (1, (383, 385), "transpose_word_aligned"),
        (1, (1000, 1001), "transpose_word_aligned"),
        (1, (1024, 1025), "transpose_whole_sectors"),
        (1, (8191, 8193), "transpose_whole_sectors"),
        (2, (32, 32), "transpose_in_registers"),
        (2, (384, 384), "transpose_tiled"),
        (2, (8192, 8192), "transpose_tiled"),
        (2, (65, 67), "transpose_gathered"),
        (2, (383, 385), "transpose_gathered"),
        (2, (511, 513), "transpose_word_aligned"),
        (2, (1000, 1001), "transpose_word_aligned"),
        (2, (1024, 1025), "transpose_whole_sectors"),
        (2, (8191, 8193), "transpose_whole_sectors"),
    ],
)
def test_the_kernel_that_is_chosen(itemsize, shape, name):
    assert choose(transpose_of(*shape, itemsize), HOPPER, multiprocessors=132).spec.name == name
