"""Products on the host under tiny memory budgets: few calls and tiles, or a refusal with a budget that serves."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.errors import MemoryLimitError
from gemmule.host import block_product
from gemmule.host.tiles import HostTileExecutor
from gemmule.outofcore.stores.arrays import ArraySource
from gemmule.outofcore.stores.formats.npy_sink import NpySink
from gemmule.outofcore.stores.formats.npy_source import NpySource
from gemmule.outofcore.tiles.memory_budget import parse_bytes
from gemmule.outofcore.tiles.plan import StreamPlan
from support.outofcore.tile_products import plan_tiles
from support.system_calls import replaced, shortened


def planned(m: int, k: int, n: int, dtype: str, memory: str) -> StreamPlan:
    a, b = (ArraySource(np.broadcast_to(np.zeros((), dtype), shape), "a") for shape in ((m, k), (k, n)))
    return plan_tiles(a, b, (m, n), np.dtype(dtype), HostTileExecutor(tiny=True), memory=parse_bytes(memory))


@pytest.mark.parametrize(("dtype", "memory"), [("f4", "4MiB"), ("f8", "4MiB"), ("f8", "6MiB"), ("i4", "4MiB")])
def test_a_tiny_budget_takes_few_tiles_and_reads(dtype, memory):
    plan = planned(3000, 2500, 3000, dtype, memory)
    assert plan.memory_bytes <= parse_bytes(memory)
    assert plan.tiles <= (800 if dtype == "i4" else 400)
    assert plan.bytes_read() < 1.6e9


@pytest.mark.parametrize(("dtype", "memory"), [("f4", "300KiB"), ("f8", "1MiB")])
def test_a_budget_that_takes_far_too_long_is_refused_with_one_that_serves(dtype, memory):
    with pytest.raises(MemoryLimitError, match=r"^memory limit .* over twice as long as need be; give memory=") as no:
        planned(3000, 2500, 3000, dtype, memory)
    serves = re.search("give memory='(.*)' or more", str(no.value))
    assert serves is not None
    assert parse_bytes(serves[1]) <= parse_bytes("4MiB")
    planned(3000, 2500, 3000, dtype, serves[1])


@pytest.mark.parametrize(("m", "k", "n"), [(300, 300, 300), (120, 90, 160), (1000, 0, 1000), (1000, 8, 1000)])
def test_short_work_is_never_refused(m, k, n):
    planned(m, k, n, "f4", "280KB")


def test_the_refusal_reaches_the_caller(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMULE_EXECUTOR", "cpu")
    a = np.broadcast_to(np.float32(1), (3000, 3000))
    with pytest.raises(MemoryLimitError, match=r"memory limit 512 KiB cuts this product into [0-9]+ tiles of"):
        gm.outofcore.matmul(a, a, tmp_path / "C.npy", memory="512KiB")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def blas_variables(monkeypatch):
    """Return a function that sets variables of BLAS on a computer with eight processors."""
    replaced(monkeypatch, "sched_getaffinity", lambda _: set(range(8)))

    def use(**variables):
        for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return use


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
@pytest.mark.parametrize(("m", "k", "n"), [(131, 1000, 200), (33, 5001, 70), (70, 900, 500), (1, 300_000, 3)])
def test_any_number_of_threads_gives_the_same_bits(dtype, m, k, n, blas_variables):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((m, k)).astype(dtype), np.asfortranarray(rng.standard_normal((k, n))).astype(dtype)
    found = []
    for threads in (1, 2, 7):
        blas_variables(OMP_NUM_THREADS=str(threads))
        assert block_product.blas_threads() == threads
        total = np.full((m, n), np.nan, dtype)
        block_product.add_in_blocks(total, a, b, fresh=True)
        block_product.add_in_blocks(total, a, b, fresh=False)
        found.append(total)
    assert {total.tobytes() for total in found} == {found[0].tobytes()}
    np.testing.assert_allclose(found[0], 2 * (a @ b), rtol=1e-3 if dtype == "f4" else 1e-9, atol=1e-2)


def test_threads_work_in_a_forked_process():
    a = np.ones((256, 256))
    total = np.empty((256, 256))
    block_product.add_in_blocks(total, a, a, fresh=True)
    child = os.fork()
    if not child:
        total[...] = 0
        block_product.add_in_blocks(total, a, a, fresh=True)
        os._exit(0 if (total == 256).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("variables", "threads"),
    [({}, 8), ({"OPENBLAS_NUM_THREADS": "3"}, 3), ({"OMP_NUM_THREADS": "1"}, 1), ({"OMP_NUM_THREADS": "99"}, 8),
     ({"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "1"}, 2), ({"OMP_NUM_THREADS": "4,2"}, 8)],
)  # fmt: skip
def test_threads_are_as_many_as_blas_uses(variables, threads, blas_variables):
    blas_variables(**variables)
    assert block_product.blas_threads() == threads


def test_errors_of_numbers_are_ignored_in_threads(monkeypatch, blas_variables):
    blas_variables(OMP_NUM_THREADS="3")
    monkeypatch.setattr(block_product, "_pool", lambda *_: ThreadPoolExecutor(2))
    a = np.full((300, 300), 1e300)
    total = np.empty((300, 300))
    block_product.add_in_blocks(total, a, a, fresh=True)
    block_product.add_in_blocks(total, a, -a, fresh=False)
    assert np.isnan(total).all()


def test_lines_that_come_in_parts_are_read_and_written_whole(tmp_path, monkeypatch):
    path = tmp_path / "a.npy"
    matrix = np.arange(35.0).reshape(5, 7)
    np.save(path, matrix)
    shortened(monkeypatch, "preadv", 9)
    shortened(monkeypatch, "pwrite", 5)
    with NpySource(path) as source, NpySink(tmp_path / "b.npy", (5, 7), source.dtype) as sink:
        for cols in (slice(0, 3), slice(3, 7)):
            piece = np.empty((5, cols.stop - cols.start))
            source.read(slice(0, 5), cols, piece)
            np.testing.assert_array_equal(piece, matrix[:, cols])
            sink.write(0, cols.start, piece)
        sink.commit()
    monkeypatch.undo()
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), matrix)
