"""A resumed product has the bits of an unbroken one: what decides them follows from the journal alone."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import gemmule as gm
from gemmule.core.errors import ArgumentError
from gemmule.host import blas, block_product
from gemmule.host.block_product import add_in_blocks
from gemmule.outofcore.device.planner.operation import Multiply
from gemmule.outofcore.device.planner.plan import DevicePlan
from gemmule.outofcore.device.planner.schedule import operations
from gemmule.outofcore.tiles.plan import Operand, Product
from support.outofcore.killed_products import hidden, interrupting, journal_of
from support.system_calls import replaced

F4 = np.dtype("f4")
settable = pytest.mark.skipif(blas._function("set_num_threads") is None, reason="NumPy has no OpenBLAS")


@pytest.fixture
def threads():
    """Return a function that sets the threads of BLAS until the test ends."""
    before, change = blas.thread_count(), blas._function("set_num_threads")
    yield change
    change(before)


@pytest.fixture
def folder(rng, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Two runs that start afresh shall have the same plan, which measured rates would decide.
    monkeypatch.setattr("gemmule.outofcore.calls.devices._host_rate", lambda out: 2e10)
    np.save("A.npy", rng.standard_normal((250, 90), "f4"))
    np.save("B.npy", rng.standard_normal((90, 250), "f4"))
    np.save("L.npy", rng.standard_normal((700, 700), "f4"))
    return tmp_path


#: Both factors, and what is streamed through the host as a device; or as tiles large enough for whole calls of BLAS.
PRODUCTS = {
    "gram": ("A.npy", "A.npy", {"transpose_b": True, "device_memory": "200KB", "pinned_memory": "128KB"}),
    "slices": ("A.npy", "B.npy", {"device_memory": "150KB", "pinned_memory": "128KB", "strategy": "c-stationary"}),
    "tiles": ("L.npy", "L.npy", {"memory": "12MB"}),
}


def stopped(a, b, options):
    """Begin a product that leaves some tiles behind."""
    with interrupting(rectangles=16 if a == b else 6) as progress:
        gm.outofcore.matmul(a, b, "C.npy", executor="cpu", **options, progress=progress)


def journal_header():
    """Return the header of the journal of C.npy."""
    return json.loads(Path(journal_of("C.npy")).read_bytes().split(b"\n", 1)[0].rpartition(b" ")[0])


def change_header(**fields):
    """Change fields of the header of the journal of C.npy."""
    path = Path(journal_of("C.npy"))
    rest = path.read_bytes().split(b"\n", 1)[1]
    text = json.dumps(journal_header() | fields, separators=(",", ":")).encode()
    path.write_bytes(text + b" %08x\n" % zlib.crc32(text) + rest)


@settable
@pytest.mark.parametrize("name", list(PRODUCTS))
def test_it_goes_on_with_the_threads_that_it_began_with(folder, threads, name, monkeypatch):
    # Tiles of a test are small.
    monkeypatch.setattr(block_product, "SMALL_PRODUCT", 2**20)
    monkeypatch.setattr("gemmule.outofcore.calls.host_engine.SMALL_PRODUCT", 2**20)
    a, b, options = PRODUCTS[name]
    threads(3)
    gm.outofcore.matmul(a, b, "whole.npy", executor="cpu", **options)
    stopped(a, b, options)
    threads(1)
    report = gm.outofcore.matmul(a, b, "C.npy", executor="cpu", **options)
    assert 0 < report.tiles_computed < report.tiles
    assert blas.thread_count() == 1
    assert Path("C.npy").read_bytes() == Path("whole.npy").read_bytes()


def test_less_memory_than_was_planned_is_refused_in_its_unit(folder):
    a, b, options = PRODUCTS["tiles"]
    stopped(a, b, options)
    remedy = r"4 MB is too small to go on .*; give memory='[\d.]+MB' or more, or start afresh with resume=False$"
    with pytest.raises(gm.MemoryLimitError, match=remedy):
        gm.outofcore.matmul(a, b, "C.npy", executor="cpu", memory="4MB")


_BITS_BY_THREADS = """
import numpy as np
from gemmule.host import blas

x, change, found = np.load("A.npy")[:84], blas._function("set_num_threads"), set()
for count in (1, 2, 3):
    change(count)
    found.add((x @ x.T).tobytes())
