"""A matrix times its own transpose on the host: one triangle is computed, and mirrored when it is written."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from click.testing import CliRunner

import gemmule as gm
from gemmule.cli import gemmule
from gemmule.host.tiles import HostTileExecutor
from gemmule.outofcore.journal.finished_tiles import FinishedTiles
from gemmule.outofcore.stores.arrays import ArraySink, ArraySource
from gemmule.outofcore.stores.matrix import TransposedSource
from gemmule.outofcore.tiles.plan import Operand, Product
from gemmule.outofcore.tiles.search import least_memory, plan_product
from support.outofcore.tile_products import multiply, plan_tiles

MEMORY = 200_000


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch, tmp_path):
    monkeypatch.setenv("GEMMULE_EXECUTOR", "cpu")
    monkeypatch.chdir(tmp_path)


def random_matrix(rng, shape, dtype):
    numbers = rng.integers(-9, 10, shape)
    return (numbers + 1j * rng.integers(-9, 10, shape) if np.dtype(dtype).kind == "c" else numbers).astype(dtype)


def planned(a, b, executor, memory=MEMORY, **more):
    shape = a.shape[0], b.shape[1]
    return plan_tiles(a, b, shape, a.dtype, executor, memory=memory, mirrored=True, **more)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16", "i4"])
@pytest.mark.parametrize("transposed", ["first", "second"])
def test_half_of_it_is_computed(rng, dtype, transposed):
    x = random_matrix(rng, (257, 131), dtype)
    x = x if transposed == "second" else np.ascontiguousarray(x.T)
    source = ArraySource(x)
    a, b = (source, ArraySource(x.T)) if transposed == "second" else (TransposedSource(source), source)
    executor = HostTileExecutor()
    plan = planned(a, b, executor)
    rows, cols, _ = plan.grid
    assert rows == cols > 2
    assert plan.tiles == rows * (rows + 1) // 2
    assert plan.memory_bytes <= MEMORY
    out = np.full((257, 257), -77, dtype)
    report = multiply(a, b, ArraySink(out), executor, memory=MEMORY, alpha=3, plan=plan)
    left = x if transposed == "second" else x.T
    np.testing.assert_array_equal(out, 3 * (left @ left.T))
    assert report.tiles_computed == plan.tiles
    assert report.bytes_written == plan.bytes_written() == out.nbytes
    assert report.bytes_read == plan.bytes_read()


def test_a_tile_whose_mirror_image_is_missing_is_computed_again(rng):
    x = random_matrix(rng, (250, 90), "f4")
    a, b, executor = ArraySource(x), ArraySource(x.T), HostTileExecutor()
    plan = planned(a, b, executor)
    # The first tiles were written in a run before, but one of them on one side only.
    parts = [(plan.rows(i), plan.cols(j)) for i, j in ((0, 0), (1, 0), (2, 0))]
    there = [*parts, (parts[1][1], parts[1][0])]
    finished = FinishedTiles(
        [(rows.start, cols.start, rows.stop - rows.start, cols.stop - cols.start) for rows, cols in there]
    )
    assert set(plan.order()) - set(plan.order(finished)) == {(0, 0), (1, 0)}
    out = np.full((250, 250), np.nan, "f4")
    for rows, cols in there:
        out[rows, cols] = x[rows] @ x[cols].T
    multiply(a, b, ArraySink(out), executor, memory=MEMORY, plan=plan, finished=finished)
    np.testing.assert_array_equal(out, x @ x.T)


def test_where_it_cannot_be():
    rng = np.random.default_rng(0)
    x = random_matrix(rng, (200, 100), "f4")
    a, b, executor = ArraySource(x), ArraySource(x.T), HostTileExecutor()
    assert planned(a, b, executor).symmetric
    assert not planned(a, ArraySource(x.T.copy()), executor).symmetric
    assert planned(a, b, executor, block_shape=(8, 8)).symmetric
    assert not planned(a, b, executor, block_shape=(40, 30)).symmetric
    assert not planned(a, b, executor, alpha=0).symmetric
    assert not planned(a, b, executor, beta=1, c=ArraySource(np.zeros((200, 200), "f4"))).symmetric
    assert not plan_tiles(a, b, (200, 200), a.dtype, executor, memory=MEMORY).symmetric


def test_too_little_for_a_mirror_image_is_enough_for_the_whole():
    product = Product(300, 300, 50, Operand(np.dtype("f4")), Operand(np.dtype("f4"), "F"), Operand(np.dtype("f4")))

    def tile_bytes(m, n, k):
        return 8 * m * n

    least = least_memory(product, tile_bytes)
    assert not plan_product(product, least, tile_bytes, symmetric=True).symmetric
    assert plan_product(product, 2 * least, tile_bytes, symmetric=True).symmetric


def test_files_that_are_stopped_go_on_to_the_same_bits(rng, monkeypatch):
    np.save("A.npy", rng.standard_normal((300, 200)))
    expected = gm.outofcore.matmul("A.npy", "A.npy", "whole.npy", transpose_b=True, memory="700KB")
    add = HostTileExecutor.tile_sum
    left = [expected.tiles_computed // 2]

    def stopping(self, *arguments, **options):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return add(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(HostTileExecutor, "tile_sum", stopping)
        with pytest.raises(KeyboardInterrupt):
            gm.outofcore.matmul("A.npy", "A.npy", "C.npy", transpose_b=True, memory="700KB")
    told = gm.outofcore.matmul("A.npy", "A.npy", "C.npy", transpose_b=True, memory="700KB")
    assert 0 < told.tiles_computed < expected.tiles_computed
    whole, result = np.load("whole.npy"), np.load("C.npy")
    np.testing.assert_array_equal(result, whole)
    np.testing.assert_array_equal(whole, whole.T)
    a = np.load("A.npy")
    np.testing.assert_allclose(whole, a @ a.T, rtol=1e-12, atol=1e-12)


def test_the_command_says_so(rng):
    np.save("A.npy", rng.standard_normal((300, 200)).astype("f4"))
    command = ["matmul", "A.npy", "A.npy", "--transpose-a", "-o", "C.npy", "--memory", "300KB", "--verify"]
    dry = CliRunner().invoke(gemmule, [*command[:-1], "--dry-run"])
    assert "the others mirrored" in dry.output, dry.output
    done = CliRunner().invoke(gemmule, [*command, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["verified"]["passed"]
    tiles = np.ceil(200 / told["tile_m"])
    assert told["tiles_total"] == told["tiles_computed"] == tiles * (tiles + 1) / 2
    assert told["bytes_written"] == os.path.getsize("C.npy") - 128
