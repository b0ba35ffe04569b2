"""Rows shorter than a tile of whole sectors: what they cost."""

from __future__ import annotations

import pytest

from gemmule.core.permutation import transpose_problem
from gemmule.dispatch.registry import REGISTRY
from gemmule.kernels.transpose.tile_config import SectorTileConfig
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.counts import Counter
from gemmule.vgpu.launcher import launch
from support.transpose_rows import random_rows, rows_of

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")


@pytest.mark.parametrize(("itemsize", "cols", "most"), [(1, 77, 17), (2, 61, 23)])
def test_words_of_short_rows_are_addressed_as_those_of_long_ones(itemsize, cols, most, rng):
    """Instructions for each word: 25 and 33 where every word's address is held against the matrix's memory."""
    from gemmule.compiler.cache import artifact_for

    spec = next(spec for spec in REGISTRY if spec.name == "transpose_whole_sectors")
    config, arch = SectorTileConfig(1, 128, 256, 0), virtual_arch()
    source = random_rows(rng, (3000, cols), itemsize)
    target = rows_of((cols, 3000), itemsize)
    problem = transpose_problem((cols, 3000), (1, cols), (3000, 1), itemsize, (256, 256))
    counter = Counter()
    artifact = artifact_for(spec, config, spec.signature(problem, config), arch)
    launch(artifact, spec.launch(problem, config), {"a": source, "d": target}, observers=(counter,))
    words = counter.counts.total("warps", "load global")
    assert counter.counts.total("warps") <= most * words
