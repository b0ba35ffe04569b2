"""HDF5 items that are not what NumPy holds, datasets whose items lie in other files, and damaged stores."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest

from gemmule.core.errors import FileFormatError, GemmuleError
from gemmule.outofcore.stores.formats.hdf5_source import Hdf5Source
from gemmule.outofcore.stores.formats.zarr_source import ZarrSource
from support.outofcore import mutated_stores as made

h5py = pytest.importorskip("h5py", reason="h5py is not installed")
zarr = pytest.importorskip("zarr", reason="zarr is not installed")


def whole(source):
    if source.shape[0] * source.shape[1] > 1 << 20:
        # Metadata that claims more than there is: a piece is read.
        source.shape = (min(source.shape[0], 9), min(source.shape[1], 11))
    out = np.empty(source.shape, source.dtype)
    source.read(slice(0, source.shape[0]), slice(0, source.shape[1]), out)
    source.close()
    return out


def read(path, inner="x"):
    return whole(Hdf5Source.open(str(path), inner))


def bfloat16_like():
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


def int_of_12_bits():
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(12)
    kind.set_offset(8)
    return kind


def write_typed(path, kind, values, memory):
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple(values.shape)
        dataset = h5py.h5d.create(file.id, b"x", kind, space)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values, memory)


@pytest.mark.parametrize("kind", [bfloat16_like, int_of_12_bits])
def test_items_of_another_type_than_numpys_are_converted(tmp_path, rng, kind):
    floats = kind is bfloat16_like
    values = (rng.integers(-8, 9, (7, 5)) / (4 if floats else 1)).astype(np.float32 if floats else np.int32)
    memory = h5py.h5t.NATIVE_FLOAT if floats else h5py.h5t.NATIVE_INT32
    write_typed(tmp_path / "d.h5", kind(), values, memory)
    got = read(tmp_path / "d.h5")
    np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize("dtype", [">f4", ">i2", "<f8", "<f2", "<u4"])
def test_items_in_either_byte_order(tmp_path, rng, dtype):
    values = rng.integers(0, 100, (6, 4)).astype(dtype)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["x"] = values
    np.testing.assert_array_equal(read(tmp_path / "d.h5"), values)


def test_items_in_an_external_file_are_read_and_its_change_is_noticed(tmp_path, rng):
    values = rng.standard_normal((6, 4))
    (tmp_path / "items.raw").write_bytes(b"\0" * 16 + values.tobytes())
    with h5py.File(tmp_path / "d.h5", "w") as file:
        external = [(str(tmp_path / "items.raw"), 16, values.nbytes)]
        file.create_dataset("x", values.shape, values.dtype, external=external)
    source = Hdf5Source.open(str(tmp_path / "d.h5"), "x")
    before = source.fingerprint()
    np.testing.assert_array_equal(whole(source), values)
    (tmp_path / "items.raw").write_bytes(b"\0" * 16 + (values + 1).tobytes())
    os.utime(tmp_path / "items.raw", ns=(1, 1))
    source = Hdf5Source.open(str(tmp_path / "d.h5"), "x")
    assert source.fingerprint() != before
    source.close()
    (tmp_path / "items.raw").unlink()
    with pytest.raises(FileFormatError, match=r"items\.raw does not exist"):
        Hdf5Source.open(str(tmp_path / "d.h5"), "x")


def test_virtual_datasets_need_their_sources_and_notice_their_changes(tmp_path, rng):
    values = rng.standard_normal((8, 4))
    layout = h5py.VirtualLayout((8, 4), "f8")
    for part in range(2):
        with h5py.File(tmp_path / f"part{part}.h5", "w") as file:
            file["y"] = values[4 * part : 4 * part + 4]
        layout[4 * part : 4 * part + 4] = h5py.VirtualSource(f"part{part}.h5", "y", (4, 4))
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file.create_virtual_dataset("x", layout, fillvalue=7)
    source = Hdf5Source.open(str(tmp_path / "d.h5"), "x")
    before = source.fingerprint()
    np.testing.assert_array_equal(whole(source), values)
    os.utime(tmp_path / "part1.h5", ns=(1, 1))
    source = Hdf5Source.open(str(tmp_path / "d.h5"), "x")
    assert source.fingerprint() != before
    source.close()
    (tmp_path / "part1.h5").unlink()
    with pytest.raises(FileFormatError, match=r"part1\.h5, which does not exist"):
        Hdf5Source.open(str(tmp_path / "d.h5"), "x")


@pytest.mark.parametrize("link", ["loop", "dangling", "external"])
def test_links_that_lead_nowhere_are_named(tmp_path, link):
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["x"] = {
            "loop": h5py.SoftLink("/x"), "dangling": h5py.SoftLink("/nowhere"),
            "external": h5py.ExternalLink("gone.h5", "/y"),
        }[link]  # fmt: skip
    with pytest.raises(FileFormatError, match=r"d\.h5::/x: (is a link to|.*too many links)"):
        read(tmp_path / "d.h5")


def outcome(open_source, path, expected, *, checked):
    """Read a damaged store: the right items, wrong ones where nothing protects them, or an error that names it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = whole(open_source(str(path)))
    except GemmuleError as error:
        text = str(error)
        named = os.path.basename(path) in text and "\n" not in text
        return "refused" if named else text
    if got.shape == expected.shape and got.dtype == expected.dtype and np.array_equal(got, expected):
        return "right"
    assert not checked, "a checksum holds all items, and they came out wrong"
    return "other"


@pytest.mark.parametrize("kind", ["checked", "old", "plain"])
def test_damaged_hdf5_is_refused_by_name_or_read_right(tmp_path, kind):
    rng = np.random.default_rng(7)
    x, path = rng.standard_normal((8, 10)), tmp_path / "d.h5"
    made.make_hdf5(path, x, kind)
    raw = path.read_bytes()
    found = set()
    for _ in range(150):
        with made.replaced(path, made.mutate_bytes(raw, rng)):
            # A checksum covers the bytes of chunks; what says where they lie is covered by the latest format only.
            found.add(outcome(lambda name: Hdf5Source.open(name, "g/x"), path, x, checked=False))
    assert "refused" in found
    assert found <= {"refused", "right", "other"}


@pytest.mark.parametrize("kind", ["crc", "shards", "zstd", "gzip", "blosc", "v2"])
def test_damaged_zarr_is_refused_by_name_or_read_right(tmp_path, kind):
    rng = np.random.default_rng(8)
    x, path = rng.standard_normal((8, 10)), tmp_path / "s.zarr"
    made.make_zarr(path, x, kind)
    found = set()
    for file in made.files_of(path):
        metadata = os.path.basename(file) in ("zarr.json", ".zarray")
        with open(file, "rb") as stored:
            raw = stored.read()
        for _ in range(10 if metadata else 8):
            with made.replaced(file, made.mutate_bytes(raw, rng)):
                checked = kind in ("crc", "shards") and not metadata
                found.add(outcome(lambda name: ZarrSource.open(name, None), path, x, checked=checked))
        for number, text in enumerate(made.mutations_of_json(raw) if metadata else ()):
            if number % 7 == 0:
                with made.replaced(file, text.encode()):
                    found.add(outcome(lambda name: ZarrSource.open(name, None), path, x, checked=False))
    assert "refused" in found
    assert found <= {"refused", "right", "other"}
