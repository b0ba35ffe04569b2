"""A short run of every kernel for compute-sanitizer, on buffers that end where the arrays end.

export PYTHONPATH=tests:tests/gpu
compute-sanitizer --tool memcheck --error-exitcode 1 python tests/gpu/memcheck.py
compute-sanitizer --tool memcheck --error-exitcode 1 python tests/gpu/memcheck.py --plant    # must fail
compute-sanitizer --tool racecheck --error-exitcode 1 python tests/gpu/memcheck.py
compute-sanitizer --tool memcheck --error-exitcode 1 python tests/gpu/memcheck.py t14 t15    # kernels of these names
"""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
from device_arrays import STREAM, DeviceMatrix, strides_of
from oracle import assert_product, random_matrix

from gemmule.core.dtype import DTYPES, opaque_dtype
from gemmule.core.permutation import transpose_problem
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel

RNG = np.random.default_rng()
#: Kernels that start copies of 16 bytes and ask for fewer (cp.async with a src-size): the sanitizer takes them to read
#: all 16, so that their buffers end where such a copy does. The virtual GPU knows better, and checks every byte.
PARTIAL_COPIES = {"h01_mma_sync": 16}


def check_gemm(spec, config, dtype, shape, kinds, offset, planted):
    m, n, k = shape
    chunk = PARTIAL_COPIES.get(spec.name, 1)
    a, b, c = (random_matrix(RNG, dtype, s) for s in ((m, k), (k, n), (m, n)))
    with (
        DeviceMatrix(dtype, a.shape, strides_of(kinds[0], (), m, k), offset, chunk) as da,
        DeviceMatrix(dtype, b.shape, strides_of(kinds[1], (), k, n), offset, chunk) as db,
        DeviceMatrix(dtype, c.shape, strides_of(kinds[2], (), m, n), offset, chunk) as dd,
    ):
        da.put(a), db.put(b), dd.put(c)
        problem = GemmProblem(m, n, k, (), da.matrix(), db.matrix(), dd.matrix(), dd.matrix(), 1, 1)
        if spec.why_not(problem, get_device().arch, config):
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
        assert_product(dd.get(), a, b, c, 1, 1)
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


def main() -> None:
    planted = "--plant" in sys.argv
    names = tuple(word for word in sys.argv[1:] if word != "--plant")
    shapes = [(1, 1, 1), (65, 63, 17), (64, 64, 16), (130, 3, 50), (256, 256, 48), (132, 260, 36)]
    runs = 0
    for spec in REGISTRY:
        if names and not spec.name.startswith(names):
            continue
        print(spec.name, flush=True)
        # Tiles of t14 that lie within a matrix are as large as that.
        for shape in [*shapes, (301, 523, 1)] if spec.operation == "transpose" else shapes:
            for kinds in [("row", "row", "row"), ("col", "col", "col"), ("padded", "reversed", "gapped")]:
                for offset in (0, 1):
                    if spec.operation == "gemm":
                        runs += sum(
                            check_gemm(spec, config, dtype, shape, kinds, offset, planted)
                            for config in spec.configs
                            for dtype in DTYPES
                        )
                    else:
                        runs += sum(
                            check_transpose(spec, config, size, shape[:2], kinds[1:], offset)
                            for config in spec.configs
                            for size in (1, 2, 4, 8, 16)
                        )
    print(runs, "kernel runs")


if __name__ == "__main__":
    main()
