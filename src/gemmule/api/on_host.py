"""Planning a product of host arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gemmule.core.spec import KernelSpec
from gemmule.dispatch.select import choose, contiguous_gemm
from gemmule.executor.tiles import Array
from gemmule.runtime.device import get_device

from .absolute_maximum import ROLE as ABSMAX
from .call_plan import Plan
from .checked import Product, host_array
from .epilogues import Ending
from .executors import host_arrays_executor
from .gated import SECOND
from .on_virtual_gpu import plan_on_virtual_gpu
from .operands import EnoughMemory, least_seconds
from .product_plan import planned


def plan_on_host(product: Product, executor: str | None, registry: Sequence[KernelSpec] | None = None) -> Plan:
    """Plan a product of host arrays: by the BLAS that NumPy has, through a GPU, or on the virtual one by a registry."""
    shape, views = product.shape, product.operands.views
    dtypes = (product.view("a").dtype_name, product.view("b").dtype_name, product.out_dtype)
    c_dtype = product.view("c").dtype_name if "c" in views else None
    name, reason = host_arrays_executor(executor, 2 * shape.m * shape.n * shape.k, dtypes, c_dtype)
    arrays = {role: host_array(view) for role, view in views.items() if role != "out"}
    a, c, ending = arrays["a"], arrays.get("c"), product.ending

    if name == "vgpu":
        return plan_on_virtual_gpu(product, reason, registry)

    if name == "cpu":
        from gemmule.host.gemm import gemm
        from gemmule.host.tiles import HostTileExecutor

        def run_on_host() -> Any:
            out, finish = product.new_output()

            def multiply(factor: Any, total: Any) -> None:
                gemm(a, factor, total, alpha=product.alpha, beta=product.beta, c=None if product.beta == 0 else c)

            with memory_for_sums(shape.result):
                finish_on_host(ending, shape.result, arrays, host_array(out), multiply)
                return finish()

        plan = planned(product, name, HostTileExecutor().describe(), None, reason, None, run_on_host)
        return dataclasses.replace(plan, product=product)

    problem = contiguous_gemm(
        shape.m,
        shape.n,
        shape.k,
        (*dtypes, c_dtype) if c_dtype is not None else dtypes,
        batch=shape.batch,
        alpha=product.alpha,
        beta=product.beta,
        precision=product.precision,
    )
    device = get_device(0)

    def run_on_gpu() -> Any:
        from .staged import multiply_on_gpu

        out, finish = product.new_output()

        # Host arrays are streamed; what a product of tiles becomes is known when all of K has been added.
        def multiply(factor: Any, total: Any) -> None:
            added = None if product.beta == 0 else c
            multiply_on_gpu(a, factor, total, product.alpha, product.beta, added, product.precision)

        finish_on_host(ending, shape.result, arrays, host_array(out), multiply)
        return finish()

    from gemmule.runtime.memory import usable_memory

    from .staged import streaming_plan

    plan = planned(
        product,
        name,
        device.name,
        choose(problem, device.arch, multiprocessors=device.multiprocessors, chip=device.name),
        reason,
        problem,
        run_on_gpu,
    )
    seconds = least_seconds(problem, device.name, from_host=False)
    return dataclasses.replace(plan, streaming=streaming_plan(problem, usable_memory(0), seconds))


def memory_for_sums(result: tuple[int, ...]) -> EnoughMemory:
    """Return what turns a lack of memory for a product's sums into an error of gemmule's."""
    return EnoughMemory(f"what is computed on the way to a result of shape {result}")


def finish_on_host(
    ending: Ending | None,
    result: tuple[int, ...],
    arrays: Mapping[str, Array],
    out: Array,
    multiply: Callable[[Array, Array], None],
) -> None:
    """Compute a product on the host.

    Parameters
    ----------
    ending : Ending or None
        What is done to the sums.
    result : tuple of int
        Shape that the caller gets.
    arrays : mapping of str to numpy.ndarray
        Inputs by role; A, B and C as matrices.
    out : numpy.ndarray
        The output as matrices.
    multiply : callable
        ``multiply(b, total)`` computes a sum.
    """
    if ending is None:
        multiply(arrays["b"], out)
        return
    from gemmule.host.epilogue import apply, new_sum

    totals = []
    for role in ("b", *((SECOND,) if ending.expression.gated else ())):
        totals.append(new_sum(arrays["a"], arrays[role], out))
        multiply(arrays[role], totals[-1])
    c = arrays["c"] if ending.expression.names_c else None
    # Inputs are broadcast to what the caller gets, which has no dimension of a 1-D operand.
    matrices = [np.broadcast_to(arrays[role], result).reshape(out.shape) for role in ending.roles]
    largest = apply(out, totals, ending.expression, c, matrices, ending.numbers, keeps=ending.absmax)
    if ending.absmax:
        arrays[ABSMAX][...] = largest
