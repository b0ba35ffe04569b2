"""Zarr and HDF5 as sources and sinks, and the names that users give them."""

from __future__ import annotations

import itertools
import os
import threading
import warnings

import ml_dtypes
import numpy as np
import pytest

from gemmule.core.errors import ArgumentError, DTypeError, FileFormatError, OverlapError, ShapeError, UnsupportedError
from gemmule.outofcore.stores.arrays import ArraySource
from gemmule.outofcore.stores.conversion import ConvertedSource
from gemmule.outofcore.stores.matrix import TransposedSource
from gemmule.outofcore.stores.opening import open_source, result_target
from gemmule.outofcore.stores.uri import MatrixUri
from support.fakes.modules import not_installed

DTYPES = ["float64", ">f4", "float16", "int8", "uint16", "complex64"]


def read_all(source, rows=(0, None), cols=(0, None), pitch=0):
    """Read a piece into poisoned memory, whose lines are `pitch` longer than they need be."""
    rows, cols = (slice(*slice(*part).indices(extent)) for part, extent in zip((rows, cols), source.shape, strict=True))
    shape = rows.stop - rows.start, cols.stop - cols.start
    lines = shape if source.order == "C" else shape[::-1]
    buffer = np.frombuffer(b"\xee" * (lines[0] * (lines[1] + pitch) * source.dtype.itemsize), source.dtype).copy()
    out = buffer.reshape(lines[0], lines[1] + pitch)[:, : lines[1]]
    out = out if source.order == "C" else out.T
    assert source.read(rows, cols, out) == out.size * source.stored_itemsize
    return out


def check_pieces(source, x):
    for rows, cols in (((0, None), (0, None)), ((3, 20), (5, 31)), ((7, 8), (0, None)), ((0, None), (40, 41))):
        for pitch in (0, 3):
            np.testing.assert_array_equal(read_all(source, rows, cols, pitch), x[slice(*rows), slice(*cols)])
    transposed = TransposedSource(source)
    np.testing.assert_array_equal(read_all(transposed, (5, 31), (3, 20)), x.T[5:31, 3:20])
    assert transposed.block_shape == source.block_shape[::-1]


@pytest.fixture
def x(rng):
    return rng.integers(0, 100, (37, 53))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shards", [None, (16, 24)])
def test_zarr_is_read(tmp_path, x, dtype, shards):
    zarr = pytest.importorskip("zarr")
    x = x.astype(dtype)
    array = zarr.create_array(tmp_path / "s.zarr", name="g/x", data=x, chunks=(8, 12), shards=shards)
    source = open_source(f"{tmp_path}/s.zarr::g/x", "a")
    assert (source.shape, source.dtype, source.block_shape) == (x.shape, x.dtype.newbyteorder("="), (8, 12))
    check_pieces(source, x)
    check_pieces(open_source(array, "a"), x)
    check_pieces(open_source(tmp_path / "s.zarr" / "g" / "x", "a"), x)


def test_zarr_in_memory_and_of_version_2(tmp_path, x):
    zarr = pytest.importorskip("zarr")
    store = zarr.storage.MemoryStore()
    source = open_source(zarr.create_array(store, data=x, chunks=(8, 12)), "a")
    check_pieces(source, x)
    assert source.path is None
    assert source.fingerprint() != open_source(zarr.create_array({}, data=x + 1, chunks=(8, 12)), "a").fingerprint()
    zarr.create_array(tmp_path / "two.zarr", data=x, chunks=(8, 12), zarr_format=2, order="F")
    check_pieces(open_source(tmp_path / "two.zarr", "a"), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options", [{}, {"chunks": (8, 12)}, {"chunks": (8, 12), "compression": "gzip", "shuffle": True}]
)
@pytest.mark.parametrize("userblock", [0, 1024])
def test_hdf5_is_read(tmp_path, x, dtype, options, userblock):
    h5py = pytest.importorskip("h5py")
    x = x.astype(dtype)
    with h5py.File(tmp_path / "d.data", "w", userblock_size=userblock) as file:
        file.create_dataset("group/x", data=x, **options)
        file["y"] = np.zeros((2, 2))
    source = open_source(f"{tmp_path}/d.data::/group/x", "a")
    assert (source.shape, source.dtype) == (x.shape, x.dtype.newbyteorder("="))
    check_pieces(source, x)
    source.close()
    with h5py.File(tmp_path / "d.data", "r") as file:
        source = open_source(file["group/x"], "a")
        check_pieces(source, x)
        source.close()
        assert file["y"][0, 0] == 0  # The caller's file stays open.


