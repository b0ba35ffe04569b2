"""Host arrays through a GPU: every matrix of the batch at once where it fits, streamed where it does not."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from gemmule.core.dtype import Precision
from gemmule.core.problem import GemmProblem
from gemmule.dispatch.select import choose
from gemmule.outofcore.calls.device_engine import Limits, beside_parts, plan_device_engine
from gemmule.outofcore.calls.devices import sums_of, threads_for_copies, usual_staging
from gemmule.outofcore.calls.request import Request
from gemmule.outofcore.device.engine.streaming import Settings
from gemmule.outofcore.device.planner.budgets import Budgeted, Budgets, Staging, choose_within
from gemmule.outofcore.device.planner.rates import Rates
from gemmule.outofcore.stores.mapped_sink import array_sink
from gemmule.outofcore.stores.mapped_source import array_source
from gemmule.outofcore.tiles.memory_budget import memory_limit
from gemmule.outofcore.tiles.plan import Operand, Product
from gemmule.outofcore.tiles.problem import StreamProblem
from gemmule.runtime.memory import usable_memory
from gemmule.runtime.tiles import GpuTileExecutor

Array = np.ndarray[Any, np.dtype[Any]]

#: Bytes a second of a link between host and GPU, where it is stated and not measured: PCIe 5.0 x16, as seen.
LINK_RATE = 50e9


def multiply_on_gpu(
    a: Array, b: Array, out: Array, alpha: Any, beta: Any, c: Array | None, precision: Precision, ordinal: int = 0
) -> None:
    """Write ``alpha * a @ b + beta * c`` into `out`: NumPy arrays of (..., m, k), (..., k, n) and (..., m, n)."""
    batch = out.shape[:-2]
    a = np.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = np.broadcast_to(b, (*batch, *b.shape[-2:]))
    memory = beside_parts(usable_memory(ordinal), precision)
    with GpuTileExecutor(choose, ordinal, precision) as executor:
        (m, k), n = a.shape[-2:], b.shape[-1]
        if executor.tile_bytes(a.dtype, b.dtype, out.dtype, m, n, k) <= memory:
            for index in np.ndindex(batch):
                with executor.tile_sum(m, n, a.dtype, b.dtype, out.dtype) as total:
                    total.add(a[index], b[index])
                    total.finish(out[index], alpha, beta, c[index] if c is not None else None)
            return
    for index in np.ndindex(batch):
        added = c[index] if c is not None else None
        stream_arrays(Request(a[index], b[index], out[index], added, alpha, beta, precision=precision), Limits())


def stream_arrays(request: Request, limits: Limits, device: str = "gpu") -> None:
    """Write ``alpha * a @ b + beta * c`` into `out`, all matrices of a request, through a device's memory by tiles."""
    sink = array_sink(request.out, "out")
    precision = Precision.IEEE if request.precision is None else Precision(request.precision)

    with contextlib.ExitStack() as stack:
        left, right, added = (
            None if array is None else stack.enter_context(contextlib.closing(array_source(array, name)))
            for array, name in ((request.a, "a"), (request.b, "b"), (request.c, "c"))
        )
        assert left is not None
        assert right is not None

        problem = StreamProblem(left, right, added, sink.shape, sink.dtype, request.alpha, request.beta)
        engine = plan_device_engine(device, problem, sink, limits, precision=precision)
        engine.run(problem, sink, engine.plan)


def streaming_plan(problem: GemmProblem, memory: int, seconds: float | None) -> Budgeted | None:
    """Return how a product of pageable arrays would be streamed, at the chip's peak rate; None if it fits `memory`.

    Parameters
    ----------
    problem : GemmProblem
        One matrix product of contiguous matrices; its batch is left out of account.
    memory : int
        Bytes of device memory that may be taken.
    seconds : float or None
        Least time of the whole problem on the chip, from which its rate is taken; None where that is not known.
    """
    operands, memory = problem.operands(), beside_parts(memory, problem.precision)
    sizes = {name: matrix.rows * matrix.cols * matrix.dtype.itemsize for name, matrix in operands.items()}
    if sum(sizes.values()) <= memory or not seconds:
        return None
    a, b, d = (operands[name].dtype.numpy() for name in "abd")
    c = operands.get("c")
    product = Product(
        problem.m, problem.n, problem.k, Operand(a), Operand(b), Operand(d), Operand(c.dtype.numpy()) if c else None
    )
    rate = problem.flop / seconds
    budgets = Budgets(memory, Settings().pinned, memory_limit(None))
    staging = Staging(("a", "b", *(["c"] if c else []), "out"), threads_for_copies())
    rates = usual_staging(Rates(rate, rate, LINK_RATE, LINK_RATE))
    return choose_within(1, product, sums_of("gpu", a, b, d), budgets, staging, rates)
