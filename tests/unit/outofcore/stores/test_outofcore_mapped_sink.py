"""Memory-mapped arrays as results: their files are written in long runs, where that gives the same."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

import gemmule as gm
from gemmule.api.planning.host_to_device import stream_arrays
from gemmule.outofcore.calls.device_engine import Limits
from gemmule.outofcore.calls.request import Request
from gemmule.outofcore.stores import mapped_sink, mapped_source
from gemmule.outofcore.stores.arrays import ArraySink
from gemmule.outofcore.stores.mapped_sink import MappedSink, array_sink
from support.system_calls import failing, recorded, shortened

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="this system does not tell its mappings")
SHAPE = 37, 53


@pytest.fixture
def path(tmp_path):
    np.save(tmp_path / "x.npy", np.full(SHAPE, -1, "f4"))
    return tmp_path / "x.npy"


@pytest.fixture
def runs(monkeypatch):
    """Return the arguments of what is written to files."""
    # A system may write less than it is asked for.
    shortened(monkeypatch, "pwrite", 100)
    return recorded(monkeypatch, "pwrite")


@pytest.fixture
def short_lines(runs, monkeypatch):
    """Let lines of any length be written to the file."""
    monkeypatch.setattr(mapped_sink, "LONG", 1)


def write_pieces(sink, x):
    for row in range(0, x.shape[0], 10):
        for col in (0, 31):
            tile = np.ascontiguousarray(x[row : row + 10, col : 31 if col == 0 else None])
            assert sink.write(row, col, tile) == tile.nbytes


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", ["f4", ">f8", "c16", ">i2"])
def test_pieces_go_to_the_file_and_are_seen_in_the_map(tmp_path, rng, order, dtype, runs):
    np.save(tmp_path / "x.npy", np.asarray(np.zeros(SHAPE, dtype), order=order))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r+")
    sink = array_sink(mapped, "out", long=1, block_bytes=200)
    assert isinstance(sink, MappedSink)
    x = rng.integers(-99, 99, SHAPE).astype(sink.dtype)
    write_pieces(sink, x)
    assert runs
    np.testing.assert_array_equal(mapped, x)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), x)
    read = np.empty(SHAPE, sink.dtype, order=order)
    sink.written().read(slice(0, 37), slice(0, 53), read)
    np.testing.assert_array_equal(read, x)


def test_whole_rows_are_one_run_and_short_lines_go_to_the_map(path, monkeypatch):
    calls = recorded(monkeypatch, "pwrite")

    def written():
        return [(at, len(data)) for _, data, at in calls]

    mapped = np.load(path, mmap_mode="r+")
    array_sink(mapped, "out").write(5, 0, np.zeros((20, 53), "f4"))
    assert written() == [(mapped.offset + 5 * 53 * 4, 20 * 53 * 4)]
    sink = array_sink(mapped, "out")
    sink.write(5, 1, np.full((20, 40), 3, "f4"))
    assert len(written()) == 1
    assert (np.load(path)[5:25, 1:41] == 3).all()
    # Of the transpose columns are lines.
    array_sink(mapped.T, "out").write(0, 2, np.full((53, 4), 4, "f4"))
    assert written()[1:] == [(mapped.offset + 2 * 53 * 4, 4 * 53 * 4)]
    assert (np.load(path)[2:6] == 4).all()
    array_sink(mapped, "out", long=100).write(30, 1, np.full((2, 30), 5, "f4"))
    assert [length for _, length in written()[2:]] == [120, 120]


@pytest.mark.parametrize("part", [np.s_[5:], np.s_[2:30, 7:44], np.s_[::2], np.s_[:, :1]])
@pytest.mark.parametrize("turned", [False, True])
def test_parts_of_maps_and_what_lies_beside_them(path, rng, part, turned, runs):
    mapped = np.load(path, mmap_mode="r+")
    view = mapped[part].T if turned else mapped[part]
    sink = array_sink(view, "out", long=1)
    assert isinstance(sink, MappedSink)
    x = rng.standard_normal(view.shape).astype("f4")
    sink.write(0, 0, x)
    expected = np.full(SHAPE, -1, "f4")
    expected[part] = x.T if turned else x
    np.testing.assert_array_equal(np.load(path), expected)
    np.testing.assert_array_equal(mapped, expected)


def test_a_view_without_the_type_of_a_map_is_one_too(path):
    mapped = np.asarray(np.load(path, mmap_mode="r+"))
    assert type(mapped) is np.ndarray
    assert isinstance(array_sink(mapped[3:], "out"), MappedSink)


def test_private_copies_do_not_reach_the_file(path, runs):
    mapped = np.load(path, mmap_mode="c")
    for view in (mapped, mapped[3:], np.asarray(mapped)):
        sink = array_sink(view, "out")
        assert type(sink) is ArraySink
        sink.write(0, 0, np.full((5, 53), 7, "f4"))
    assert not runs
    assert (mapped[3:8] == 7).all()
    assert (np.load(path) == -1).all()


def test_where_the_file_is_not_the_array(path, monkeypatch):
    mapped = np.load(path, mmap_mode="r+")
    for other in (mapped[:, ::2], mapped[::-1], np.zeros(SHAPE), mapped[:0]):
        assert type(array_sink(other, "out")) is ArraySink
    # Another file of that name is none of ours.
    os.rename(path, path.with_name("moved.npy"))
    np.save(path, np.full(SHAPE, 5, "f4"))
    sink = array_sink(mapped, "out")
    assert type(sink) is ArraySink
    sink.write(0, 0, np.zeros(SHAPE, "f4"))
    assert (np.load(path) == 5).all()
    assert (np.load(path.with_name("moved.npy")) == 0).all()
    monkeypatch.setattr(mapped_source, "_MAPS", "/no/maps")
    assert type(array_sink(np.load(path, mmap_mode="r+"), "out")) is ArraySink


def test_files_are_closed(path):
    before = len(os.listdir("/proc/self/fd"))
    mapped = np.load(path, mmap_mode="r+")
    sink = array_sink(mapped, "out")
    assert len(os.listdir("/proc/self/fd")) > before
    del sink
    opened = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    assert opened.count(os.path.realpath(path)) <= 1  # That of the map itself, which some versions keep.


def test_errors_name_the_result(path, monkeypatch):
    mapped = np.load(path, mmap_mode="r+")
    failing(monkeypatch, "pwrite", errno.ENOSPC)
    with pytest.raises(gm.FileAccessError, match=r"^out: writing it failed: No space left on device; free some room"):
        array_sink(mapped, "out").write(0, 0, np.zeros(SHAPE, "f4"))


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("options", [{"memory": "4MiB"}, {"device_memory": "60KB"}])
def test_products_into_maps(tmp_path, rng, order, options, runs, short_lines):
    a, b = rng.standard_normal((150, 90)), rng.standard_normal((90, 170))
    out = np.lib.format.open_memmap(tmp_path / "c.npy", "w+", np.float64, (150, 170), fortran_order=order == "F")
    out[...] = np.nan
    gm.outofcore.matmul(a, b, out, executor="cpu", **options)
    assert runs
    np.testing.assert_allclose(out, a @ b, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), a @ b, rtol=1e-12, atol=1e-12)


def test_arrays_that_do_not_fit_go_to_their_files(path, rng, runs, short_lines):
    a, b = rng.standard_normal((37, 60), "f4"), rng.standard_normal((60, 53), "f4")
    mapped = np.load(path, mmap_mode="r+")
    stream_arrays(Request(a, b, mapped), Limits(20_000), device="cpu")
    assert runs
    np.testing.assert_allclose(np.load(path), a @ b, rtol=1e-4, atol=1e-4)
