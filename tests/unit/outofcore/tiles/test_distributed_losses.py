"""Connections to a Dask scheduler that are lost, and journals of bands that nobody collects."""

from __future__ import annotations

import asyncio
import logging
import os
import types
from pathlib import Path

import numpy as np
import pytest

import gemmule as gm
from gemmule.host.tiles import HostTileExecutor
from gemmule.outofcore.calls.distributed import _completed, _connection, _no_tracebacks
from gemmule.outofcore.journal.journal_file import Journal
from gemmule.outofcore.journal.temporary_files import hidden_path
from gemmule.outofcore.stores.arrays import ArraySource
from gemmule.outofcore.stores.formats.npy_target import NpyTarget
from gemmule.outofcore.tiles.bands import Band, band_journal
from support.outofcore.tile_products import plan_tiles

SCHEDULER = "tcp://node:8786"
LOST = r"^scheduler tcp://node:8786: the connection was lost, or the work was cancelled there; start it again$"


def lost_errors():
    distributed = pytest.importorskip("distributed")
    return [
        distributed.comm.CommClosedError("in <TCP (closed) ConnectionPool.gather>: Stream is closed"),
        OSError("Timed out trying to connect to tcp://node:8786 after 30 s"),
        distributed.client.ClosedClientError("Client is closed. Can't send cancel-keys message."),
        distributed.client.FutureCancelledError("compute_band-1", "scheduler-connection-lost"),
    ]


def completed(monkeypatch, status, error):
    """Return what comes of one future that ends with an error."""
    distributed = pytest.importorskip("distributed")

    def result():
        raise error

    future = types.SimpleNamespace(status=status, result=result, exception=lambda: error)
    monkeypatch.setattr(distributed, "as_completed", lambda futures, loop: iter(futures))
    return list(_completed(distributed, types.SimpleNamespace(loop=None), [future], SCHEDULER))


@pytest.mark.parametrize("number", range(4))
def test_a_connection_that_is_lost_is_told_in_one_line(number, monkeypatch):
    distributed = pytest.importorskip("distributed")
    error = lost_errors()[number]
    with pytest.raises(gm.UnsupportedError, match=LOST):
        completed(monkeypatch, "finished", error)
    with pytest.raises(gm.UnsupportedError, match=LOST), _connection(distributed, SCHEDULER):
        raise error


def test_errors_of_workers_are_raised_as_they_are(monkeypatch):
    distributed = pytest.importorskip("distributed")
    for error in (OSError(5, "Input/output error"), gm.ArgumentError("no"), ZeroDivisionError()):
        with pytest.raises(type(error)) as raised:
            completed(monkeypatch, "error", error)
        assert raised.value is error
    killed = distributed.KilledWorker("task", types.SimpleNamespace(address="tcp://worker:1"), 3)
    with pytest.raises(gm.UnsupportedError, match="a worker was lost again and again"):
        completed(monkeypatch, "error", killed)
    with pytest.raises(gm.ArgumentError, match="no"), _connection(distributed, SCHEDULER):
        raise gm.ArgumentError("no")


def test_distributed_logs_no_traceback_of_a_lost_connection():
    logger = logging.getLogger("distributed.client")
    seen = []
    handler = logging.Handler()
    handler.emit = seen.append
    logger.addHandler(handler)
    try:
        with _no_tracebacks():
            for error in (OSError("gone"), asyncio.CancelledError(), ZeroDivisionError()):
                try:
                    raise error
                except (OSError, asyncio.CancelledError, ZeroDivisionError):
                    logger.exception("failed")
            logger.error("no exception")
        logger.error("after")
    finally:
        logger.removeHandler(handler)
    assert [record.getMessage() for record in seen] == ["failed", "no exception", "after"]
    assert isinstance(seen[0].exc_info[1], ZeroDivisionError)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMULE_EXECUTOR", "cpu")
    np.save("A.npy", np.ones((160, 80), "f4"))
    np.save("B.npy", np.ones((80, 200), "f4"))
    return tmp_path


def journals():
    return [name for name in os.listdir() if ".journal" in name]


def stray_journal():
    """Leave the journal of a band, as a worker does whose client was killed."""
    path = band_journal(hidden_path(os.path.realpath("C.npy"), ".journal"), [(0, 0)])
    band = Journal(path, "C.npy")
    band.start({"band": [[0, 0]]})
    band.append([((0, 0, 16, 16), 1)])
    return band


def test_a_finished_result_has_no_journals_of_bands(folder, monkeypatch):
    # A worker of a client before notes a tile while the result is computed.
    remove = Journal.remove

    def late(self):
        if self.path.endswith(".journal"):
            stray_journal().close()
        remove(self)

    monkeypatch.setattr(Journal, "remove", late)
    gm.outofcore.matmul("A.npy", "B.npy", "C.npy", memory="200KB")
    assert journals() == []


def test_journals_of_bands_go_with_the_next_command(folder):
    gm.outofcore.matmul("A.npy", "B.npy", "C.npy", memory="200KB")
    busy = stray_journal()
    with pytest.raises(gm.ArgumentError, match="exists already"):
        gm.outofcore.matmul("A.npy", "B.npy", "C.npy", memory="200KB")
    assert journals() == [os.path.basename(busy.path)]
    busy.close()
    with pytest.raises(gm.ArgumentError, match="exists already"):
        gm.outofcore.matmul("A.npy", "B.npy", "C.npy", memory="200KB")
    assert journals() == []


def planned():
    a, b = (ArraySource(np.load(name)) for name in ("A.npy", "B.npy"))
    return plan_tiles(a, b, (160, 200), np.dtype("f4"), HostTileExecutor(), memory=200_000)


def test_a_band_of_a_result_that_is_gone_leaves_nothing(folder):
    with pytest.raises(OSError, match=r"C\.npy"):
        Band(NpyTarget("C.npy"), planned(), np.dtype("f4"), [(0, 0)])
    assert journals() == []


def test_a_band_that_ends_after_its_product_leaves_nothing(folder):
    plan, target = planned(), NpyTarget("C.npy")
    product = Journal(target.journal, "C.npy")
    sink = target.open((160, 200), np.dtype("f4"), force=False, inputs=[], again=False)
    for finished in (False, True):
        band = Band(target, plan, np.dtype("f4"), [(0, 0)])
        if finished:
            sink.commit()
            product.remove()
        band.leave()
        assert len(journals()) == (0 if finished else 2)
    assert Path("C.npy").exists()
