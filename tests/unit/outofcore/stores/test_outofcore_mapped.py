"""Memory-mapped arrays: their files are read with positioned reads, where that gives the same."""

from __future__ import annotations

import os

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.planning.host_to_device import stream_arrays
from gemmule.outofcore.calls.device_engine import Limits
from gemmule.outofcore.calls.request import Request
from gemmule.outofcore.stores import mapped_source
from gemmule.outofcore.stores.mapped_source import MappedSource, open_mapped
from gemmule.outofcore.stores.opening import open_source
from support.system_calls import recorded

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="this system does not tell its mappings")


@pytest.fixture
def path(tmp_path, rng):
    np.save(tmp_path / "x.npy", rng.integers(-99, 99, (37, 53)).astype("f4"))
    return tmp_path / "x.npy"


def pieces(source, x):
    for rows, cols in (((0, 37), (0, 53)), ((3, 20), (5, 31)), ((7, 8), (0, 53)), ((0, 37), (40, 41))):
        rows, cols = slice(*rows), slice(*cols)
        expected = x[rows, cols]
        out = np.full(expected.shape, -1, source.dtype, order=source.order)
        assert source.read(rows, cols, out) == expected.nbytes
        np.testing.assert_array_equal(out, expected)


def opened(array):
    source = open_source(array, "a")
    assert isinstance(source, MappedSource)
    return source


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", ["f4", ">f8", "c16", ">i2"])
def test_pieces_come_from_the_file(tmp_path, rng, order, dtype, monkeypatch):
    x = np.asarray(rng.integers(-99, 99, (37, 53)).astype(dtype), order=order)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    source = opened(mapped)
    assert (source.order, source.dtype) == (order, np.dtype(dtype).newbyteorder("="))
    reads = recorded(monkeypatch, "preadv")
    pieces(source, x)
    assert reads
    source.close()
    source.close()


def test_parts_of_maps(path):
    mapped = np.load(path, mmap_mode="r")
    for part in (mapped[5:], mapped[2:30, 7:44], mapped[:, 3:].T, mapped[::2], mapped[:, :1]):
        source = opened(part)
        rows, cols = part.shape
        out = np.full(part.shape, -1, "f4", order=source.order)
        source.read(slice(0, rows), slice(0, cols), out)
        np.testing.assert_array_equal(out, part)
        source.close()


def test_what_was_written_to_the_map_is_read(path):
    mapped = np.load(path, mmap_mode="r+")
    source = opened(mapped)
    mapped[11, 13] = 1234
    pieces(source, np.array(mapped))
    source.close()


def test_where_the_file_is_not_the_array(path, monkeypatch):
    mapped = np.load(path, mmap_mode="r")
    private = np.load(path, mmap_mode="c")
    private[0, 0] = 5555
    for other in (mapped[::-1], mapped[:, ::2], np.array(mapped), mapped[:0], private, private[2:]):
        assert open_mapped(other, "a") is None
    with monkeypatch.context() as patch:
        patch.setattr(mapped_source, "_MAPS", "/nowhere")
        assert open_mapped(mapped, "a") is None
    # Another file of that name: what is mapped is the one before.
    other = np.array(mapped)
    np.save(path.with_name("y.npy"), other + 1)
    os.replace(path.with_name("y.npy"), path)
    assert open_mapped(mapped, "a") is None
    source = open_source(mapped, "a")
    pieces(source, other)
    os.unlink(path)
    assert open_mapped(mapped, "a") is None


@pytest.mark.parametrize("more", [{}, {"device_memory": "20KB"}, {"compute_dtype": "float64"}])
def test_products_of_maps(path, monkeypatch, more):
    x = np.load(path)
    mapped = np.load(path, mmap_mode="r")
    reads = recorded(monkeypatch, "preadv")
    out = np.full((37, 37), np.nan, "f8" if "compute_dtype" in more else "f4")
    gm.outofcore.matmul(mapped, mapped.T, out, executor="cpu", **more)
    np.testing.assert_array_equal(out, x @ x.T)
    assert reads


def test_arrays_that_do_not_fit_are_read_from_their_files(path, monkeypatch):
    x, mapped = np.load(path), np.load(path, mmap_mode="r")
    reads = recorded(monkeypatch, "preadv")
    open_files = len(os.listdir("/proc/self/fd"))
    out = np.full((37, 37), np.nan, "f4")
    stream_arrays(Request(mapped, mapped.T, out), Limits(20_000), device="cpu")
    np.testing.assert_array_equal(out, x @ x.T)
    assert reads
    # What tests before left behind may be closed meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= open_files