def test_hdf5_without_data_reads_the_fill_value(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file.create_dataset("x", (5, 6), "f4", fillvalue=7)
    np.testing.assert_array_equal(read_all(open_source(tmp_path / "d.h5", "a")), np.full((5, 6), 7, "f4"))


def test_contiguous_hdf5_is_read_past_the_library(tmp_path, x, monkeypatch):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["x"] = x
    source = open_source(tmp_path / "d.h5", "a")
    monkeypatch.setattr(h5py.Dataset, "read_direct", None)
    monkeypatch.setattr(h5py.Dataset, "__getitem__", None)
    np.testing.assert_array_equal(read_all(source), x)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_types_that_stores_cannot_name(tmp_path, x, name):
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    x = x.astype(getattr(ml_dtypes, name))
    raw = x.view(f"V{x.itemsize}")
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["x"] = raw
        file.create_dataset("c", data=raw, chunks=(8, 12))
    with warnings.catch_warnings():
        # Raw items are not in the specification; there are such files.
        warnings.simplefilter("ignore")
        zarr.create_array(tmp_path / "s.zarr", data=raw, chunks=(8, 12))
    for uri in ("d.h5::x", "d.h5::c", "s.zarr"):
        with pytest.raises(DTypeError, match=f"a_dtype.*{name}"):
            open_source(f"{tmp_path}/{uri}", "a")
        source = open_source(f"{tmp_path}/{uri}", "a", name)
        np.testing.assert_array_equal(read_all(source), x)
        source.close()
    with pytest.raises(DTypeError, match=f"has no {name}; write it to .npy"):
        result_target(tmp_path / "out.zarr", x.shape, x.dtype)


def test_what_is_no_matrix_is_refused(tmp_path):
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["g/x"], file["g/cube"], file["g/names"] = np.ones((2, 3)), np.ones((2, 3, 4)), np.full((2, 2), b"a")
    group = zarr.open_group(tmp_path / "s.zarr", mode="w")
    group.create_array("x", data=np.ones((2, 3)))
    group.create_array("cube", data=np.ones((2, 3, 4)))
    group.create_array("deep/y", data=np.ones((2, 3)))
    (tmp_path / "broken.h5").write_bytes((tmp_path / "d.h5").read_bytes()[:700])
    (tmp_path / "empty.zarr").mkdir()
    for uri, error, text in (
        ("d.h5", FileFormatError, "3 datasets; name one of them: .*d.h5::/g/cube"),
        ("d.h5::g", FileFormatError, "is a group; the datasets of the file are"),
        ("d.h5::/g/y", FileFormatError, "is not there; .*d.h5::/g/x"),
        ("d.h5::g/cube", ShapeError, "2 dimensions"),
        ("d.h5::g/names", DTypeError, "is not multiplied"),
        ("broken.h5::g/x", FileFormatError, "HDF5 cannot read it"),
        ("s.zarr", FileFormatError, "is a Zarr group; .*s.zarr::deep/y, .*s.zarr::x"),
        ("s.zarr::y", FileFormatError, "is not there.*s.zarr::x"),
        ("s.zarr::cube", ShapeError, "2 dimensions"),
        ("empty.zarr", FileFormatError, "is not a Zarr array"),
        ("nothing.zarr", FileNotFoundError, "nothing.zarr"),
        ("nothing.h5::x", FileNotFoundError, "nothing.h5"),
        ("d.h5::", ArgumentError, "names no matrix"),
        ("a.npy::x", ArgumentError, "leave out ::x"),
    ):
        np.save(tmp_path / "a.npy", np.ones((2, 2)))
        with pytest.raises(error, match=text) as caught:
            open_source(f"{tmp_path}/{uri}", "a")
        assert "\n" not in str(caught.value)
    with pytest.raises(ArgumentError, match="a is of type list"):
        open_source([[1.0]], "a")


@pytest.mark.parametrize(
    ("text", "path", "inner"),
    [
        ("A.npy", "A.npy", None),
        ("d.h5::/group/x", "d.h5", "group/x"),
        ("s.zarr::x/", "s.zarr", "x"),
        ("a::b.h5::x", "a::b.h5", "x"),
        ("odd::name.npy", "odd::name.npy", None),
    ],
)
def test_names_of_matrices(tmp_path, monkeypatch, text, path, inner):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd::name.npy").touch()
    assert MatrixUri.parse(text) == MatrixUri(path, inner)


@pytest.mark.parametrize(("package", "uri"), [("zarr", "s.zarr"), ("h5py", "d.h5")])
def test_a_missing_package_is_named_with_its_extra(tmp_path, package, uri):
    (tmp_path / "s.zarr").mkdir()
    (tmp_path / "d.h5").write_bytes(b"\x89HDF\r\n\x1a\n")

    with (
        not_installed(package),
        pytest.raises(UnsupportedError, match=rf"needs the package {package}.*pip install 'gemmule\[io\]'"),
    ):
        open_source(tmp_path / uri, "a")


def test_neither_package_is_imported_without_need(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((2, 2)))
    with not_installed("zarr", "h5py"):
        open_source(tmp_path / "a.npy", "a").close()
        result_target(tmp_path / "c.npy", (2, 2), np.dtype("f4"))


@pytest.mark.parametrize("shards", [None, (32, 48)])
def test_a_zarr_result(tmp_path, rng, shards):
    pytest.importorskip("zarr")
    x = rng.standard_normal((100, 130))
    target = result_target(f"{tmp_path}/s.zarr::g/x", x.shape, x.dtype, (16, 24), shards)
    assert target.block_shape == (shards or (16, 24))
    with target.open(x.shape, x.dtype, force=False, inputs=[], again=False) as sink:
        height, width = 2 * target.block_shape[0], 2 * target.block_shape[1]
        pieces = [(row, col) for row in range(0, 100, height) for col in range(0, 130, width)]
        threads = [
            threading.Thread(
                target=sink.write, args=(row, col, np.ascontiguousarray(x[row : row + height, col : col + width]))
            )
            for row, col in pieces
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_array_equal(read_all(sink.written()), x)
        assert not (tmp_path / "s.zarr").exists()
        sink.commit()
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.zarr"]
    np.testing.assert_array_equal(read_all(open_source(f"{tmp_path}/s.zarr::g/x", "a")), x)


def test_a_tile_that_cuts_through_a_shard_is_refused(tmp_path):
    pytest.importorskip("zarr")
    target = result_target(tmp_path / "s.zarr", (100, 100), np.dtype("f4"), (8, 8), (32, 16))
    with target.open((100, 100), np.dtype("f4"), force=False, inputs=[], again=False) as sink:
        for row, col, shape in ((16, 0, (16, 16)), (0, 8, (32, 16)), (0, 0, (31, 16)), (64, 80, (32, 19))):
            with pytest.raises(ArgumentError, match="cuts through blocks of 32 x 16"):
                sink.write(row, col, np.ones(shape, "f4"))
        sink.write(96, 80, np.ones((4, 20), "f4"))
    assert list(tmp_path.iterdir()) == []


def test_shards_hold_whole_chunks(tmp_path):
    pytest.importorskip("zarr")
    with pytest.raises(ArgumentError, match="100 is no multiple of 30; 90 and 120 are"):
        result_target(tmp_path / "s.zarr", (500, 500), np.dtype("f4"), (30, 30), (100, 90))
    with pytest.raises(ArgumentError, match=r"1 is no multiple of 2; 2 is$"):
        result_target(tmp_path / "s.zarr", (500, 500), np.dtype("f4"), (2, 2), (1, 2))
    target = result_target(tmp_path / "s.zarr", (5000, 500), np.dtype("f4"), None, (2050, 90))
    assert target.describe()["chunks"] == [410, 90]


def test_a_zarr_result_replaces_only_what_it_may(tmp_path):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(tmp_path / "s.zarr", mode="w")
    group.create_array("x", data=np.zeros((4, 4)))
    group.create_array("sub/y", data=np.zeros((4, 4)))
    np.save(tmp_path / "a.npy", np.ones((4, 4)))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "precious").touch()
    source = open_source(f"{tmp_path}/s.zarr::x", "a")

    def check(uri, force, inputs=()):
        result_target(uri, (4, 4), np.dtype("f8"), (2, 2)).check(force, list(inputs))

    with pytest.raises(ArgumentError, match="give force=True"):
        check(f"{tmp_path}/s.zarr::x", False)
    with pytest.raises(OverlapError, match="is the input"):
        check(f"{tmp_path}/s.zarr::x", True, [source])
    with pytest.raises(OverlapError, match="holds the input"):
        check(f"{tmp_path}/s.zarr", True, [source])
    with pytest.raises(ArgumentError, match="not a Zarr array"):
        check(f"{tmp_path}/s.zarr::sub", True)
    with pytest.raises(ArgumentError, match="not a Zarr group"):
        check(f"{tmp_path}/s.zarr::x/z", True)
    os.rename(tmp_path / "folder", tmp_path / "folder.zarr")
    for place in ("folder.zarr::x", "folder.zarr"):
        with pytest.raises(ArgumentError, match=r"exists and is not a Zarr (array|group)"):
            check(f"{tmp_path}/{place}", True)
    check(f"{tmp_path}/s.zarr::new/z", False)
    metadata = (tmp_path / "s.zarr" / "zarr.json").read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(tmp_path / "s.zarr")
    with pytest.raises(ArgumentError, match="has consolidated metadata"):
        check(f"{tmp_path}/s.zarr::new/z", False)
    (tmp_path / "s.zarr" / "zarr.json").write_text(metadata)
    target = result_target(f"{tmp_path}/s.zarr::x", (4, 4), np.dtype("f8"), (2, 2))
    with target.open((4, 4), np.dtype("f8"), force=True, inputs=[], again=False) as sink:
        sink.write(0, 0, np.ones((4, 4)))
        assert (group["x"][...] == 0).all()
        sink.commit()
    assert (zarr.open_group(tmp_path / "s.zarr", mode="r")["x"][...] == 1).all()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.npy", "folder.zarr", "s.zarr"]
    assert os.path.exists(tmp_path / "s.zarr" / "sub" / "y")


def test_hdf5_is_no_output_and_the_reason_is_told(tmp_path):
    with pytest.raises(ArgumentError, match=r"unreadable if the process is killed.*write to \.npy or \.zarr"):
        result_target(f"{tmp_path}/out.h5::x", (2, 2), np.dtype("f4"))
    with pytest.raises(ArgumentError, match="only Zarr"):
        result_target(f"{tmp_path}/out.npy::x", (2, 2), np.dtype("f4"))
    with pytest.raises(ArgumentError, match="no chunks"):
        result_target(f"{tmp_path}/out.npy", (2, 2), np.dtype("f4"), (2, 2))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("stored", "computed"), [("f2", "f4"), ("f4", "f8"), ("f8", "f4"), ("i1", "f4"), ("f4", "c8")])
