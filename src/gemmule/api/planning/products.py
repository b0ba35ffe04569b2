"""Planning a product: check the arrays, choose executor and kernel; of host arrays, run it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gemmule.core.chip import Chip
from gemmule.core.problem import contiguous_gemm
from gemmule.core.spec import KernelSpec
from gemmule.executor.tiles import Array
from gemmule.runtime.arrays import ArrayView
from gemmule.runtime.device import get_device

from ..epilogues.ending import Ending, ending_of
from ..epilogues.gated import SECOND, storage_of, with_halves
from ..validation.operands import EnoughMemory, gather, least_seconds
from ..validation.product import ABSMAX, Product, ProductArguments, checked, host_array
from ..validation.rules import is_complex
from .choice import choose_compiling, host_arrays_executor, only_kernel, only_on_host
from .device_products import plan_on_device
from .host_rates import HostWork
from .named_chips import plan_for_chip, target_of
from .plan import Execution, Plan, planned
from .vgpu_products import plan_on_virtual_gpu


def plan_on_host(
    product: Product, executor: str | None, registry: Sequence[KernelSpec] | None = None, chip: Chip | None = None
) -> Plan:
    """Plan a product of host arrays: by the BLAS that NumPy has, through a GPU, or on the virtual one.

    On the virtual GPU from the kernels of a registry, as on a chip.
    """
    shape, (dtypes, c_dtype) = product.shape, _types_of(product)
    work = HostWork(math.prod(shape.batch), shape.m, shape.n, shape.k, dtypes, product.precision)
    name, reason = host_arrays_executor(executor, dtypes, c_dtype, work)
    if name == "gpu" and product.ending is not None and product.ending.blocks is not None:
        if executor == "gpu":
            raise only_on_host("host arrays with scales by blocks are multiplied")
        name, reason = "cpu", "host arrays with scales by blocks"
    if name == "vgpu":
        return plan_on_virtual_gpu(product, reason, registry, chip)
    return _plan_by_blas(product, reason) if name == "cpu" else _plan_through_gpu(product, reason)


def _types_of(product: Product) -> tuple[tuple[str, str, str], str | None]:
    """Return the types of A, B and the result, and of C if there is one."""
    c_dtype = product.view("c").dtype_name if "c" in product.operands.views else None
    return (product.view("a").dtype_name, product.view("b").dtype_name, product.out_dtype), c_dtype


class _HostInputs:
    """The inputs of a product in host memory.

    Attributes
    ----------
    arrays : dict of str to numpy.ndarray
        By role.
    c : numpy.ndarray or None
        C, if it is added.
    """

    def __init__(self, product: Product) -> None:
        views = product.operands.views
        self.arrays = {role: host_array(view) for role, view in views.items() if role != "out"}
        self.c = None if product.beta == 0 else self.arrays.get("c")
        self._conj = {role for role, view in views.items() if view.conj}

    def conjugated(self, left: Array, right: Array) -> tuple[Array, Array]:
        """Return a left and a right factor, conjugated where A, or B, is."""
        return np.conj(left) if "a" in self._conj else left, np.conj(right) if "b" in self._conj else right


def _plan_by_blas(product: Product, reason: str) -> Plan:
    """Plan a product of host arrays by the BLAS that NumPy has."""
    from gemmule.host import blas
    from gemmule.host.gemm import checked_gemm

    inputs, execution, ending = _HostInputs(product), Execution(), product.ending

    def run() -> Any:
        out, finish = product.new_output()
        with memory_for_sums(product.shape.result):
            arrays = inputs.arrays
            if ending is not None and ending.blocks is not None:
                from gemmule.host.block_scales import with_scales

                arrays = arrays | with_scales(arrays, ending.blocks)

            def multiply(factor: Any, total: Any) -> None:
                left, factor = inputs.conjugated(arrays["a"], factor)
                gemm = checked_gemm(left, factor, total, alpha=product.alpha, beta=product.beta, c=inputs.c)
                gemm.run(left, factor, total, inputs.c)
                execution.gemm = gemm

            finish_on_host(ending, product.shape.result, arrays, host_array(out), multiply)
            return finish()

    plan = planned(product, "cpu", blas.describe(), None, reason, None, run)
    return dataclasses.replace(plan, product=product, execution=execution)


def _plan_through_gpu(product: Product, reason: str) -> Plan:
    """Plan a product of host arrays that are copied to a GPU; an epilogue is computed on the host."""
    from gemmule.runtime.memory import usable_memory

    from .host_to_device import streaming_plan

    inputs, execution, shape = _HostInputs(product), Execution(), product.shape
    dtypes, c_dtype = _types_of(product)
    problem = contiguous_gemm(
        shape.m,
        shape.n,
        shape.k,
        dtypes if c_dtype is None else (*dtypes, c_dtype),
        batch=shape.batch,
        alpha=product.alpha,
        beta=product.beta,
        precision=product.precision,
    )
    device = get_device(0)

    def run() -> Any:
        from .host_to_device import RoundTrip

        out, finish = product.new_output()

        def multiply(factor: Any, total: Any) -> None:
            a, factor = inputs.conjugated(inputs.arrays["a"], factor)
            given = {"a": a, "b": factor, "d": total} | ({} if inputs.c is None else {"c": inputs.c})
            execution.gemm = trip = RoundTrip(given, product.alpha, product.beta, product.precision)
            trip.run(a, factor, total, inputs.c)

        with memory_for_sums(shape.result):
            finish_on_host(product.ending, shape.result, inputs.arrays, host_array(out), multiply)
            return finish()

    plan = planned(product, "gpu", device.name, choose_compiling(problem, device), reason, problem, run)
    seconds = least_seconds(problem, device.name, from_host=False)
    streaming = streaming_plan(problem, usable_memory(0), seconds)
    return dataclasses.replace(plan, streaming=streaming, product=product, execution=execution)


def with_conjugates(views: Mapping[str, ArrayView], roles: Sequence[str]) -> dict[str, ArrayView]:
    """Return the views with some of them conjugated once more; real ones are their own conjugates."""
    flipped = {role: dataclasses.replace(views[role], conj=not views[role].conj) for role in roles}
    real = {role: views[role] for role in roles if not is_complex(views[role].dtype_name)}
    return {**views, **flipped, **real}


def memory_for_sums(result: tuple[int, ...], *, streamable: bool = True) -> EnoughMemory:
    """Return a context that turns a lack of memory for a product's sums into an error of gemmule's."""
    return EnoughMemory(f"what is computed on the way to a result of shape {result}", streamable)


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
        Epilogue of the accumulators.
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


def plan_product(
    call: ProductArguments,
    *,
    traced: tuple[Ending | None, Mapping[str, Any]] | None = None,
    kernel: str | None = None,
    chip: str | None = None,
) -> Plan:
    """Check a product and say what would run.

    `traced` is what `ending_of` has made of the epilogue already, and `kernel` and `chip` as of `plan`.
    """
    target = target_of(call.executor, chip)
    registry = only_kernel(kernel, "gemm", named=target.names_kernels)
    storage, ending, inputs = None, None, {}
    if not call.plain:
        storage = storage_of(call.epilogue, call.gated)
        ending, further = traced or ending_of(
            call.epilogue,
            call.bias,
            call.c,
            call.epilogue_args,
            gated=storage is not None,
            absmax=call.absmax is not None,
        )
        inputs = dict(further)
        if call.absmax is not None:
            inputs[ABSMAX] = call.absmax
        if call.gated is not None and not isinstance(call.gated, str):
            inputs[SECOND] = call.gated
    arrays = {"a": call.a, "b": call.b, "c": call.c, "out": call.out, **inputs}
    operands = given = gather(arrays, call.stream, specs=target.elsewhere is not None)
    if call.conj:
        operands = dataclasses.replace(given, views=with_conjugates(given.views, call.conj))
    if storage is not None:
        operands = dataclasses.replace(operands, views=with_halves(operands.views, storage))
    product = checked(call, operands, ending)
    if target.elsewhere is not None:
        return plan_for_chip(product, target.elsewhere, registry)
    if product.operands.device is not None:
        plan = plan_on_device(product, target.executor)
    else:
        plan = plan_on_host(product, target.executor, registry, target.chip)
    return plan.with_refresh(given.views.values(), given.work_stream)
