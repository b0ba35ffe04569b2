"""Call cache of products on the host: a call with arrays of a known description is computed without a plan.

The description is all that the plan depends on: the library, types, shapes and strides of the arrays, the options and
``GEMMULE_EXECUTOR``. Whatever is unusual, and an output that may overlap an input, is left to the plan, which is where
calls are refused.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from gemmule.core.dtype import numpy_dtype
from gemmule.dispatch.select import register_clear
from gemmule.executor.tiles import Array
from gemmule.host.gemm import CheckedGemm, checked_gemm

from .call_plan import Plan
from .epilogues import Ending
from .executors import HOST_TO_GPU_FLOP
from .on_host import finish_on_host, memory_for_sums
from .operands import EnoughMemory
from .shapes import ProductShape

#: Arrays of a call: A, B, C, the bias and the output, some of which may be None.
Given = tuple[Any, ...]
#: What arrays are known by, and their memory.
Described = tuple[tuple[Any, ...], tuple[Array | None, ...]]

#: Calls that are cached; the oldest is evicted.
MOST_CALLS = 2048
#: Elements of an array beyond which planning costs little in comparison.
MOST_ELEMENTS = 2**20

_C, _OUT = 2, 4


class HostLibrary(Protocol):
    """An array library whose arrays in host memory are read without questions that a description answers."""

    def describe(self, given: Given) -> Described | None:
        """Return what arrays are known by, and their memory; None where one is unusual, or not known yet."""

    def add(self, given: Given) -> None:
        """Let `describe` know arrays like these, which a plan has read."""

    def maker(self, shape: tuple[int, ...], dtype_name: str) -> Callable[[], tuple[Any, Array]]:
        """Return what makes results, each with its memory."""

    def wrote(self, out: Any) -> None:
        """Tell the library that an array of the caller's is written."""


@dataclasses.dataclass(frozen=True, slots=True)
class HostCall:
    """A product that was planned for the host, for any arrays of its description.

    Attributes
    ----------
    gemm : CheckedGemm
        What computes the sums.
    shape : ProductShape
        Shapes.
    ending : Ending or None
        What is done to the sums.
    new : callable
        Makes the result where the caller gives none, and its memory.
    memory : EnoughMemory
        Names the lack of memory for the sums.
    plain : bool
        Whether the arrays are the matrices that are multiplied, and the output is what is summed into.
    """

    gemm: CheckedGemm
    shape: ProductShape
    ending: Ending | None
    new: Callable[[], tuple[Any, Array]]
    memory: EnoughMemory
    plain: bool

    def run(self, arrays: tuple[Array | None, ...], out: Array) -> None:
        """Write the product of A, B, C and a bias, of which the latter may be None, into `out`."""
        a, b, c, bias, _ = arrays
        assert a is not None
        assert b is not None
        try:
            if self.plain:
                self.gemm.run(a, b, out, c)
            else:
                self._run(a, b, c, bias, out)
        except MemoryError:
            with self.memory:
                raise

    def _run(self, a: Array, b: Array, c: Array | None, bias: Array | None, out: Array) -> None:
        shape = self.shape
        if shape.drop_row or shape.drop_col:
            # As the plan does it, not by None, which gives the new dimension another stride.
            a, b = np.expand_dims(a, 0) if shape.drop_row else a, np.expand_dims(b, -1) if shape.drop_col else b
            c, out = None if c is None else _as_matrices(c, shape), _as_matrices(out, shape)
        if self.ending is None:
            self.gemm.run(a, b, out, c)
            return
        given = {role: x for role, x in zip(("a", "b", "c", "bias"), (a, b, c, bias), strict=True) if x is not None}
        finish_on_host(self.ending, shape.result, given, out, lambda factor, total: self.gemm.run(a, factor, total, c))


def _as_matrices(x: Array, shape: ProductShape) -> Array:
    """Return a result, or C, with the dimensions that 1-D operands leave out."""
    if shape.drop_row:
        x = np.expand_dims(x, len(shape.batch))
    return np.expand_dims(x, -1) if shape.drop_col else x


_calls: dict[Any, HostCall] = {}
_adding = threading.Lock()


