"""The shares of stream-K, from the device's own code: all slices once, evenly, and nobody waits for later clusters."""

from __future__ import annotations

import collections

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

from cutlass import Int32, cute

from gemmule.compiler.compile import compile_ptx
from gemmule.core.dtype import INT32
from gemmule.core.launch import Launch, ScalarParam, TensorParam
from gemmule.core.spec import Buildable
from gemmule.kernels.parts.schedulers.stream_k import StreamKScheduler
from gemmule.kernels.parts.tensors import major_tensor, tensor_1d
from gemmule.vgpu import Options, launch
from gemmule.vgpu.arch import virtual_arch

TILE_M, TILE_N, MOST = 64, 8, 64


class Pieces:
    """Writes for every cluster how many pieces it has, who has parts of the last, and each piece."""

    def __init__(self):
        self.order = StreamKScheduler(1, TILE_M, TILE_N, 8, 1, 1, 1)

    @cute.jit
    def __call__(self, mD: cute.Tensor, mOut: cute.Tensor, slices: Int32):
        self.kernel(mD, mOut, slices).launch(grid=(1, 1, 1), block=(1, 1, 1))

    @cute.kernel
    def kernel(self, mD: cute.Tensor, mOut: cute.Tensor, slices: Int32):
        cta, _, _ = cute.arch.block_idx()
        begin, step, end = self.order.work(mD, slices)
        out = cta * (3 * MOST)
        mOut[out] = end
        for number in range(begin, end, step):
            tile, (first, count) = self.order.linear_work_tile(mD, number, slices)
            place = out + 3 * (number + 1)
            mOut[place] = tile
            mOut[place + 1] = first
            mOut[place + 2] = count
            if first > 0 and first + count == slices:
                mOut[out + 1] = self.order.first_peer(mD, slices)


@pytest.fixture(scope="module")
def code():
    arguments = (major_tensor("float32", 1, batch=1), tensor_1d("int32"), Int32(1))
    return compile_ptx(Buildable(Pieces(), arguments), virtual_arch())


def pieces_of(code, rows, cols, matrices, clusters, slices):
    """For each cluster its pieces, and the first cluster that has a part of the tile that it finishes."""
    out = np.full((clusters, 3 * MOST), -1, np.int32)
    d = np.zeros((matrices, TILE_M * (rows - 1) + 1, TILE_N * cols), np.float32)
    params = (
        TensorParam("d", (d.shape[1], d.shape[2], matrices), (d.shape[2], d.shape[1] * d.shape[2])),
        TensorParam("out", (out.size,), ()),
        ScalarParam("slices", INT32, slices),
    )
    launch(code, Launch((clusters, 1, 1), (1, 1, 1), params), {"d": d, "out": out}, options=Options(checks=True))
    assert (out[:, 0] < MOST).all()
    return [[tuple(row) for row in one[3 : 3 * (one[0] + 1)].reshape(-1, 3).tolist()] for one in out], out[:, 1]


def check(code, rows, cols, matrices, clusters, slices):
    tiles = rows * cols * matrices
    clusters = min(clusters, tiles * slices)
    pieces, first_sharers = pieces_of(code, rows, cols, matrices, clusters, slices)
    every = collections.Counter(
        (tile, k) for mine in pieces for tile, first, count in mine for k in range(first, first + count)
    )
    assert set(every) == {(tile, k) for tile in range(tiles) for k in range(slices)}
    assert set(every.values()) == {1}
    assert all(count > 0 for mine in pieces for *_, count in mine)
    work = [sum(count for *_, count in mine) for mine in pieces]
    assert max(work) - min(work) <= 1
    sharers = collections.defaultdict(list)
    waves = tiles // clusters - (tiles % clusters > 0 and tiles >= clusters)
    for cluster, mine in enumerate(pieces):
        # Whole tiles first, which all clusters begin at the same time.
        assert mine[:waves] == [(cluster + wave * clusters, 0, slices) for wave in range(waves)]
        for number, (tile, first, count) in enumerate(mine):
            if count < slices:
                sharers[tile].append((first, cluster))
                # Left to another before the rest of the share; finished with others' help at last.
                assert number == waves if first + count < slices else number == len(mine) - 1
    for tile, parts in sharers.items():
        clusters_of = [cluster for _, cluster in sorted(parts)]
        assert clusters_of == list(range(clusters_of[0], clusters_of[0] + len(parts))), tile
        assert first_sharers[clusters_of[-1]] == clusters_of[0]
    if tiles % clusters == 0:
        assert not sharers
    return sharers


def test_all_slices_are_shared(code, rng):
    most = 0
    for _ in range(60):
        rows, cols, matrices = (int(x) for x in rng.integers(1, (6, 6, 3)))
        clusters, slices = int(rng.integers(1, 14)), int(rng.choice([1, 2, 3, 7, 30]))
        sharers = check(code, rows, cols, matrices, clusters, slices)
        most = max(most, *map(len, sharers.values()), 0)
    assert most > 2


@pytest.mark.parametrize(
    ("rows", "cols", "clusters", "slices", "parts"),
    [(3, 2, 4, 9, 2), (1, 2, 9, 17, 5), (2, 2, 4, 9, 0), (1, 1, 8, 3, 3), (1, 5, 4, 1, 0)],
)
def test_tiles_have_parts_of(code, rows, cols, clusters, slices, parts):
    sharers = check(code, rows, cols, 1, clusters, slices)
    assert max(map(len, sharers.values()), default=0) == parts
