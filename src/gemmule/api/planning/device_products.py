"""Planning a product of arrays in a GPU's memory, where it is computed in place."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gemmule.core.batch_folding import fold_batch
from gemmule.core.dtype import DType, dtype_named
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem, mark_own_transpose
from gemmule.core.spec import Choice
from gemmule.dispatch.choices.choice_cache import register_clear
from gemmule.runtime.arrays import ArrayView
from gemmule.runtime.device import get_device

from ..epilogues.ending import with_ending
from ..validation.product import ABSMAX, Product
from ..validation.rules import batch_strides
from .choice import check_device_arrays, choice_on, choose_compiling, execute
from .decision import decided
from .plan import Execution, Plan, planned

_OPERANDS = ("a", "b", "c")


def _device_matrix(view: ArrayView, dtype: DType, batch: tuple[int, ...]) -> StridedMatrix:
    rows, cols = view.shape[-2:]
    row_stride, col_stride = view.strides[-2:]
    steps = batch_strides(view, batch)
    return StridedMatrix(dtype, rows, cols, row_stride, col_stride, steps, view.alignment, conj=view.conj)


def problem_in_place(product: Product, views: Mapping[str, ArrayView]) -> tuple[GemmProblem, dict[str, str]]:
    """Return the product of matrices with their layout in device memory, and the role of each operand that is read."""
    shape = product.shape
    matrices = {
        role: _device_matrix(views[role], dtype_named(views[role].dtype_name, role), shape.batch)
        for role in (*_OPERANDS, "out")
        if role in views
    }
    problem = GemmProblem(
        m=shape.m,
        n=shape.n,
        k=shape.k,
        batch=shape.batch,
        a=matrices["a"],
        b=matrices["b"],
        c=matrices.get("c"),
        d=matrices.get("out") or contiguous(dtype_named(product.out_dtype, "out_dtype"), shape.m, shape.n, shape.batch),
        alpha=product.alpha,
        beta=product.beta,
        precision=product.precision,
    )
    roles = {role: role for role in _OPERANDS if role in views}
    if product.ending is not None:
        problem, further = with_ending(problem, product.ending, views, shape)
        roles |= further
    return mark_own_transpose(fold_batch(problem), same=_begin_together(views["a"], views["b"])), roles


def _begin_together(a: ArrayView, b: ArrayView) -> bool:
    """Whether two arrays begin at the same address."""
    if a.host is not None and b.host is not None:
        # Addresses of the virtual GPU carry alignment only.
        return bool(a.host.ctypes.data == b.host.ctypes.data)
    return a.address == b.address


def plan_on_device(product: Product, executor: str | None) -> Plan:
    """Plan a product of arrays that are on a GPU."""
    operands = product.operands
    reason = check_device_arrays(executor)
    assert operands.device is not None
    ordinal = operands.device
    device = get_device(ordinal)
    problem, roles = problem_in_place(product, operands.views)
    choice = choose_compiling(problem, device)

    execution = Execution()

    def run() -> Any:
        stream = operands.work_stream()
        assert stream is not None
        out, finish = product.new_output(stream)
        given = {name: product.view(role).address for name, role in roles.items()}
        if ABSMAX in operands.views:
            from gemmule.runtime.memory import clear

            absmax = product.view(ABSMAX)
            given[ABSMAX] = absmax.address
            execution.clears_absmax = choice.clears_absmax(problem)
            if not execution.clears_absmax:
                clear(absmax.address, absmax.itemsize, ordinal, stream)
        execute(problem, choice, device, given | {"d": out.address}, stream, execution)
        operands.keep_until_done(stream, out)
        return finish()

    def decide(inner: GemmProblem, guard: Choice, offsets: dict[str, int]) -> list[int]:
        from gemmule.kernels.emulation.decision import WORDS
        from gemmule.runtime.execute import run_kernel
        from gemmule.runtime.memory import DeviceBuffer

        stream, words = operands.work_stream(), np.zeros(WORDS, np.int32)
        assert stream is not None
        with DeviceBuffer(words.nbytes, ordinal, stream) as buffer:
            pointers = {
                name: product.view(roles[name]).address + offsets[name] * matrix.dtype.itemsize
                for name, matrix in (("a", problem.a), ("b", problem.b))
            }
            run_kernel(inner, guard, pointers | {"c": 0, "d": buffer.address}, ordinal, stream)
            buffer.download(words)
        return words.tolist()

    plan = planned(product, "gpu", device.name, choice, reason, problem, run)
    places = {name: (role, product.view(role).address) for name, role in roles.items()}
    guard = functools.partial(decided, problem, choice, decide)
    return dataclasses.replace(plan, places=places, execution=execution, guard=guard)


@functools.lru_cache(maxsize=1024)
def problem_queue(
    choose: Callable[..., Choice], problem: Any, ordinal: int, began: int
) -> Callable[[tuple[int, ...], int], None]:
    """Return a function that queues a problem by the kernel of `choose`, given its operands' addresses, D's last."""
    del began
    from gemmule.runtime.repeated import repeated

    matrices = problem.operands()
    names = sorted(matrices, key=lambda name: name == "d")
    # Addresses that are as aligned as those to come stand in for them.
    aligned = [(1 << 20) + matrices[name].alignment for name in names]
    queue = repeated(problem, choice_on(choose, problem, get_device(ordinal)), names, aligned, ordinal)
    assert queue is not None
    return queue


register_clear(problem_queue.cache_clear)
