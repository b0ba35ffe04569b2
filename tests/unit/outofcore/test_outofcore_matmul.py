"""gemmule.outofcore.matmul: products from and to arrays, files and stores."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import gemmule as gm
from support.outofcore.killed_products import interrupting
from support.outofcore.wrong_tiles import spoil_tiles


@pytest.fixture(autouse=True)
def on_the_host(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMULE_EXECUTOR", "cpu")


@pytest.fixture
def factors(rng):
    return rng.integers(-4, 5, (70, 50)).astype("f4"), rng.integers(-4, 5, (50, 90)).astype("f4")


def poisoned(shape, dtype="f4"):
    return np.full(shape, np.nan, dtype)


def test_arrays_in_and_out(factors):
    a, b = factors
    c, out = np.ones((70, 90), "f4"), poisoned((70, 90))
    report = gm.outofcore.matmul(a, b, out, alpha=2, beta=-1, c=c, memory="120KB")
    np.testing.assert_array_equal(out, 2 * (a @ b) - c)
    assert report.tiles > 1
    assert report.tiles_computed == report.tiles
    out = poisoned((90, 70), ">f8").T
    gm.outofcore.matmul(np.asfortranarray(a).T, b.T, out, transpose_a=True, transpose_b=True)
    np.testing.assert_array_equal(out, a @ b)


def test_conjugates_and_adjoints(rng):
    """Of arrays and files, of both, of a matrix times its own adjoint, which is not symmetric; real ones stay."""
    a, b = (rng.standard_normal(s) + 1j * rng.standard_normal(s) for s in ((70, 50), (70, 90)))
    np.save("a.npy", a)
    out = poisoned((50, 90), "c16")
    gm.outofcore.matmul("a.npy", b, out, transpose_a=True, conj_a=True, conj_b=True, memory="200KB")
    np.testing.assert_allclose(out, a.conj().T @ b.conj(), rtol=1e-13, atol=1e-12)
    for first, second in (("a.npy", "a.npy"), (a, a)):
        gm.outofcore.matmul(first, second, "own.npy", transpose_b=True, conj_b=True, verify=True, force=True)
        np.testing.assert_allclose(np.load("own.npy"), a @ a.conj().T, rtol=1e-13, atol=1e-12)
    gm.outofcore.matmul(a.real, b.real, out := poisoned((50, 90), "f8"), transpose_a=True, conj_a=True)
    np.testing.assert_allclose(out, a.real.T @ b.real, rtol=1e-13, atol=1e-12)
    np.testing.assert_array_equal(np.load("a.npy"), a)


def test_memory_maps_in_and_out(factors):
    a, b = factors
    np.save("a.npy", a)
    np.save("b.npy", np.asfortranarray(b))
    out = np.lib.format.open_memmap("out.npy", "w+", "f4", (70, 90))
    gm.outofcore.matmul(np.load("a.npy", mmap_mode="r"), np.load("b.npy", mmap_mode="r"), out)
    out.flush()
    np.testing.assert_array_equal(np.load("out.npy"), a @ b)


def test_files_in_and_out(factors):
    a, b = factors
    np.save("a.npy", a)
    report = gm.outofcore.matmul(Path("a.npy"), b, Path("out.npy"), verify=True)
    np.testing.assert_array_equal(np.load("out.npy"), a @ b)
    assert report.bytes_read == a.nbytes + b.nbytes
    assert report.verified.passed
    assert str(report).endswith("GB written; verified")
    with pytest.raises(gm.ArgumentError, match="force=True"):
        gm.outofcore.matmul("a.npy", b, "out.npy")
    gm.outofcore.matmul("a.npy", b, "out.npy", force=True, alpha=2)
    np.testing.assert_array_equal(np.load("out.npy"), 2 * (a @ b))
    assert sorted(os.listdir()) == ["a.npy", "out.npy"]


def test_the_report_counts_what_is_not_finite(factors):
    a, b = factors
    a[3] = np.inf
    b[:] = 1
    report = gm.outofcore.matmul(a, b, poisoned((70, 90)), verify=True)
    assert report.verified.not_finite == 90
    assert str(report).endswith("; verified, 90 of 6,300 elements are NaN or infinite")
    plain = gm.outofcore.matmul(a, b, poisoned((70, 90)))
    assert plain.verified is None
    assert str(plain).endswith("GB written")


def test_stores_in_and_out(factors):
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    a, b = factors
    with h5py.File("d.h5", "w") as file:
        file.create_dataset("g/a", data=a, chunks=(16, 16))
    zarr.create_array("s.zarr", name="b", data=b, chunks=(16, 16))
    gm.outofcore.matmul("d.h5::/g/a", "s.zarr::b", "s.zarr::c", chunks=(16, 32), shards=(32, 32), memory="600KB")
    result = zarr.open_array("s.zarr", path="c", mode="r")
    np.testing.assert_array_equal(result[...], a @ b)
    assert (result.chunks, result.shards) == ((16, 32), (32, 32))
    with h5py.File("d.h5") as file:
        given = zarr.create_array("given.zarr", shape=(70, 90), chunks=(8, 8), dtype="f4", fill_value=np.nan)
        gm.outofcore.matmul(file["g/a"], zarr.open_array("s.zarr", path="b"), given)
        np.testing.assert_array_equal(given[...], a @ b)


def test_stored_in_one_type_and_computed_in_another(rng):
    a, b = rng.standard_normal((40, 300)).astype("f2"), rng.standard_normal((300, 50)).astype("f2")
    np.save("a.npy", a)
    np.save("b.npy", b)
    report = gm.outofcore.matmul("a.npy", "b.npy", "wide.npy", compute_dtype="float64", memory="200KB")
    wide = a.astype("f8") @ b.astype("f8")
    out = np.load("wide.npy")
    assert out.dtype == np.float64
    np.testing.assert_allclose(out, wide, rtol=0, atol=300 * 2.0**-53 * (np.abs(a) @ np.abs(b)).max())
    # What is read is counted as it is stored.
    assert report.bytes_read % 2 == 0
    assert report.bytes_read < 2 * (a.nbytes + b.nbytes) * report.tiles
    out = poisoned((40, 50), "f2")
    gm.outofcore.matmul("a.npy", "b.npy", out, compute_dtype=np.float32)
    np.testing.assert_allclose(out, wide, rtol=2.0**-10, atol=1e-3)


def test_a_failed_check_keeps_nothing(factors, monkeypatch):
    spoil_tiles(monkeypatch)
    with pytest.raises(gm.GemmuleError, match="of its bound"):
        gm.outofcore.matmul(*factors, "out.npy", verify=True)
    assert os.listdir() == []


def test_a_stopped_product_goes_on(factors):
    a, b = factors
    with interrupting() as progress:
        gm.outofcore.matmul(a, b, "out.npy", memory="120KB", progress=progress)
    assert len(os.listdir()) == 2
    changed = a.copy()
    changed[3, 4] += 1
    with pytest.raises(gm.ArgumentError, match=r"^a: was changed since"):
        gm.outofcore.matmul(changed, b, "out.npy", memory="120KB")
    report = gm.outofcore.matmul(a, b, "out.npy", memory="120KB")
    assert 0 < report.tiles_computed < report.tiles
    np.testing.assert_array_equal(np.load("out.npy"), a @ b)
    assert os.listdir() == ["out.npy"]


@pytest.mark.parametrize("look", ["transposed", "swapped", "other type", "other type to add"])
def test_the_same_bytes_looked_at_in_another_way_are_another_input(look, rng):
    x = rng.integers(0, 120, (128, 128)).astype("u1")
    a, b, c, options = x.astype("f4"), np.eye(128, dtype="f4"), x.astype("f4"), {"beta": 1}
    one, other = {"a": a, "c": c}, {"a": a.T, "c": c}
    if look == "swapped":
        one, other = {"a": a, "c": c}, {"a": a.view(">f4"), "c": c}
    elif look == "other type":
        pytest.importorskip("ml_dtypes")
        np.save("x.npy", x.view("V1"))
        one = {"a": "x.npy", "c": c, "a_dtype": "float8_e4m3fn", "compute_dtype": "float32"}
        other = {**one, "a_dtype": "float8_e5m2"}
    elif look == "other type to add":
        one, other = {"a": a, "c": c}, {"a": a, "c": c.view("i4")}
    options |= {"b": b, "out": "out.npy", "memory": "200KB"}
    with interrupting() as progress:
        gm.outofcore.matmul(**one, **options, progress=progress)
    with pytest.raises(gm.ArgumentError, match=r"was changed since the unfinished work on out.npy began"):
        gm.outofcore.matmul(**other, **options)
    report = gm.outofcore.matmul(**one, **options)
    assert 0 < report.tiles_computed < report.tiles


def test_an_input_that_changes_meanwhile_is_found(factors):
    np.save("a.npy", factors[0])

    def change(done, total):
        if done == total:
            np.save("a.npy", factors[0] + 1)

    for verify in (False, True):
        np.save("a.npy", factors[0])
        with pytest.raises(gm.ArgumentError, match=r"a.npy: was changed while out.npy was computed"):
            gm.outofcore.matmul("a.npy", factors[1], "out.npy", progress=change, verify=verify, resume=False)
    assert not os.path.exists("out.npy")
    with pytest.raises(gm.ArgumentError, match=r"a.npy: was changed since"):
        gm.outofcore.matmul("a.npy", factors[1], "out.npy")
    gm.outofcore.matmul("a.npy", factors[1], "out.npy", resume=False)
    np.testing.assert_array_equal(np.load("out.npy"), (factors[0] + 1) @ factors[1])


def test_resume_false_deletes_what_was_left(factors):
    with interrupting() as progress:
        gm.outofcore.matmul(*factors, "out.npy", memory="120KB", progress=progress)
    report = gm.outofcore.matmul(*factors, "out.npy", memory="120KB", resume=False)
    assert report.tiles_computed == report.tiles


def test_what_is_refused(factors):
    a, b = factors
    out = np.zeros((70, 90), "f4")
    whole = np.zeros((100, 100), "f4")
    with pytest.raises(gm.OverlapError, match="out shares memory with b"):
        gm.outofcore.matmul(np.ones((70, 50), "f4"), whole[50:100], whole[30:, :])
    np.lib.format.open_memmap("m.npy", "w+", "f4", (100, 100)).flush()
    maps = np.load("m.npy", mmap_mode="r+"), np.load("m.npy", mmap_mode="r+")
    with pytest.raises(gm.OverlapError, match="out shares memory with a"):
        gm.outofcore.matmul(maps[0][:10, :10], np.ones((10, 100), "f4"), maps[1][5:15])
    gm.outofcore.matmul(maps[0][:10, :10], np.ones((10, 100), "f4"), maps[1][10:20])
    with pytest.raises(gm.OverlapError, match="is the input"):
        gm.outofcore.matmul(maps[0], maps[1], "m.npy", force=True)
    out.flags.writeable = False
    with pytest.raises(gm.ArgumentError, match="out is read-only"):
        gm.outofcore.matmul(a, b, out)
    with pytest.raises(gm.ArgumentError, match="out is of type list"):
        gm.outofcore.matmul(a, b, [])
    with pytest.raises(gm.ArgumentError, match="out_dtype=float64 differs"):
        gm.outofcore.matmul(a, b, np.zeros((70, 90), "f4"), out_dtype="float64")
    with pytest.raises(gm.ShapeError, match="give out that shape"):
        gm.outofcore.matmul(a, b, np.zeros((70, 91), "f4"))
    with pytest.raises(gm.ArgumentError, match="chunks and shards are for a result that is made"):
        gm.outofcore.matmul(a, b, np.zeros((70, 90), "f4"), chunks=(2, 2))
    with pytest.raises(gm.MemoryLimitError, match="at least"):
        gm.outofcore.matmul(a, b, "out.npy", memory=1000)
    with pytest.raises(gm.DTypeError, match="is for float64 products"):
        gm.outofcore.matmul(a, b, "out.npy", precision="ozaki-15")
    with pytest.raises(gm.DTypeError, match="is for float32 products, not float64"):
        gm.outofcore.matmul(a, b, "out.npy", precision="tf32", compute_dtype="float64")
    assert os.listdir() == ["m.npy"]


def test_an_output_that_is_an_input_is_refused_and_left_alone(rng):
    zarr = pytest.importorskip("zarr")
    x, b = rng.standard_normal((60, 60), "f4"), rng.standard_normal((60, 60), "f4")
    stored = zarr.create_array("in.zarr", name="x", data=x, chunks=(20, 20))
    again = zarr.open_array("in.zarr", path="x", mode="r+")
    os.symlink("in.zarr", "link.zarr")
    store = zarr.storage.MemoryStore()
    held = zarr.create_array(store, data=x, chunks=(20, 20))
    np.save("in.npy", x)
    mapped = np.load("in.npy", mmap_mode="r+")
    logged = zarr.open_array(zarr.storage.LoggingStore(store), mode="r+")
    wrapped = zarr.open_array(zarr.storage.LoggingStore(zarr.storage.LocalStore("in.zarr")), path="x", mode="r+")
    pairs = [
        (stored, stored), (stored, again), ("in.zarr::x", stored), ("in.zarr::x", wrapped), ("link.zarr::x", stored),
        (held, held), (held, zarr.open_array(store, mode="r+")), (held, logged), ("in.npy", mapped),
    ]  # fmt: skip
    for matrix, out in pairs:
        for inputs in ({"a": matrix, "b": b}, {"a": b, "b": matrix}, {"a": b, "b": b, "c": matrix, "beta": 1}):
            with pytest.raises(gm.OverlapError, match="out is the input"):
                gm.outofcore.matmul(**inputs, out=out, memory="1MB", transpose_a=True, compute_dtype="float64")
    for left in (stored[...], held[...], np.load("in.npy")):
        np.testing.assert_array_equal(left, x)
    with pytest.raises(gm.OverlapError, match="out is the input"):
        gm.outofcore.matmul(held, b, held, memory="1MB", device_memory="1MB")


def test_an_output_that_is_like_an_input_is_written(rng):
    zarr = pytest.importorskip("zarr")
    b = rng.standard_normal((40, 40), "f4")
    # Stores in memory of equal content are not one store.
    zeros = [zarr.create_array(zarr.storage.MemoryStore(), shape=(40, 40), dtype="f4", chunks=(20, 20)) for _ in "ab"]
    gm.outofcore.matmul(zeros[0], b, zeros[1], memory="1MB")
    # A matrix that nothing is added of is not read.
    gm.outofcore.matmul(b, np.eye(40, dtype="f4"), zeros[1], c=zeros[1], beta=0, memory="1MB")
    np.testing.assert_array_equal(zeros[1][...], b)
    np.testing.assert_array_equal(zeros[0][...], 0)
