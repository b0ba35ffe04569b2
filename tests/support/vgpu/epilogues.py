"""A kernel with an epilogue on the virtual GPU."""

from __future__ import annotations

import numpy as np

import gemmule as gm
from gemmule.core.dtype import dtype_named
from support.epilogue_cases import assert_finished


def finish(case, rng, *, shape=(72, 88, 200), dtype="bfloat16", out="bfloat16", order="C", batch=()):
    m, n, k = shape
    kind, out = dtype_named(dtype).numpy(), dtype_named(out).numpy()
    a, b = rng.standard_normal((*batch, m, k)).astype(kind), rng.standard_normal((k, n)).astype(kind)
    values = {
        role: rng.standard_normal(given.shape(m, n)).astype(dtype_named(given.dtype).numpy() if given.dtype else out)
        for role, given in case.arrays.items()
    }
    if "c" in values:
        values["c"] = np.array(np.broadcast_to(values["c"], (*batch, m, n)), order=order)
    further = {role: value for role, value in values.items() if role not in ("bias", "c")} | case.numbers
    d = np.full((*batch, m, n), np.nan, order=order).astype(out, order="K")
    got = gm.gemm(
        a, b, values.get("c"), alpha=case.alpha, beta=case.beta, bias=values.get("bias"), epilogue=case.epilogue,
        epilogue_args=further or None, executor="vgpu", out=d,
    )  # fmt: skip
    assert got is d
    assert_finished(got, a, b, case, values)
