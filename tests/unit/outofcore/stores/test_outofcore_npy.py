"""Files as sources and sinks: what is read, what is refused, what is left behind."""

from __future__ import annotations

import errno
import os
import signal
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gemmule.core.errors import ArgumentError, DTypeError, FileFormatError, OverlapError, ShapeError
from gemmule.outofcore.journal import temporary_files as hidden
from gemmule.outofcore.stores.formats import npy_sink
from gemmule.outofcore.stores.formats.npy_sink import NpySink
from gemmule.outofcore.stores.formats.npy_source import NpySource
from gemmule.outofcore.stores.matrix import TransposedSource
from support.system_calls import failing, recorded, shortened

PLAIN = [
    "float64",
    "float32",
    "float16",
    "complex64",
    "complex128",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "uint64",
]


def read_all(source, rows=slice(0, None), cols=slice(0, None)):
    rows, cols = slice(*rows.indices(source.shape[0])), slice(*cols.indices(source.shape[1]))
    out = np.empty((rows.stop - rows.start, cols.stop - cols.start), source.dtype, order=source.order)
    assert source.read(rows, cols, out) == out.nbytes
    return out


@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("endian", ["<", ">"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_layout_is_read(tmp_path: Path, dtype, order, endian, version):
    x = np.arange(7 * 11).reshape(7, 11).astype(np.dtype(dtype).newbyteorder(endian), order=order)
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array(file, x, version)
    with NpySource(tmp_path / "x.npy") as source:
        assert source.shape == (7, 11)
        assert source.order == order
        assert source.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(read_all(source), x)
        np.testing.assert_array_equal(read_all(source, slice(2, 5), slice(3, 9)), x[2:5, 3:9])
        np.testing.assert_array_equal(read_all(source, slice(2, 3), slice(3, 4)), x[2:3, 3:4])
        transposed = TransposedSource(source)
        np.testing.assert_array_equal(read_all(transposed, slice(3, 9), slice(2, 5)), x.T[3:9, 2:5])


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_cannot_name(tmp_path: Path, name):
    x = np.arange(12).reshape(3, 4).astype(getattr(ml_dtypes, name))
    np.save(tmp_path / "x.npy", x)
    with NpySource(tmp_path / "x.npy", name) as source:
        np.testing.assert_array_equal(read_all(source), x)
    if name != "float8_e5m2":  # NumPy names it f1, which says all.
        with pytest.raises(DTypeError, match=f"a_dtype.*{name}"):
            NpySource(tmp_path / "x.npy")
    with NpySink(tmp_path / "y.npy", (3, 4), x.dtype) as sink:
        sink.write(0, 0, x)
        sink.commit()
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy").view(x.dtype), x)


def test_raw_items_of_another_size_are_refused(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.zeros((2, 2), ml_dtypes.bfloat16))
    with pytest.raises(DTypeError, match="2 bytes cannot be float8_e4m3fn"):
        NpySource(tmp_path / "x.npy", "float8_e4m3fn")


@pytest.mark.parametrize(("extra", "what"), [(-1, "truncated"), (-500, "truncated"), (1, "followed by other bytes")])
def test_the_size_must_fit_the_header(tmp_path: Path, extra, what):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((10, 20)))
    raw = path.read_bytes()
    path.write_bytes(raw[:extra] if extra < 0 else raw + b"x" * extra)
    with pytest.raises(FileFormatError, match=rf"x\.npy: expected {len(raw)} bytes, found {len(raw) + extra}.*{what}"):
        NpySource(path)


def header_file(path: Path, text: str, version: tuple[int, int] = (1, 0)) -> Path:
    body = text.encode("latin1")
    path.write_bytes(b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", len(body)) + body)
    return path


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nonsense", FileFormatError),
        ("{'descr': '<f4', 'fortran_order': False}", FileFormatError),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 5)}", FileFormatError),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': 7}", FileFormatError),
        ("{'descr': '<f4', 'fortran_order': 'no', 'shape': (1, 5)}", FileFormatError),
        ("{'descr': '<q9', 'fortran_order': False, 'shape': (1, 5)}", FileFormatError),
        ("{'descr': ['f4', 7], 'fortran_order': False, 'shape': (1, 5)}", FileFormatError),
        ("__import__('os').system('false')", FileFormatError),
        ("(" * 9000, FileFormatError),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1, 5)}", DTypeError),
        ("{'descr': '<U4', 'fortran_order': False, 'shape': (1, 5)}", DTypeError),
        ("{'descr': '|b1', 'fortran_order': False, 'shape': (1, 5)}", DTypeError),
        ("{'descr': '<f16', 'fortran_order': False, 'shape': (1, 5)}", DTypeError),
        ("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1, 5)}", DTypeError),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", ShapeError),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}", ShapeError),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3)}", ShapeError),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (10**9, 10**9)}", FileFormatError),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 1000000000)}", FileFormatError),
    ],
)
def test_bad_headers_are_refused_in_one_line(tmp_path: Path, text, error):
    with pytest.raises(error) as caught:
        NpySource(header_file(tmp_path / "x.npy", text))
    assert "x.npy: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x93NUM", b"PK\x03\x04 a zip file", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x01\x00\x76\x00{'descr'",
     b"\x93NUMPY\x09\x00v\x00", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}"],
)  # fmt: skip
def test_what_is_no_npy_file(tmp_path: Path, raw):
    (tmp_path / "x.npy").write_bytes(raw)
    with pytest.raises(FileFormatError, match=r"x\.npy: "):
        NpySource(tmp_path / "x.npy")


