"""Products on Dask workers that have a GPU each: files to a file, and a worker that is killed."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.dtype import dtype_named
from gemmule.runtime.device import device_count
from gemmule.runtime.tiles import GpuTileSum
from support.oracle import assert_product, random_matrix
from support.outofcore.dask_workers import noted, preload

SHAPE = 1501, 1203, 1037


def visible():
    """Return the names by which the GPUs that are visible here can be made visible to a worker."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(device_count())]


@pytest.fixture
def cluster(tmp_path):
    """Return a function that starts a worker for each GPU, which sees no other, and is started again if it dies."""
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    started = []

    def start(pause):
        loaded = preload(tmp_path, GpuTileSum, pause)
        workers = {
            number: {
                "cls": distributed.Nanny,
                "options": {
                    "nthreads": 1, "memory_limit": 0, "resources": {"GPU": 1},
                    "env": {"CUDA_VISIBLE_DEVICES": gpu}, "preload": [loaded],
                },
            }
            for number, gpu in enumerate(visible())
        }  # fmt: skip
        scheduler = {"cls": distributed.Scheduler, "options": {"dashboard": False, "host": "127.0.0.1", "port": 0}}
        cluster = distributed.SpecCluster(workers=workers, scheduler=scheduler, silence_logs=50)
        started.append(cluster)
        return cluster

    yield start
    for each in started:
        each.close()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    m, n, k = SHAPE
    rng = np.random.default_rng()
    for name, shape in (("A.npy", (m, k)), ("B.npy", (k, n))):
        np.save(name, random_matrix(rng, dtype_named("float32"), shape))
    return tmp_path


def check():
    """Hold the result against a higher precision; nothing else may be left."""
    assert_product(np.load("C.npy"), np.load("A.npy"), np.load("B.npy"))
    assert sorted(name for name in os.listdir() if name.startswith(".gemmule") or name.endswith("C.npy")) == ["C.npy"]


pytestmark = pytest.mark.filterwarnings("default")


def test_workers_with_a_gpu_each_compute_their_own_tiles(folder, cluster):
    report = gm.outofcore.matmul("A.npy", "B.npy", "C.npy", memory="8MiB", scheduler=cluster(0.01).scheduler_address)
    check()
    tiles, processes = noted(folder)
    assert report.executor == "gpu"
    assert len(tiles) == report.tiles == report.tiles_computed > 8
    assert set(tiles.values()) == {1}
    assert len(processes) == len(visible())
    assert report.bytes_written == SHAPE[0] * SHAPE[1] * 4


def test_a_killed_worker_with_a_gpu_loses_no_finished_tile_and_repeats_none(folder, cluster):
    workers = cluster(0.05)
    pids = [worker.pid for worker in workers.workers.values()]

    def kill():
        deadline = time.monotonic() + 60
        while str(pids[0]) not in noted(folder)[1] and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    report = gm.outofcore.matmul("A.npy", "B.npy", "C.npy", memory="8MiB", scheduler=workers.scheduler_address)
    killer.join()
    check()
    tiles, processes = noted(folder)
    assert len(tiles) >= report.tiles - 1  # One may be noted in the journal and not here.
    assert set(tiles.values()) == {1}
    assert str(pids[0]) in processes
    assert processes != {str(pids[0])}
