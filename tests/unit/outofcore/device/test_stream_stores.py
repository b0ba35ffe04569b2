"""Products through a device from and to stores: whole chunks and shards, stored types, going on after a stop."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import gemmule as gm
from gemmule.outofcore.stores.formats.zarr_sink import ZarrSink
from support.outofcore.killed_products import await_tile

zarr = pytest.importorskip("zarr")
h5py = pytest.importorskip("h5py")


@pytest.fixture
def stores(rng, tmp_path, monkeypatch):
    """A in a Zarr store as float16, B in an HDF5 file in chunks, C0 in a .npy file: small integers."""
    monkeypatch.chdir(tmp_path)
    a, b, c = (rng.integers(-4, 5, shape) for shape in ((230, 170), (170, 190), (230, 190)))
    zarr.create_array("s.zarr", name="a", data=a.astype("f2"), chunks=(48, 32))
    with h5py.File("d.h5", "w") as file:
        file.create_dataset("g/b", data=b.astype("f4"), chunks=(50, 64), compression="gzip")
    np.save("c.npy", c.astype("f4"))
    return a, b, c


def product(out, **more):
    return gm.outofcore.matmul(
        "s.zarr::a", "d.h5::g/b", out, c="c.npy", alpha=2, beta=-3, compute_dtype="float32", executor="cpu",
        **{"device_memory": "80KB", "pinned_memory": "128KB", "chunks": (16, 24), "shards": (32, 48), **more},
    )  # fmt: skip


@pytest.mark.parametrize("strategy", ["c-stationary", "panels", "five-buffers"])
def test_stores_through_a_device(stores, strategy):
    a, b, c = stores
    report = product("out.zarr::x", strategy=strategy, device_memory="150KB" if strategy == "panels" else "80KB")
    found = zarr.open_array("out.zarr", path="x", mode="r")
    assert (found.chunks, found.shards, found.dtype) == ((16, 24), (32, 48), np.float32)
    np.testing.assert_array_equal(found[...], 2 * a @ b - 3 * c)
    assert report.strategy == strategy
    assert report.tiles > 4, report
    assert report.tile_m % 32 == report.tile_n % 48 == 0
    assert set(report.staged) == {"a", "b", "c", "out"}


def test_a_stopped_product_into_a_store_goes_on(stores, monkeypatch):
    a, b, c = stores
    write, calls, most = ZarrSink.write, itertools.count(1), [1 << 30]

    def counting(self, *arguments):
        if next(calls) > most[0]:
            await_tile("out.zarr")
            raise OSError("the disk is gone")
        return write(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ZarrSink, "write", counting)
        whole = product("whole.zarr")
        every = next(calls) - 1
        assert every >= whole.tiles > 4
        calls, most = itertools.count(1), [every * 3 // 4]
        with pytest.raises(OSError, match="the disk is gone"):
            product("out.zarr")
    told = product("out.zarr")
    assert 0 < told.tiles_computed < whole.tiles
    np.testing.assert_array_equal(zarr.open_array("out.zarr", mode="r")[...], 2 * a @ b - 3 * c)


def test_a_gram_matrix_into_a_store_with_oblong_blocks(stores):
    a = stores[0]
    report = gm.outofcore.matmul(
        "s.zarr::a", "s.zarr::a", "out.zarr", transpose_a=True, compute_dtype="float32", executor="cpu",
        device_memory="100KB", chunks=(20, 30),
    )  # fmt: skip
    np.testing.assert_array_equal(zarr.open_array("out.zarr", mode="r")[...], a.T @ a)
    assert report.tile_m == report.tile_n
    assert report.tile_m % 60 == 0