def forget() -> None:
    """Forget all calls."""
    with _adding:
        _calls.clear()


register_clear(forget)


class NumpyArrays:
    """NumPy's arrays."""

    def describe(self, given: Given) -> Described | None:
        """Return what the arrays are known by, and themselves; None where one is no plain array."""
        known: list[Any] = []
        for x in given:
            if x is None:
                known.append(None)
            elif type(x) is np.ndarray and x.flags.aligned:
                known += (x.dtype, x.shape, x.strides)
            else:
                return None
        return tuple(known), given

    def add(self, given: Given) -> None:
        """Do nothing: every array is known."""

    def maker(self, shape: tuple[int, ...], dtype_name: str) -> Callable[[], tuple[Any, Array]]:
        """Return what makes results, each with its memory."""
        dtype = numpy_dtype(dtype_name)

        def new() -> tuple[Any, Array]:
            result = np.empty(shape, dtype)
            return result, result

        return new

    def wrote(self, out: Any) -> None:
        """Do nothing: NumPy does not count writes."""


_NUMPY = NumpyArrays()


def library_of_host_arrays(a: Any) -> HostLibrary | None:
    """Return the library of an array in host memory; None where its calls are not cached."""
    kind = type(a)
    if kind is np.ndarray:
        return _NUMPY
    torch = sys.modules.get("torch")
    return _tensors(torch) if torch is not None and kind is torch.Tensor and a.is_cpu else None


@functools.cache
def _tensors(torch: Any) -> HostLibrary | None:
    from .host_tensors import HostTensors
    from .torch_guards import tensor_guards

    guards = tensor_guards(torch)
    return None if guards is None else HostTensors(torch, guards)


def repeated(library: HostLibrary, given: Given, options: tuple[Any, ...]) -> Any:
    """Return the result of a call of a known description; None where a plan has to look at the arrays."""
    described = library.describe(given)
    if described is None:
        return None
    known, arrays = described
    memory = arrays[_OUT]
    if memory is not None:
        in_place = given[_C] is given[_OUT]
        if not memory.flags.writeable:
            return None
        for place, x in enumerate(arrays[:_OUT]):
            if x is not None and np.may_share_memory(x, memory) and not (place == _C and in_place):
                return None
    call = _calls.get(_key(library, known, options))
    if call is None:
        return None
    if memory is not None:
        result = given[_OUT]
        library.wrote(result)
    else:
        try:
            result, memory = call.new()
        except MemoryError:
            # The plan says what does not fit.
            return None
    call.run(arrays, memory)
    return result


def keep(library: HostLibrary, given: Given, options: tuple[Any, ...], plan: Plan) -> None:
    """Cache what was planned for a call, if the host computes it and it is so small that a plan costs much."""
    product = plan.product
    # The B of a gated form holds two factors.
    if product is None or (product.ending is not None and product.ending.expression.gated):
        return
    shape = product.shape
    sizes = [view.host.size for view in product.operands.views.values() if view.host is not None]
    flop = 2 * shape.m * shape.n * shape.k
    if flop >= HOST_TO_GPU_FLOP or max(*sizes, plan.flop // (2 * shape.k or 1)) > MOST_ELEMENTS:
        return
    library.add(given)
    described = library.describe(given)
    if described is None:
        return
    new = library.maker(shape.result, product.out_dtype)
    out = product.host("out") if product.out is not None else _as_matrices(new()[1], shape)
    a, b, c = product.host("a"), product.host("b"), None if product.beta == 0 else product.host("c")
    if product.ending is not None:
        from gemmule.host.epilogue import new_sum

        out = new_sum(a, b, out)
    gemm = checked_gemm(a, b, out, alpha=product.alpha, beta=product.beta, c=c)
    plain = product.ending is None and not (shape.drop_row or shape.drop_col)
    call = HostCall(gemm, shape, product.ending, new, memory_for_sums(shape.result), plain)
    with _adding:
        while len(_calls) >= MOST_CALLS:
            del _calls[next(iter(_calls))]
        _calls[_key(library, described[0], options)] = call


def _key(library: HostLibrary, known: tuple[Any, ...], options: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a call is found by."""
    return library, os.environ.get("GEMMULE_EXECUTOR"), options, known
