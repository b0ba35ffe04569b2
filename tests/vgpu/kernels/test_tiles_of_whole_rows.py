"""Tiles of whole rows of the target: every element, wherever rows begin, and what is requested."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.permutation import transpose_problem
from gemmule.kernels.transpose.whole_rows.config import WholeRowsConfig
from gemmule.kernels.transpose.whole_rows.spec import SPEC
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.counts import Counter
from gemmule.vgpu.launcher import launch
from support.transpose_rows import check_permutation, random_rows, rows_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")


@pytest.mark.combinations(1)
@pytest.mark.parametrize("itemsize", [1, 2])
@pytest.mark.parametrize("config", SPEC.configs, ids=str)
@pytest.mark.parametrize(
    ("shape", "pad", "offsets"),
    [
        # As many words as a lane fills at once, and one more.
        ((32, 1001), 0, (0, 0)),
        ((33, 1001), 0, (1, 0)),
        ((77, 517), 3, (1, 3)),
        ((3, 66, 251), 5, (2, 1)),
        # One element more than whole tiles, and rows of the target that begin at words.
        ((2, 135, 125), 0, (0, 1)),
        ((68, 249), 0, (3, 2)),
        # Vectors change their places.
        ((72, 131), 0, (1, 3)),
    ],
    ids=str,
)
def test_rows_of_any_length_and_alignment(config, itemsize, shape, pad, offsets, rng):
    if config.in_flight(itemsize) > 40:
        pytest.skip("the config is for elements of 2 bytes")
    *batch, cols, rows = shape
    source = random_rows(rng, shape, itemsize, pad=pad, offset=offsets[0])
    target = rows_of((*batch, rows, cols), itemsize, offset=offsets[1])
    check_permutation(SPEC, config, np.swapaxes(source, -1, -2), target)


@pytest.mark.parametrize("itemsize", [1, 2])
def test_rows_of_the_source_in_reverse(itemsize, rng):
    source = random_rows(rng, (71, 301), itemsize, offset=1)[::-1]
    check_permutation(SPEC, WholeRowsConfig(), source.T, rows_of((301, 71), itemsize))


@pytest.mark.parametrize(("itemsize", "cols"), [(1, 77), (2, 61)])
def test_only_the_ends_of_runs_share_vectors(itemsize, cols, rng):
    """Rows of 77 bytes end within sectors that the next row begins in; a tile of them has two such sectors."""
    from gemmule.compiler.cache import artifact_for

    config, arch, rows = WholeRowsConfig(), virtual_arch(), 4001
    source, target = random_rows(rng, (cols, rows), itemsize), rows_of((rows, cols), itemsize)
    problem = transpose_problem((rows, cols), (1, rows), (cols, 1), itemsize, (256, 256))
    counter = Counter()
    artifact = artifact_for(SPEC, config, SPEC.signature(problem, config), arch)
    launch(artifact, SPEC.launch(problem, config), {"a": source, "d": target}, observers=(counter,))
    np.testing.assert_array_equal(target, source.T)
    fewest = rows * cols * itemsize / 32
    # Of 8 lanes of 16 bytes, and of the last ones of a tile by elements.
    assert counter.counts.total("sectors", "store global") <= 1.1 * fewest
    # 23 sectors of a quarter of a row's 124 elements, and the halo of each 8 words.
    assert counter.counts.total("sectors", "load global") <= 2.0 * fewest
    # No bank is met twice but by the vectors, which take four passes.
    assert counter.counts.total("wavefronts", "store shared") == counter.counts.total("warps", "store shared")
