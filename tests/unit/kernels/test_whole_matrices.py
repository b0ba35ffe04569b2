"""Matrices that fit into shared memory: what is refused, and what a CTA holds."""

from __future__ import annotations

import pytest

from gemmule.core.arch import Arch
from gemmule.core.errors import ArgumentError
from gemmule.core.permutation import transpose_problem
from gemmule.dispatch.select import choose
from gemmule.kernels.transpose.whole_matrices.config import WholeMatricesConfig
from gemmule.kernels.transpose.whole_matrices.spec import SPEC

HOPPER = Arch.parse("sm_90a")


def problem_of(count, cols, rows, itemsize, pitch=None, alignment=256):
    """Of matrices of `cols` rows of `rows` elements, whose transposes' rows are `pitch` elements apart."""
    pitch = pitch or cols
    source, target = (cols * rows, 1, rows), (rows * pitch, pitch, 1)
    return transpose_problem((count, rows, cols), source, target, itemsize, (alignment, 256))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [({"threads": 96}, "threads must be a power of 2"), ({"threads": 1024}, "more than 2048 threads")],
)
def test_configs_that_make_no_sense(fields, rule):
    with pytest.raises(ArgumentError, match=rule):
        WholeMatricesConfig(**fields)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (problem_of(100, 49, 51, 4), "elements of 4 bytes are not supported"),
        (problem_of(100, 31, 51, 1), "from 32 rows of 2 on"),
        (problem_of(100, 49, 51, 1, 50), "have gaps between them"),
        (problem_of(100, 49, 51, 1, alignment=4), "does not begin at a multiple of 16 bytes"),
        (problem_of(100, 48, 64, 1), "every row is aligned to 16 bytes"),
        (problem_of(100, 57, 72, 1), "8 lanes of a warp meet in a bank"),
        (problem_of(100, 400, 401, 1), "does not fit into shared memory"),
        (problem_of(100, 49, 51, 1), None),
    ],
)
def test_refusals(problem, reason):
    found = SPEC.why_not(problem, HOPPER, WholeMatricesConfig())
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize("config", SPEC.configs, ids=str)
@pytest.mark.parametrize("count", [1, 131, 132, 5000, 1_000_000])
def test_ctas_hold_every_matrix_and_leave_room_for_others(config, count):
    problem = problem_of(count, 49, 65, 1)
    (ctas, _, _), held = config.grid(problem), config.matrices(problem)
    assert (ctas - 1) * held < count <= ctas * held
    assert config.at_once(problem) >= config.resident
    # A KiB of each CTA is the system's.
    assert config.at_once(problem) * (config.matrices_shared_bytes(problem) + 1024) <= 228 << 10


def test_few_matrices_are_spread_over_an_h200():
    assert WholeMatricesConfig().matrices(problem_of(1500, 49, 51, 1)) == 1


@pytest.mark.parametrize(
    ("shape", "itemsize", "name"),
    [
        ((4106, 325, 55), 1, "transpose_whole_matrices"),
        ((109, 563, 135), 1, "transpose_whole_matrices"),
        ((2070, 259, 170), 1, "transpose_whole_matrices"),
        ((2231, 264, 45), 2, "transpose_whole_matrices"),
        # Few CTAs, a warp's words in few banks, and rows of whole words.
        ((17, 174, 402), 1, "transpose_whole_rows"),
        ((880, 263, 104), 1, "transpose_whole_rows"),
        ((309, 50, 258), 2, "transpose_blocks"),
        ((32, 512, 49), 2, "transpose_word_aligned"),
    ],
)
def test_choices(shape, itemsize, name):
    assert choose(problem_of(*shape, itemsize), HOPPER, multiprocessors=132, chip="NVIDIA H200").spec.name == name
