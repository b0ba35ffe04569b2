"""Products on Dask workers: bands of tiles, workers that are killed, and what is left for the next run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import gemmule as gm
from gemmule.host import blas
from gemmule.host.tiles import HostTileExecutor
from gemmule.outofcore.calls.distributed import _count_workers, check_address
from gemmule.outofcore.stores.arrays import ArraySource
from gemmule.outofcore.tiles.bands import cut_into_bands
from support.outofcore.dask_workers import cluster, noted, started
from support.outofcore.killed_products import await_tile, interrupting
from support.outofcore.tile_products import plan_tiles

__all__ = ["cluster"]


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_bands_hold_every_tile_once(workers):
    a, b = np.ones((200, 60), "f4"), np.ones((60, 300), "f4")
    plan = plan_tiles(ArraySource(a), ArraySource(b), (200, 300), np.dtype("f4"), HostTileExecutor(), memory=140_000)
    bands = cut_into_bands(plan, None, workers)
    assert [tile for band in bands for tile in band] == list(plan.order())
    assert len(bands) > 2 * workers
    line = 0 if plan.by_rows else 1
    assert all(len({tile[line] for tile in band}) == 1 for band in bands)
    some = {(plan.rows(i).start, plan.cols(j).start) for i, j in list(plan.order())[::2]}
    left = cut_into_bands(plan, lambda rows, cols: (rows.start, cols.start) in some, workers)
    assert [tile for band in left for tile in band] == list(plan.order())[1::2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMULE_EXECUTOR", "cpu")
    rng = np.random.default_rng(0)
    np.save("A.npy", rng.standard_normal((160, 80), "f4"))
    np.save("B.npy", rng.standard_normal((80, 200), "f4"))
    gm.outofcore.matmul("A.npy", "B.npy", "expected.npy", memory="200KB")
    return tmp_path


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    """Return workers that several tests use, and the folder where they note their tiles.

    One that is killed is started again.
    """
    folder = tmp_path_factory.mktemp("workers")
    with started(folder, 0.05) as cluster:
        yield cluster, folder


@pytest.fixture
def workers(two_workers):
    cluster, folder = two_workers
    (folder / "log").unlink(missing_ok=True)
    return cluster, folder


def results():
    return sorted(name for name in os.listdir() if name.startswith(".gemmule") or name.endswith("C.npy"))


pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.slow
def test_a_client_that_stops_leaves_finished_tiles_to_the_next(folder, cluster):
    workers = cluster(0.02)

    def stop(done, total):
        if done >= total // 3:
            await_tile("C.npy")
            raise KeyboardInterrupt

    options = {"memory": "200KB", "scheduler": workers.scheduler_address}
    with pytest.raises(KeyboardInterrupt):
        gm.outofcore.matmul("A.npy", "B.npy", "C.npy", **options, progress=stop)
    workers.close()
    before = sum(noted(folder)[0].values())
    assert before > 0
    report = gm.outofcore.matmul("A.npy", "B.npy", "C.npy", memory="200KB")
    assert report.tiles - report.tiles_computed >= before - 1
    assert Path("C.npy").read_bytes() == Path("expected.npy").read_bytes()
    assert results() == ["C.npy"]


@pytest.mark.slow
def test_zarr_on_workers(folder, cluster):
    zarr = pytest.importorskip("zarr")
    zarr.create_array("a.zarr", name="x", data=np.load("A.npy"), chunks=(32, 32))
    gm.outofcore.matmul(
        "a.zarr::x", "B.npy", "a.zarr::c", memory="600KB", chunks=(16, 16), shards=(32, 32),
        scheduler=cluster(0).scheduler_address,
    )  # fmt: skip
    out = zarr.open_array("a.zarr", path="c", mode="r")[...]
    np.testing.assert_allclose(out, np.load("expected.npy"), rtol=1e-4, atol=1e-4)
    assert results() == []


@pytest.mark.parametrize("address", ["nonsense", "foo://x:1", "tcp://node", "tcp://node:port", ""])
def test_what_is_no_address_is_refused(address):
    pytest.importorskip("distributed")
    with pytest.raises(gm.ArgumentError, match=r"is not an address of a Dask scheduler .*; give one such as tcp"):
        check_address(address)
    check_address("tcp://node:8786")
    check_address("127.0.0.1:8786")


def test_a_command_with_no_address_ends(folder):
    pytest.importorskip("distributed")
    command = [sys.executable, "-m", "gemmule", "matmul", "A.npy", "B.npy", "-o", "C.npy", "--scheduler", "foo://x:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "gemmule: scheduler foo://x:1: is not an address of a Dask scheduler (unknown address"
    )
    assert done.stderr.count("\n") == 1
    assert results() == []


def test_a_scheduler_without_workers_that_can_is_refused(folder, monkeypatch):
    dask = pytest.importorskip("distributed")
    monkeypatch.setattr("gemmule.outofcore.calls.distributed.WORKERS_WITHIN_S", 0.3)
    options = {"processes": False, "dashboard_address": None, "silence_logs": 50, "protocol": "tcp"}
    with dask.LocalCluster(n_workers=0, **options) as none:
        with pytest.raises(gm.UnsupportedError, match=r"has no workers after 0.3 s; start some"):
            gm.outofcore.matmul("A.npy", "B.npy", "C.npy", memory="200KB", scheduler=none.scheduler_address)
    assert results() == []
    with dask.LocalCluster(n_workers=1, threads_per_worker=1, **options) as plain:
        with dask.Client(plain.scheduler_address, set_as_default=False) as client:
            assert _count_workers(client, plain.scheduler_address, None) == 1
            with pytest.raises(gm.UnsupportedError, match=r"none of its 1 workers has the resource GPU=1"):
                _count_workers(client, plain.scheduler_address, {"GPU": 1})
    with dask.LocalCluster(n_workers=1, threads_per_worker=1, resources={"GPU": 1}, **options) as able:
        with dask.Client(able.scheduler_address, set_as_default=False) as client:
            assert _count_workers(client, able.scheduler_address, {"GPU": 1}) == 1


def test_arrays_do_not_go_to_workers(folder):
    pytest.importorskip("distributed")
    scheduler = "tcp://127.0.0.1:1"
    with pytest.raises(gm.ArgumentError, match="b is of type ndarray; workers read and write files"):
        gm.outofcore.matmul("A.npy", np.load("B.npy"), "C.npy", scheduler=scheduler)
    with pytest.raises(gm.ArgumentError, match="out is an array, which workers do not see"):
        gm.outofcore.matmul("A.npy", "B.npy", np.empty((160, 200), "f4"), scheduler=scheduler)
    assert results() == []


def test_workers_read_and_write_their_own_tiles(folder, workers):
    cluster, notes = workers
    report = gm.outofcore.matmul("A.npy", "B.npy", "C.npy", memory="200KB", scheduler=cluster.scheduler_address)
    assert Path("C.npy").read_bytes() == Path("expected.npy").read_bytes()
    tiles, processes = noted(notes)
    assert len(tiles) == report.tiles == report.tiles_computed > 8
    assert set(tiles.values()) == {1}
    assert len(processes) == 2
    assert report.bytes_written == 160 * 200 * 4
    assert results() == ["C.npy"]


def test_a_killed_worker_loses_no_finished_tile_and_repeats_none(folder, workers):
    cluster, notes = workers
    pids = [worker.pid for worker in cluster.workers.values()]

    def kill():
        deadline = time.monotonic() + 60
        while sum(noted(notes)[0].values()) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    report = gm.outofcore.matmul("A.npy", "B.npy", "C.npy", memory="200KB", scheduler=cluster.scheduler_address)
    killer.join()
    assert Path("C.npy").read_bytes() == Path("expected.npy").read_bytes()
    tiles, processes = noted(notes)
    assert len(tiles) >= report.tiles - 1  # One may be noted in the journal and not here.
    assert set(tiles.values()) == {1}
    assert str(pids[0]) in processes
    assert results() == ["C.npy"]


def test_a_scheduler_that_does_not_answer(folder):
    pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    refused = (
        r"scheduler tcp://127.0.0.1:1: does not answer \(.*\); start one there with dask scheduler, or give another"
    )
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "0.2s"}),
        pytest.raises(gm.UnsupportedError, match=refused),
    ):
        gm.outofcore.matmul("A.npy", "B.npy", "C.npy", scheduler="tcp://127.0.0.1:1")
    assert results() == []


@pytest.mark.slow
def test_workers_compute_with_the_blas_threads_that_the_product_began_with(folder, cluster):
    if blas._function("set_num_threads") is None:
        pytest.skip("NumPy has no OpenBLAS")
    np.save("L.npy", np.random.default_rng(1).standard_normal((900, 900), "f4"))
    # Slices are large enough for whole calls of BLAS.
    options = {"memory": "14MB"}
    with blas.threads_set(3):
        gm.outofcore.matmul("L.npy", "L.npy", "whole.npy", **options)
        with interrupting(0.6) as progress:
            gm.outofcore.matmul("L.npy", "L.npy", "C.npy", **options, progress=progress)
    scheduler = cluster(0).scheduler_address
    report = gm.outofcore.matmul("L.npy", "L.npy", "C.npy", **options, scheduler=scheduler)
    assert 0 < report.tiles_computed < report.tiles
    assert Path("C.npy").read_bytes() == Path("whole.npy").read_bytes()
    # Work that begins on workers begins with theirs: Dask gives each one thread.
    with blas.threads_set(3):
        gm.outofcore.matmul("L.npy", "L.npy", "D.npy", **options, scheduler=scheduler)
    with blas.threads_set(1):
        gm.outofcore.matmul("L.npy", "L.npy", "one.npy", **options)
    assert Path("D.npy").read_bytes() == Path("one.npy").read_bytes()
