"""Products by single kernels on a GPU, of operands laid out in every way."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from gemmule.core.dtype import Precision, dtype_named
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.runtime.device import get_device
from gemmule.runtime.execute import run_kernel
from support.gpu.device_arrays import STREAM, DeviceMatrix, strides_of


def multiply(
    spec, a, b, out, *, kinds=("row", "row", "row"), c=None, alpha=1, beta=0, batch=(), offset=0, config=None,
    precision=Precision.IEEE,
):  # fmt: skip
    """Run one kernel on NumPy arrays laid out in device memory as told; return the result.

    Without a config, in the first that takes the product.
    """
    (m, k), n = a.shape[-2:], b.shape[-1]
    with ExitStack() as stack:

        def device(array, kind, fill):
            dtype = dtype_named(array.dtype.name)
            strides = strides_of(kind, batch, *array.shape[-2:])
            shape = (*batch, *array.shape[-2:])
            return stack.enter_context(DeviceMatrix(dtype, shape, strides, offset)).put(fill)

        da, db = device(a, kinds[0], a), device(b, kinds[1], b)
        dd = device(out, kinds[2], out)
        dc = device(c, kinds[2], c) if c is not None else None
        problem = GemmProblem(
            m, n, k, batch, da.matrix(), db.matrix(), dc.matrix() if dc and beta else None, dd.matrix(), alpha, beta,
            precision,
        )  # fmt: skip
        able = (config for config in spec.configs if spec.why_not(problem, get_device().arch, config) is None)
        config = config or next(able, spec.default)
        if reason := spec.why_not(problem, get_device().arch, config):
            pytest.skip(reason)
        pointers = {"a": da.address, "b": db.address, "d": dd.address} | ({"c": dc.address} if dc else {})
        run_kernel(problem, Choice(spec, config), pointers, 0, STREAM)
        return dd.get()
