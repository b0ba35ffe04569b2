"""A short run of every kernel for compute-sanitizer, on buffers that end where the arrays end.

export PYTHONPATH=tests
compute-sanitizer --tool memcheck --error-exitcode 1 python tests/gpu/memcheck.py
compute-sanitizer --tool memcheck --error-exitcode 1 python tests/gpu/memcheck.py --plant    # must fail
compute-sanitizer --tool racecheck --error-exitcode 1 python tests/gpu/memcheck.py
compute-sanitizer --tool memcheck --error-exitcode 1 python tests/gpu/memcheck.py t10 t11    # kernels of these prefixes
compute-sanitizer --tool racecheck --error-exitcode 1 python tests/gpu/memcheck.py mma_ --part 3/16    # of 16
compute-sanitizer --tool initcheck --error-exitcode 1 python tests/gpu/memcheck.py hopper_syrk --runs 2    # two of them

Most of the time is the compiler's: processes that each take a part of the configs and dtypes compile side by side.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools

import numpy as np

from gemmule.core.block_triangle import STEP, BlockTriangle
from gemmule.core.dtype import DTYPES, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT32, INT8, INT32, Precision, opaque_dtype
from gemmule.core.errors import DTypeError
from gemmule.core.permutation import transpose_problem
from gemmule.core.problem import GemmProblem, mark_own_transpose
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from support.gpu.device_arrays import STREAM, DeviceMatrix, strides_of
from support.oracle import assert_product, random_matrix

RNG = np.random.default_rng()
#: Kernels that start copies of 16 bytes and ask for fewer (cp.async with a src-size): the sanitizer takes them to read
#: all 16, so that their buffers end where such a copy does. The virtual GPU knows better, and checks every byte.
PARTIAL_COPIES = {"mma_sync_gemm": 16, "mma_sync_unaligned": 16}
#: Kernels of a block lower triangle.
TRIANGLES = ("simt_syrk", "float64_syrk")
SHAPES = [(1, 1, 1), (65, 63, 17), (64, 64, 16), (130, 3, 50), (256, 256, 48), (132, 260, 36)]
LAYOUTS = [("row", "row", "row"), ("col", "col", "col"), ("padded", "reversed", "gapped"), ("row", "col", "row")]
#: Results of kernels that do not write the type of A.
WIDE = {FLOAT8_E4M3: FLOAT32, FLOAT8_E5M2: FLOAT32, INT8: INT32}
#: For a few runs: whole tiles and parts of them, in layouts of which every kernel takes some.
FEW_SHAPES = [(144, 272, 160), (131, 267, 75)]
FEW_LAYOUTS = [("row", "row", "row"), ("row", "col", "row"), ("whole", "whole", "row"), ("col", "row", "row")]


def precisions(dtype):
    """Every precision that may be asked for with factors of this type, the default one first."""
    found = []
    for precision in Precision:
        with contextlib.suppress(DTypeError):
            found.append(Precision.of_inputs(precision, (dtype.name, dtype.name)))
    return found


def values(dtype, precision, shape):
    """What all precisions multiply exactly, but where nothing is rounded that the default keeps."""
    if precision is Precision.IEEE:
        return random_matrix(RNG, dtype, shape)
    return RNG.integers(-4, 4, shape, endpoint=True).astype(dtype.numpy())


def check_gemm(spec, config, dtype, precision, shape, kinds, offset, planted, result=None):
    m, n, k = shape
    chunk = PARTIAL_COPIES.get(spec.name, 1)
    result = result or dtype
    a, b, c = (values(x, precision, s) for x, s in ((dtype, (m, k)), (dtype, (k, n)), (result, (m, n))))
    with (
        DeviceMatrix(dtype, a.shape, strides_of(kinds[0], (), m, k), offset, chunk) as da,
        DeviceMatrix(dtype, b.shape, strides_of(kinds[1], (), k, n), offset, chunk) as db,
        DeviceMatrix(result, c.shape, strides_of(kinds[2], (), m, n), offset, chunk) as dd,
    ):
        da.put(a), db.put(b), dd.put(c)
        default = GemmProblem(m, n, k, (), da.matrix(), db.matrix(), dd.matrix(), dd.matrix(), 1, 1)
        stairs = BlockTriangle(0, STEP) if spec.name in TRIANGLES else None
        problem = dataclasses.replace(default, precision=precision, needed=stairs)
        arch = get_device().arch
        if spec.why_not(problem, arch, config):
            return 0
        if precision is not Precision.IEEE and spec.why_not(default, arch, config) is None:
            # What is more exact than it must be was run so already.
            return 0
        if planted:
            problem = dataclasses.replace(problem, m=m + 4096)
        run_kernel(
            problem,
            Choice(spec, config),
            {"a": da.address, "b": db.address, "c": dd.address, "d": dd.address},
            0,
            STREAM,
        )
        got = dd.get()
        for top in range(0, m, STEP if stairs else max(m, 1)):
            rows, cols = slice(top, top + STEP if stairs else m), slice(stairs.columns(top) if stairs else n)
            assert_product(got[rows, cols], a[rows], b[:, cols], c[rows, cols], 1, 1)
    return 1


def check_own_transpose(spec, config, dtype, precision, shape, kinds, offset):
    m, _, k = shape
    a, d = (values(dtype, precision, s) for s in ((m, k), (m, m)))
    with (
        DeviceMatrix(dtype, a.shape, strides_of(kinds[0], (), m, k), offset) as da,
        DeviceMatrix(dtype, d.shape, strides_of(kinds[2], (), m, m), offset) as dd,
    ):
        da.put(a), dd.put(d)
        one = da.matrix()
        problem = GemmProblem(m, m, k, (), one, one.transposed(), None, dd.matrix(), precision=precision)
        problem = mark_own_transpose(problem, same=True)
        if spec.why_not(problem, get_device().arch, config):
            return 0
        run_kernel(problem, Choice(spec, config), {"a": da.address, "b": da.address, "d": dd.address}, 0, STREAM)
        assert_product(dd.get(), a, a.T)
    return 1


def check_transpose(spec, config, itemsize, shape, kinds, offset):
    dtype = opaque_dtype(itemsize)
    values = np.frombuffer(RNG.bytes(shape[0] * shape[1] * itemsize), dtype.numpy()).reshape(shape)
    source_strides, target_strides = strides_of(kinds[0], (), *shape), strides_of(kinds[1], (), *shape[::-1])
    with (
        DeviceMatrix(dtype, shape, source_strides, offset) as ds,
        DeviceMatrix(dtype, shape[::-1], target_strides, offset) as dt,
    ):
        ds.put(values)
        alignments = tuple(x.address & -x.address for x in (ds, dt))
        problem = transpose_problem(shape[::-1], source_strides[::-1], target_strides, itemsize, alignments)
        if spec.why_not(problem, get_device().arch, config):
            return 0
        run_kernel(problem, Choice(spec, config), {"a": ds.address, "d": dt.address}, 0, STREAM)
        assert dt.get().tobytes() == values.T.tobytes()
    return 1


def part(text: str) -> tuple[int, int]:
    """Read I/N, the I-th of N parts, counted from 0."""
    index, parts = map(int, text.split("/"))
    if not 0 <= index < parts:
        raise argparse.ArgumentTypeError(f"{text}: parts are counted from 0/{parts} to {parts - 1}/{parts}")
    return index, parts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="what the kernels' names begin with")
    parser.add_argument("--plant", action="store_true", help="read and write beyond the arrays, which must be found")
    parser.add_argument("--part", type=part, default=(0, 1), metavar="I/N")
    parser.add_argument("--runs", type=int, help="kernel runs of each kernel, as few shapes as that needs")
    asked = parser.parse_args()
    names = tuple(asked.names)
    runs = 0
    for spec in REGISTRY:
        if names and not spec.name.startswith(names):
            continue
        print(spec.name, flush=True)
        runs += sum(itertools.islice(runs_of(spec, asked), asked.runs))
    print(runs, "kernel runs")


def runs_of(spec, asked):
    """Yield 1 for each run of a kernel."""
    index, parts = asked.part
    gemm = spec.operation == "gemm"
    shapes, layouts = (SHAPES, LAYOUTS) if asked.runs is None else (FEW_SHAPES, FEW_LAYOUTS)
    # Tiles of transpose_whole_sectors that lie within a matrix are as large as that.
    places = [*itertools.product(shapes if gemm else [*shapes, (301, 523, 1)], layouts, (0, 1))]
    artifacts = [*itertools.product(spec.configs, DTYPES if gemm else (1, 2, 4, 8, 16))]
    for config, element in artifacts[index::parts]:
        for shape, kinds, offset in places:
            if not gemm:
                found = check_transpose(spec, config, element, shape[:2], kinds[1:], offset)
                yield from [1] * found
                continue
            for precision in precisions(element):
                if spec.is_syrk:
                    found = check_own_transpose(spec, config, element, precision, shape, kinds, offset)
                else:
                    found = check_gemm(spec, config, element, precision, shape, kinds, offset, asked.plant)
                    if not found and element in WIDE:
                        result = WIDE[element]
                        found = check_gemm(spec, config, element, precision, shape, kinds, offset, asked.plant, result)
                yield from [1] * found


if __name__ == "__main__":
    main()