def test_elements_are_converted_while_they_are_read(x, order, stored, computed):
    x = np.asarray(x.astype(stored), order=order)
    source = ConvertedSource(ArraySource(x), np.dtype(computed), 700)
    assert (source.dtype, source.order) == (np.dtype(computed), order)
    check_pieces(source, x.astype(computed))
    assert source.fingerprint() != ArraySource(x).fingerprint()


@pytest.mark.parametrize(("stored", "computed"), [("f4", "i4"), ("c8", "f4")])
def test_a_lesser_kind_is_not_computed_in(stored, computed):
    with pytest.raises(DTypeError, match="is not computed in"):
        ConvertedSource(ArraySource(np.ones((2, 2), stored)), np.dtype(computed))


def test_converted_blocks_end_where_chunks_do(tmp_path, x):
    zarr = pytest.importorskip("zarr")
    source = open_source(zarr.create_array(tmp_path / "s.zarr", data=x, chunks=(8, 12)), "a")
    rows = []
    read = source.read
    source.read = lambda part, *rest: rows.append((part.start, part.stop)) or read(part, *rest)
    np.testing.assert_array_equal(read_all(ConvertedSource(source, np.dtype("f8"), 1), (3, 29)), x[3:29])
    assert rows == [(3, 8), (8, 16), (16, 24), (24, 29)]