def test_a_header_of_absurd_length_is_not_read(tmp_path: Path):
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}")
    with pytest.raises(FileFormatError, match="at most 65536 are read"):
        NpySource(tmp_path / "x.npy")


def test_a_negative_extent_is_refused(tmp_path: Path):
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 0)}"
    with pytest.raises(FileFormatError, match="integers >= 0"):
        NpySource(header_file(tmp_path / "x.npy", text))


def test_object_arrays_are_never_unpickled(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.array([[1, {}]], dtype=object), allow_pickle=True)
    with pytest.raises(DTypeError, match="never unpickled"):
        NpySource(tmp_path / "x.npy")


def test_a_pipe_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "x.npy")
    keep_open = os.open(tmp_path / "x.npy", os.O_RDWR)
    with pytest.raises(FileFormatError, match="not a regular file"):
        NpySource(tmp_path / "x.npy")
    os.close(keep_open)


def test_short_reads_are_continued(tmp_path: Path, monkeypatch):
    x = np.random.default_rng(0).random((30, 40))
    np.save(tmp_path / "x.npy", x)
    shortened(monkeypatch, "preadv", 77)
    with NpySource(tmp_path / "x.npy") as source:
        np.testing.assert_array_equal(read_all(source), x)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch):
    x = np.random.default_rng(0).random((30, 40))
    shortened(monkeypatch, "pwrite", 77)
    with NpySink(tmp_path / "x.npy", x.shape, x.dtype) as sink:
        sink.write(0, 0, x)
        sink.commit()
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), x)


def test_a_file_that_shrinks_is_noticed(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.zeros((100, 100)))
    with NpySource(tmp_path / "x.npy") as source:
        os.truncate(tmp_path / "x.npy", 1000)
        with pytest.raises(FileFormatError, match="earlier than when it was opened"):
            read_all(source)


def test_whole_rows_are_read_in_one_call(tmp_path: Path, monkeypatch):
    np.save(tmp_path / "x.npy", np.zeros((100, 100)))
    calls = recorded(monkeypatch, "preadv")
    with NpySource(tmp_path / "x.npy") as source:
        read_all(source, slice(10, 60))
    assert len(calls) == 1


def test_the_output_appears_only_when_committed(tmp_path: Path):
    x = np.arange(35.0).reshape(5, 7)
    with NpySink(tmp_path / "x.npy", x.shape, x.dtype) as sink:
        for row in (0, 3):
            for col in (0, 4):
                sink.write(row, col, np.ascontiguousarray(x[row : row + 3, col : col + 4]))
        (partial,) = tmp_path.iterdir()
        assert partial.name.startswith(".gemmule-")
        assert partial.name.endswith(".partial")
        with sink.written() as written:
            np.testing.assert_array_equal(read_all(written), x)
        sink.commit()
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.npy"]
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), x)


