"""Batches of matrices in shared memory: every element, in both orders, and what is requested."""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.core.permutation import transpose_problem
from gemmule.kernels.transpose.whole_matrices.config import WholeMatricesConfig
from gemmule.kernels.transpose.whole_matrices.spec import SPEC
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.counts import Counter
from gemmule.vgpu.launcher import launch
from support.transpose_rows import check_permutation, random_rows, rows_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")


@pytest.mark.parametrize("itemsize", [1, 2])
@pytest.mark.parametrize("config", SPEC.configs, ids=str)
@pytest.mark.parametrize(
    ("shape", "offset"),
    [
        ((33, 35), 0),
        ((3, 49, 51), 1),
        # Rows of the target that end within words of the next matrix.
        ((40, 37, 3), 3),
        ((7, 32, 3), 0),
        ((2, 34, 31), 2),
        ((1, 77, 79), 1),
        # As many matrices as a CTA holds, more than its threads, and fewer in the last one.
        ((1500, 33, 3), 0),
        ((9000, 33, 3), 5),
    ],
    ids=str,
)
def test_matrices_of_any_size_and_alignment(config, itemsize, shape, offset, rng):
    *batch, cols, rows = shape
    source = np.swapaxes(random_rows(rng, shape, itemsize), -1, -2)
    target = rows_of((*batch, rows, cols), itemsize, offset=offset)
    check_permutation(SPEC, config, source, target)


@pytest.mark.parametrize(("shape", "itemsize"), [((77, 35), 1), ((49, 51), 2)])
def test_few_banks_are_met_twice_and_no_sector_is_shared(shape, itemsize, rng):
    from gemmule.compiler.cache import artifact_for

    (cols, rows), count = shape, 64
    config, arch = WholeMatricesConfig(), virtual_arch()
    source = random_rows(rng, (count, cols, rows), itemsize)
    target = rows_of((count, rows, cols), itemsize)
    size = cols * rows
    problem = transpose_problem((count, rows, cols), (size, 1, rows), (size, cols, 1), itemsize, (256, 256))
    counter = Counter()
    artifact = artifact_for(SPEC, config, SPEC.signature(problem, config), arch)
    launch(artifact, SPEC.launch(problem, config), {"a": source, "d": target}, observers=(counter,))
    np.testing.assert_array_equal(target, np.swapaxes(source, -1, -2))
    fewest = count * size * itemsize / 32
    assert counter.counts.total("sectors", "store global") <= 1.1 * fewest + 2 * count
    # A warp has words of two rows, each of which meets no bank twice.
    assert counter.counts.total("wavefronts", "load shared") <= 2.0 * counter.counts.total("warps", "load shared")
