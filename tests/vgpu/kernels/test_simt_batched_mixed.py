"""simt_batched with operands narrower than its sums, which stay so in shared memory, on the virtual GPU, checks on."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.compiler.cache import artifact_for
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT16, FLOAT32, INT8
from gemmule.core.spec import Choice
from gemmule.kernels.simt.batched.config import BatchedConfig
from gemmule.kernels.simt.batched.spec import SPEC
from gemmule.vgpu import Counter, Options
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.launcher import launch
from support.oracle import assert_product, poisoned, random_matrix
from support.vgpu.kernel_products import problem_of, run_product

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Up to 8 rows or columns of one product, by a cluster along K; and small matrices of a batch.
ROWS = BatchedConfig(tile_m=8, tile_n=64, tile_k=32, matrices=1, cluster_k=4)
COLUMNS = BatchedConfig(tile_m=64, tile_n=8, tile_k=16, matrices=1)
#: As ROWS with half of its k-tile, which is compiled faster.
SHALLOW = BatchedConfig(tile_m=8, tile_n=64, tile_k=16, matrices=1, cluster_k=4)
SMALL = BatchedConfig()


def aligned(values, column_major=False):
    """Return an array with lines at multiples of 16 bytes, which end within one, before poison."""
    lines = np.swapaxes(values, -1, -2) if column_major else values
    unit = 16 // values.itemsize
    shape = (*lines.shape[:-1], (lines.shape[-1] // unit + 1) * unit)
    room = np.full(shape, np.nan if values.dtype.kind != "i" else 77).astype(values.dtype)
    room[..., : lines.shape[-1]] = lines
    found = room[..., : lines.shape[-1]]
    return np.swapaxes(found, -1, -2) if column_major else found


def multiply(a, b, out, config, c=None, alpha=1, beta=0):
    problem = problem_of(a, b, out, c, alpha, beta)
    assert SPEC.why_not(problem, virtual_arch(), config) is None
    return run_product(Choice(SPEC, config), problem, a, b, out, c)


CASES = [
    (FLOAT32, BFLOAT16, ROWS, (3, 71, 139), (False, False)),
    (FLOAT32, BFLOAT16, SHALLOW, (7, 70, 141), (True, True)),
    pytest.param(FLOAT32, FLOAT16, SHALLOW, (1, 65, 77), (False, True), marks=pytest.mark.slow),
    (FLOAT32, INT8, SHALLOW, (5, 77, 130), (False, False)),
    (FLOAT32, FLOAT8_E4M3, ROWS, (8, 67, 33), (False, True)),
    (BFLOAT16, FLOAT16, ROWS, (2, 90, 67), (False, False)),
    pytest.param(FLOAT16, FLOAT32, COLUMNS, (71, 3, 45), (False, False), marks=pytest.mark.slow),
    (INT8, FLOAT32, COLUMNS, (70, 7, 45), (True, True)),
]


@pytest.mark.parametrize(("first", "second", "config", "shape", "columns"), CASES, ids=str)
def test_lines_that_end_anywhere(first, second, config, shape, columns, rng):
    m, n, k = shape
    a, b = (
        aligned(random_matrix(rng, first, (1, m, k)), columns[0]),
        aligned(random_matrix(rng, second, (1, k, n)), columns[1]),
    )
    c = random_matrix(rng, FLOAT32, (1, m, n))
    assert_product(multiply(a, b, poisoned(FLOAT32, (1, m, n)), config), a, b)
    assert_product(multiply(a, b, poisoned(FLOAT32, (1, m, n)), config, c, 0.75, -1.5), a, b, c, 0.75, -1.5)


@pytest.mark.parametrize("result", ["C", "F"])
def test_batches_and_both_orders_of_the_result(result, rng):
    a = random_matrix(rng, FLOAT32, (11, 20, 24))
    b = np.broadcast_to(aligned(random_matrix(rng, BFLOAT16, (1, 24, 18))), (11, 24, 18))
    out = poisoned(FLOAT32, (11, 18, 20)).swapaxes(-1, -2) if result == "F" else poisoned(FLOAT32, (11, 20, 18))
    assert_product(multiply(a, b, out, SMALL), a, b)


@pytest.mark.parametrize("config", [ROWS, pytest.param(SMALL, marks=pytest.mark.slow)], ids=str)
def test_nothing_to_multiply(config, rng):
    a, b = np.full((2, 5, 0), np.nan, np.float32), np.full((2, 0, 16), 3).astype(BFLOAT16.numpy())
    c = random_matrix(rng, FLOAT32, (2, 5, 16))
    np.testing.assert_array_equal(multiply(a, b, poisoned(FLOAT32, c.shape), config), 0)
    np.testing.assert_array_equal(multiply(a, b, poisoned(FLOAT32, c.shape), config, c, 1, -1.0), -c)


@pytest.mark.parametrize(("second", "columns"), [(BFLOAT16, False), (BFLOAT16, True), (INT8, False)], ids=str)
def test_each_weight_is_copied_once_as_it_is(second, columns, rng):
    m, n, k = 8, 128, 512
    a, b = random_matrix(rng, FLOAT32, (1, m, k)), random_matrix(rng, second, (1, k, n))
    b = np.asfortranarray(b[0])[None] if columns else b
    d = poisoned(FLOAT32, (1, m, n))
    problem, counter = problem_of(a, b, d), Counter()
    artifact = artifact_for(SPEC, ROWS, SPEC.signature(problem, ROWS), virtual_arch())
    arrays = {"a": a, "b": b, "d": d}
    launch(artifact, SPEC.launch(problem, ROWS), arrays, options=Options(checks=True), observers=(counter,))
    assert_product(d, a, b)
    counts, k_tiles = counter.counts, n // ROWS.tile_n * k // ROWS.tile_k
    # A once for each tile of 64 columns.
    assert counts.total("bytes", "async copy") == n // ROWS.tile_n * a.nbytes + b.nbytes
    # An element of 2 bytes takes one conversion, one of a byte two; others are of addresses.
    conversions = k_tiles * ROWS.thread_n * ROWS.tile_k * 2 // second.itemsize
    assert conversions <= counts.total("warps", "convert") < conversions * 1.1
    # Each read of K-major lines, of half a vector, takes as many wavefronts as one of a vector.
    assert counts.bank_conflicts == (k_tiles * ROWS.thread_n * ROWS.tile_k // 4 if columns else 0)


def test_operands_that_no_copy_takes_are_refused():
    a, b = np.zeros((5, 33), np.float32), np.zeros((33, 70), BFLOAT16.numpy())
    for b_refused in (b[:, 1:65], b[:, ::2], b):
        with pytest.raises(gm.UnsupportedError, match="lines that begin at multiples of 16 bytes"):
            gm.matmul.plan(a, b_refused, executor="vgpu", kernel="simt_batched")