def test_a_failure_leaves_nothing(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt), NpySink(tmp_path / "x.npy", (5, 5), np.dtype("f4")):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch):
    failing(monkeypatch, "posix_fallocate", errno.ENOSPC)
    with pytest.raises(OSError, match="no space for the 228 bytes"):
        NpySink(tmp_path / "x.npy", (5, 5), np.dtype("f4"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_cannot_reserve(tmp_path: Path, monkeypatch):
    failing(monkeypatch, "posix_fallocate", errno.EOPNOTSUPP)
    with NpySink(tmp_path / "x.npy", (5, 5), np.dtype("f4")) as sink:
        sink.write(0, 0, np.ones((5, 5), np.float32))
        sink.commit()
    assert np.load(tmp_path / "x.npy").sum() == 25


def test_an_existing_output_needs_force(tmp_path: Path):
    (tmp_path / "x.npy").write_bytes(b"precious")
    with pytest.raises(ArgumentError, match="give force=True"):
        NpySink(tmp_path / "x.npy", (1, 1), np.dtype("f4"))
    assert (tmp_path / "x.npy").read_bytes() == b"precious"
    with NpySink(tmp_path / "x.npy", (1, 1), np.dtype("f4"), force=True) as sink:
        sink.write(0, 0, np.ones((1, 1), np.float32))
        assert (tmp_path / "x.npy").read_bytes() == b"precious"
        sink.commit()
    assert np.load(tmp_path / "x.npy")[0, 0] == 1


def test_an_output_that_appears_meanwhile_is_not_replaced(tmp_path: Path):
    with NpySink(tmp_path / "x.npy", (1, 1), np.dtype("f4")) as sink:
        (tmp_path / "x.npy").write_bytes(b"precious")
        with pytest.raises(ArgumentError, match="exists already"):
            sink.commit()
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("x.npy", b"precious")]


@pytest.mark.parametrize("link", ["same", "symlink", "hardlink"])
def test_an_input_is_never_the_output(tmp_path: Path, link):
    np.save(tmp_path / "a.npy", np.ones((2, 2)))
    name = tmp_path / ("a.npy" if link == "same" else "b.npy")
    if link == "symlink":
        name.symlink_to(tmp_path / "a.npy")
    elif link == "hardlink":
        os.link(tmp_path / "a.npy", name)
    with NpySource(tmp_path / "a.npy") as source, pytest.raises(OverlapError, match="an input is not overwritten"):
        NpySink(name, (2, 2), np.dtype("f8"), force=True, inputs=[source])


def test_a_link_keeps_pointing_to_the_output(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "link.npy").symlink_to(tmp_path / "deep" / "x.npy")
    with NpySink(tmp_path / "link.npy", (1, 1), np.dtype("f4")) as sink:
        sink.write(0, 0, np.ones((1, 1), np.float32))
        sink.commit()
    assert (tmp_path / "link.npy").is_symlink()
    assert np.load(tmp_path / "deep" / "x.npy")[0, 0] == 1


def test_a_file_made_meanwhile_is_not_replaced_without_force(tmp_path):
    with NpySink(tmp_path / "x.npy", (2, 2), np.dtype("f8")) as sink:
        sink.write(0, 0, np.ones((2, 2)))
        (tmp_path / "x.npy").write_text("precious")
        with pytest.raises(ArgumentError, match="give force=True"):
            sink.commit()
    assert (tmp_path / "x.npy").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_a_link_does_not_replace_what_is_made_at_the_last_moment(tmp_path, monkeypatch):
    monkeypatch.setattr(npy_sink, "check_output", lambda *_, **__: None)
    with NpySink(tmp_path / "x.npy", (2, 2), np.dtype("f8")) as sink:
        sink.write(0, 0, np.ones((2, 2)))
        (tmp_path / "x.npy").write_text("precious")
        with pytest.raises(FileExistsError):
            sink.commit()
    assert (tmp_path / "x.npy").read_text() == "precious"


def test_without_links_a_rename_does(tmp_path, monkeypatch):
    failing(monkeypatch, "link", errno.EPERM)
    with NpySink(tmp_path / "x.npy", (2, 2), np.dtype("f8")) as sink:
        sink.write(0, 0, np.ones((2, 2)))
        sink.commit()
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_signals_wait_until_a_file_is_there_or_gone():
    got = []
    before = signal.signal(signal.SIGTERM, lambda *_: got.append("handled"))
    try:
        with hidden.signals_held():
            signal.raise_signal(signal.SIGTERM)
            assert got == []
        assert got == ["handled"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_result_that_fits_into_no_file(tmp_path):
    with pytest.raises(ArgumentError, match="fits into no file"):
        NpySink(tmp_path / "x.npy", (2**31, 2**31), np.dtype("f8"))
    assert list(tmp_path.iterdir()) == []


def test_long_names_are_no_hindrance(tmp_path):
    path = tmp_path / ("x" * 250 + ".npy")
    with NpySink(path, (1, 1), np.dtype("f8")) as sink:
        sink.write(0, 0, np.ones((1, 1)))
        sink.commit()
    assert np.load(path) == 1


def test_a_disk_that_fails_is_told_with_the_name_that_was_asked_for(tmp_path, monkeypatch):
    def fails(_):
        raise OSError(5, "Input/output error")

    with NpySink(tmp_path / "x.npy", (4, 2), np.dtype("f8")) as sink:
        monkeypatch.setattr(npy_sink, "store_file", fails)
        sink.write(0, 0, np.ones((2, 2)))
        with pytest.raises(OSError, match="writing it failed") as told:
            sink.flush()
        assert told.value.filename == str(tmp_path / "x.npy")
    assert list(tmp_path.iterdir()) == []


def test_a_late_write_does_not_reach_another_file(tmp_path):
    sink = NpySink(tmp_path / "c.npy", (2, 2), np.dtype("f8"))
    sink.keep()
    # It gets the number that the sink had.
    with open(tmp_path / "other", "w+b") as other:
        with pytest.raises(OSError, match="Bad file descriptor"):
            sink.write(0, 0, np.ones((2, 2)))
        assert other.read() == b""
