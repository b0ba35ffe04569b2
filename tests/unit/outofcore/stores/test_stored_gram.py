"""A matrix times its own transpose into stores and on workers: a tile and its mirror image are whole blocks."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import gemmule as gm
from gemmule.cli import gemmule
from gemmule.host.tiles import HostTileExecutor
from gemmule.outofcore.device.planner.choice import choose_plan, least_memory
from gemmule.outofcore.device.planner.operation import Store
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.device.planner.schedule import operations
from gemmule.outofcore.stores.arrays import ArraySource
from gemmule.outofcore.stores.opening import result_target
from gemmule.outofcore.tiles.bands import Band, cut_into_bands
from gemmule.outofcore.tiles.memory_budget import GivenBytes
from gemmule.outofcore.tiles.plan import Operand, Product
from gemmule.outofcore.tiles.search import plan_product
from support.outofcore.dask_workers import cluster, noted  # noqa: F401 - a fixture
from support.outofcore.killed_products import hidden, interrupting, killed_at
from support.outofcore.tile_products import plan_tiles

F4 = np.dtype("f4")
N, K = 250, 90
BLOCKS = ["--chunks", "16,32", "--shards", "32,64"]
#: What both executors are given: the same matrices, and little memory.
ON = {
    "host": {"memory": "600KB"},
    "device": {"device_memory": "200KB", "pinned_memory": "128KB", "strategy": "c-stationary"},
    "resident": {"device_memory": "500KB", "pinned_memory": "128KB", "strategy": "resident-c"},
}
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def x(rng, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMULE_EXECUTOR", "cpu")
    found = rng.integers(-4, 5, (N, K)).astype("f4")
    np.save("A.npy", found)
    return found


def arguments(out, on, *more):
    options = itertools.chain.from_iterable(("--" + name.replace("_", "-"), value) for name, value in ON[on].items())
    blocks = BLOCKS if ".zarr" in out else []
    return ["matmul", "A.npy", "A.npy", "--transpose-b", "-o", out, *options, *blocks, "--json", *more]


def told(out, on, *more):
    done = CliRunner().invoke(gemmule, arguments(out, on, *more))
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def stored(name):
    zarr = pytest.importorskip("zarr")
    found = zarr.open_array(name, mode="r")
    assert (found.chunks, found.shards) == ((16, 32), (32, 64))
    return found[...]


@pytest.mark.parametrize("on", list(ON))
def test_half_of_it_is_computed(x, on):
    pytest.importorskip("zarr")
    report = told("C.zarr", on, "--verify")
    np.testing.assert_array_equal(stored("C.zarr"), x @ x.T)
    # Multiples of 32 and of 64, or all of it.
    assert report["tile_m"] == report["tile_n"]
    assert report["tile_m"] == N if on == "resident" else report["tile_m"] % 64 == 0
    tiles = -(-N // report["tile_m"])
    assert report["tiles_total"] == report["tiles_computed"] == tiles * (tiles + 1) // 2
    assert tiles > 2 or on == "resident"
    assert report["verified"]["passed"]
    assert report["bytes_written"] == N * N * 4


@pytest.mark.parametrize("on", ["host", "device"])
def test_stopped_it_goes_on(x, on):
    pytest.importorskip("zarr")
    options = {"transpose_b": True, "chunks": (16, 32), "shards": (32, 64), **ON[on]}
    if on == "device":
        options["executor"] = "cpu"

    with interrupting(0.6, rectangles=16) as progress:
        gm.outofcore.matmul("A.npy", "A.npy", "C.zarr", **options, progress=progress)
    report = gm.outofcore.matmul("A.npy", "A.npy", "C.zarr", **options)
    assert 0 < report.tiles_computed < report.tiles
    np.testing.assert_array_equal(stored("C.zarr"), x @ x.T)
    assert hidden() == []


@pytest.mark.slow
@pytest.mark.parametrize("on", ["host", "device"])
@pytest.mark.parametrize("out", ["C.zarr", "C.npy"])
def test_killed_at_any_point_it_goes_on_to_the_same_bits(x, on, out):
    if out == "C.zarr":
        pytest.importorskip("zarr")
    rng = np.random.default_rng()
    np.save("A.npy", rng.standard_normal((N, K), "f4"))
    whole = told("whole" + out[1:], on)
    expected = stored("whole.zarr") if out == "C.zarr" else np.load("whole.npy")
    reused = set()
    # After some tiles are noted, of which one may be there on one side of the diagonal alone; and anywhere.
    for point in (-3, -4, random.randrange(3, 60)):
        code, printed = killed_at(point, arguments(out, on))
        if code == 0:
            continue
        assert code == -signal.SIGKILL, printed
        report = told(out, on)
        assert report["tiles_reused"] + report["tiles_computed"] == report["tiles_total"] == whole["tiles_total"]
        reused.add(report["tiles_reused"])
        found = stored(out) if out == "C.zarr" else np.load(out)
        assert found.tobytes() == expected.tobytes()
        # Tiles on the diagonal are computed whole, and BLAS need not add up both halves alike.
        np.testing.assert_allclose(found, found.T, rtol=0, atol=1e-4)
        assert hidden() == []
        subprocess.run(["rm", "-r", out], check=True)
    assert max(reused) > 0


def test_blocks_that_no_square_tile_holds_are_computed_whole(rng):
    operand = Operand(F4, block_shape=(96, 100))
    product = Product(3000, 3000, 500, Operand(F4), Operand(F4, "F"), operand)
    assert operand.square_block == 2400
    host = plan_product(product, 4_000_000, lambda m, n, k: 0, symmetric=True)
    assert not host.symmetric
    assert plan_product(product, 200_000_000, lambda m, n, k: 0, symmetric=True).tile_m in (2400, 3000)
    rates = Rates(1e12, 1e12, 1e10, 1e10)
    assert not choose_plan(product, F4, 4_000_000, rates, symmetric=True).plan.symmetric
    large = choose_plan(product, F4, 100_000_000, rates, symmetric=True).plan
    assert large.symmetric
    assert large.tile_m in (2400, 3000)
    with pytest.raises(gm.MemoryLimitError, match=str(least_memory(product, F4))):
        choose_plan(product, F4, GivenBytes(1000), rates, symmetric=True)


@pytest.mark.parametrize("strategy", ["c-stationary", "resident-c"])
@pytest.mark.parametrize("block_shape", [(500, 250), (4096, 4096)])
def test_everything_that_is_written_is_whole_blocks(strategy, block_shape):
    product = Product(8200, 8200, 900, Operand(F4), Operand(F4, "F"), Operand(F4, block_shape=block_shape))
    plan = choose_plan(product, F4, 1 << 29, Rates(1e12, 1e12, 1e10, 1e10), symmetric=True, strategy=strategy).plan
    assert plan.symmetric
    assert plan.cut % block_shape[0] == 0
    written = np.zeros((8200, 8200), bool)
    for op in operations(plan):
        if isinstance(op, Store):
            for (start, end), whole in zip((op.rows, op.cols), block_shape, strict=True):
                assert start % whole == 0
                assert end % whole == 0 or end == 8200
            part = slice(*op.rows), slice(*op.cols)
            assert not written[part].any()
            written[part] = True
    assert written.all()


def test_a_band_knows_the_mirror_images_of_its_tiles(x):
    a, b = ArraySource(x), ArraySource(x.T)
    plan = plan_tiles(a, b, (N, N), F4, HostTileExecutor(), memory=200_000, mirrored=True)
    assert plan.symmetric
    tiles = list(plan.order())[2:5]
    assert len({*tiles, *((j, i) for i, j in tiles)}) > 4
    target = result_target("C.npy", (N, N), F4, None, None)
    with target.open((N, N), F4, force=False, inputs=(), again=False):
        band = Band(target, plan, F4, tiles)
        assert list(plan.order(band.finished)) == tiles
        with band.sink as sink:
            # Of the first tile the mirror image is missing.
            for number, (i, j) in enumerate(tiles[:2]):
                rows, cols = plan.rows(i), plan.cols(j)
                sink.write(rows.start, cols.start, np.ascontiguousarray(x[rows] @ x[cols].T))
                if number and i != j:
                    sink.write(cols.start, rows.start, np.ascontiguousarray(x[cols] @ x[rows].T))
            sink.leave()
        again = Band(target, plan, F4, tiles)
        with again.sink:
            assert tiles[0][0] != tiles[0][1]
            assert list(plan.order(again.finished)) == [tiles[0], tiles[2]]
    assert [tile for band in cut_into_bands(plan, None, 2) for tile in band] == list(plan.order())


@pytest.mark.slow
@pytest.mark.parametrize("out", ["C.npy", "C.zarr"])
def test_workers_compute_half_of_it(x, cluster, tmp_path, out):  # noqa: F811
    if out == "C.zarr":
        pytest.importorskip("zarr")
    workers = cluster(0)
    report = told(out, "host", "--scheduler", workers.scheduler_address)
    np.testing.assert_array_equal(stored(out) if out == "C.zarr" else np.load(out), x @ x.T)
    tiles, processes = noted(tmp_path)
    count = -(-N // report["tile_m"])
    assert report["tiles_total"] == report["tiles_computed"] == count * (count + 1) // 2 > 3
    # Each is noted with its mirror image.
    assert len(tiles) == count * count
    assert set(tiles.values()) == {1}
    assert len(processes) == 2
    assert hidden() == []


@pytest.mark.slow
def test_a_killed_worker_loses_no_tile_that_is_there_on_both_sides(rng, x, cluster, tmp_path):  # noqa: F811
    np.save("A.npy", rng.standard_normal((N, K), "f4"))
    gm.outofcore.matmul("A.npy", "A.npy", "expected.npy", transpose_b=True, memory="200KB")
    workers = cluster(0.05)
    pids = [worker.pid for worker in workers.workers.values()]

    def kill():
        deadline = time.monotonic() + 60
        tiles, processes = noted(tmp_path)
        # On a busy machine the other worker may have noted all of them.
        while (sum(tiles.values()) < 5 or str(pids[0]) not in processes) and time.monotonic() < deadline:
            time.sleep(0.01)
            tiles, processes = noted(tmp_path)
        os.kill(pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    options = {"transpose_b": True, "memory": "200KB", "scheduler": workers.scheduler_address}
    report = gm.outofcore.matmul("A.npy", "A.npy", "C.npy", **options)
    killer.join()
    assert Path("C.npy").read_bytes() == Path("expected.npy").read_bytes()
    tiles, processes = noted(tmp_path)
    assert str(pids[0]) in processes
    # What was noted last, several at once, may be in the journal and not here.
    assert len(tiles) >= (-(-N // report.tile_m)) ** 2 - 4
    # The worker may have been killed between a tile and its mirror image.
    assert sum(tiles.values()) <= len(tiles) + 1
    assert hidden() == []