@pytest.mark.parametrize("order", ["C", "F"])
def test_less_than_a_block_of_the_store_is_converted(x, order):
    source = ArraySource(np.asarray(x, order=order))
    source.block_shape = (16, 16)
    converted = ConvertedSource(source, np.dtype("f8"))
    for first, last in itertools.combinations(range(0, 33, 3), 2):
        rows, cols = ((first, last), (5, 7)) if order == "C" else ((5, 7), (first, last))
        np.testing.assert_array_equal(read_all(converted, rows, cols), x[slice(*rows), slice(*cols)])


@pytest.mark.parametrize("place", ["../x", "x/../../y", "..", ".", "g/./x"])
def test_a_result_stays_in_its_store(tmp_path, place):
    pytest.importorskip("zarr")
    with pytest.raises(ArgumentError, match=r"has no \. and \.\. in it"):
        result_target(f"{tmp_path}/s.zarr::{place}", (4, 4), np.dtype("f8"))
    assert list(tmp_path.iterdir()) == []


def test_a_slash_behind_the_name_of_a_store(tmp_path):
    """Shells write one where they complete the name of a folder."""
    pytest.importorskip("zarr")
    with result_target(f"{tmp_path}/s.zarr/", (4, 4), np.dtype("f8")).open(
        (4, 4), np.dtype("f8"), force=False, inputs=[], again=False
    ) as sink:
        sink.write(0, 0, np.ones((4, 4)))
        sink.commit()
    np.testing.assert_array_equal(read_all(open_source(f"{tmp_path}/s.zarr/", "a")), np.ones((4, 4)))