print(len(found))
"""


@settable
@pytest.mark.skipif(platform.machine() != "x86_64", reason="OpenBLAS has kernels of other names there")
def test_threads_decide_bits(folder, monkeypatch):
    """In a process of its own, whose BLAS nothing else has used; not all of OpenBLAS's kernels do so at this size."""
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    done = subprocess.run([sys.executable, "-c", _BITS_BY_THREADS], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 1


@settable
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", [(1, 1, 300_000), (1, 641, 2000), (641, 1, 2000), (129, 641, 300), (2, 3, 90_000)])
def test_threads_do_not_decide_the_bits_of_small_products(rng, threads, shape, dtype):
    m, n, k = shape
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    found = set()
    for count in (1, 2, 3, 7):
        threads(count)
        total = np.empty((m, n), dtype)
        add_in_blocks(total, a, b, fresh=True)
        found.add(total.tobytes())
    assert len(found) == 1
    # Roundings of sums of normal numbers come to a hundredth of it; a term that is missing, or a block, is more.
    np.testing.assert_allclose(total, a @ b, rtol=0, atol=32 * k * np.finfo(dtype).eps)


def test_another_blas_is_refused(folder, monkeypatch):
    """Threads of a BLAS that does not tell are those of the environment."""

    def use(threads):
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))

    replaced(monkeypatch, "sched_getaffinity", lambda _: set(range(4)))
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(blas, "_function", lambda name: None)
    use(2)
    a, b, options = PRODUCTS["slices"]
    stopped(a, b, options)
    use(3)
    with pytest.raises(ArgumentError, match=r"2 BLAS threads, and .* uses 3 here; .* OMP_NUM_THREADS=2, or start"):
        gm.outofcore.matmul(a, b, "C.npy", executor="cpu", **options)
    use(2)
    assert gm.outofcore.matmul(a, b, "C.npy", executor="cpu", **options).tiles_computed > 0
    assert hidden() == []


@pytest.mark.parametrize("count", [0, -1, True, 1.0, "2", 10**6])
def test_a_number_of_threads_that_gemmule_cannot_have_noted_is_refused(folder, count):
    a, b, options = PRODUCTS["slices"]
    stopped(a, b, options)
    assert journal_header()["blas_threads"] == blas.thread_count()
    change_header(blas_threads=count)
    with pytest.raises(gm.FileFormatError, match=f"blas_threads is {count!r}"):
        gm.outofcore.matmul(a, b, "C.npy", executor="cpu", **options)


def test_the_former_name_of_a_strategy_is_read_in_calls_and_journals(folder):
    a, b, options = PRODUCTS["slices"]
    options = options | {"strategy": "paper"}
    gm.outofcore.matmul(a, b, "whole.npy", executor="cpu", **options)
    stopped(a, b, options)
    plan = journal_header()["plan"]
    assert plan["strategy"] == "five-buffers"
    change_header(plan=plan | {"strategy": "paper"})
    report = gm.outofcore.matmul(a, b, "C.npy", executor="cpu", **options)
    assert report.strategy == "five-buffers"
    assert 0 < report.tiles_computed < report.tiles
    assert Path("C.npy").read_bytes() == Path("whole.npy").read_bytes()
    with pytest.raises(ArgumentError, match="did you mean 'panels'"):
        gm.outofcore.matmul(a, b, "D.npy", executor="cpu", strategy="panel")


def test_small_tiles_note_no_threads(folder):
    options = {"memory": "600KB"}
    stopped("A.npy", "B.npy", options)
    assert '"blas_threads":null' in Path(journal_of("C.npy")).read_text()


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("strategy", ["c-stationary", "panels", "five-buffers", "resident-c"])
def test_what_is_there_already_decides_no_shapes(strategy, devices):
    symmetric = strategy == "resident-c"
    b = Operand(F4, "F") if symmetric else Operand(F4)
    product = Product(3000, 3000, 400, Operand(F4), b, Operand(F4))
    depth = 400 if strategy == "panels" else 128
    plan = DevicePlan(
        product, "float32", strategy, 1000, 1000, depth, 6 if symmetric else 2, (6, 0) if symmetric else (2, 2),
        symmetric=symmetric, strips=4, devices=devices, ramps=(1, 1, 4),
    )  # fmt: skip

    def shapes(done=()):
        found = {}
        for op in operations(plan, done):
            if isinstance(op, Multiply):
                found.setdefault(op.tile, []).append((op.rows, op.cols, op.inner, op.first, op.last))
        return found

    tiles = list(plan.order())
    parts = [set(tiles) - set(share) for share in plan.shares(devices)]
    unbroken = {tile: each for part in parts for tile, each in shapes(part).items()}
    assert len(unbroken) == len(tiles)
    if strategy != "five-buffers":
        assert any(rows[1] - rows[0] < 1000 for each in unbroken.values() for rows, *_ in each)
    for left in (tiles[:1], tiles[:-1], tiles[1:-2], tiles[::2]):
        # On one device, and shared by others than before.
        for count in (1, 2):
            for share in plan.shares(count, set(tiles) - set(left)):
                again = shapes(set(tiles) - set(share))
                assert again == {tile: unbroken[tile] for tile in share}
    assert shapes() == unbroken