def test_what_was_made_meanwhile_is_not_replaced(tmp_path):
    zarr = pytest.importorskip("zarr")
    x, precious = np.ones((4, 4)), np.arange(16.0).reshape(4, 4)

    def opened(uri):
        sink = result_target(f"{tmp_path}/{uri}", (4, 4), np.dtype("f8"), (2, 2)).open(
            (4, 4), np.dtype("f8"), force=True, inputs=[], again=False
        )
        sink.write(0, 0, x)
        return sink

    with opened("n.zarr::g/x") as sink:
        zarr.open_group(tmp_path / "n.zarr", mode="w").create_array("g/precious", data=precious)
        sink.commit()
    np.testing.assert_array_equal(read_all(open_source(f"{tmp_path}/n.zarr::g/x", "a")), x)
    np.testing.assert_array_equal(read_all(open_source(f"{tmp_path}/n.zarr::g/precious", "a")), precious)
    assert [entry.name for entry in tmp_path.iterdir()] == ["n.zarr"]
    for uri, made in (("m.zarr::x", "m.zarr::x"), ("k.zarr::g/x", "k.zarr::g"), ("l.zarr", "l.zarr")):
        with opened(uri) as sink:
            store, _, inner = made.partition("::")
            zarr.create_array(tmp_path / store, name=inner or None, data=precious)
            with pytest.raises(ArgumentError, match="the finished result is in") as error:
                sink.commit()
        np.testing.assert_array_equal(read_all(open_source(f"{tmp_path}/{made}", "a")), precious)
        kept = str(error.value).partition("result is in ")[2].partition(";")[0]
        np.testing.assert_array_equal(read_all(open_source(kept, "a")), x)
    # What was there in the beginning is.
    with opened("n.zarr::g/precious") as sink:
        sink.commit()
    np.testing.assert_array_equal(read_all(open_source(f"{tmp_path}/n.zarr::g/precious", "a")), x)
    np.testing.assert_array_equal(read_all(open_source(f"{tmp_path}/n.zarr::g/x", "a")), x)
