"""Entries of the call cache: calls whose launches, or whose host function, are decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from gemmule.executor.tiles import Array
from gemmule.host.gemm import CheckedGemm
from gemmule.runtime.arrays.descriptions import Described, DeviceCallArrays, HostCallArrays
from gemmule.runtime.driver import lost_by_fork
from gemmule.runtime.replay import Queue, Replay
from gemmule.runtime.stream import stream_handle

from ..planning.plan import Plan
from ..planning.products import finish_on_host, memory_for_sums

#: Places of C and of the output among the arrays of a description.
_C, _OUT = 2, 4


class DeviceCall:
    """A call whose launches are decided.

    Parameters
    ----------
    queue : callable
        Queues it, given addresses and stream.
    overlap : sequence of (int, int)
        For each input the differences, its address less the output's, between which the two may overlap.
    new : callable
        Makes the output, where the caller gives none.
    began : int
        Generation of choices in which it was planned.
    absmax_overlap : sequence of (int, int)
        The same for each array but the last input, which is written too: that for the absolute maximum. Empty where
        there is none.
    """

    __slots__ = ("_a", "_absmax_overlap", "_b", "_others", "generation", "guards", "new", "queue", "replays")

    def __init__(
        self,
        queue: Queue,
        overlap: Sequence[tuple[int, int]],
        new: Callable[[], Any],
        began: int,
        absmax_overlap: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.queue, self.new, self.generation = queue, new, began
        # Replays for two arrays of its kind, and for one that is A and B.
        self.replays: list[Replay | None] = [None, None]
        self.guards = 0
        self._a, self._b, *self._others = overlap
        self._absmax_overlap = absmax_overlap

    def no_overlap(self, addresses: tuple[int, ...], in_place: bool) -> bool:
        """Whether the output certainly overlaps no input; C may be the output itself."""
        at = addresses[-1]
        low, high = self._a
        if low < addresses[0] - at < high:
            return False
        low, high = self._b
        if low < addresses[1] - at < high:
            return False
        if not self._others:
            return True
        # C stands first of the others, and may be the output itself.
        others = zip(addresses[2 + in_place : -1], self._others[in_place:], strict=True)
        return not any(low < address - at < high for address, (low, high) in others)

    def absmax_no_overlap(self, addresses: tuple[int, ...], given: bool) -> bool:
        """Whether the array for the absolute maximum certainly overlaps no other.

        The output is among the addresses if it is given.
        """
        *inputs, at = addresses[:-1] if given else addresses
        others = zip((*inputs, *addresses[-1:]) if given else inputs, self._absmax_overlap, strict=False)
        return not any(low < address - at < high for address, (low, high) in others)

    def run(
        self,
        library: DeviceCallArrays,
        described: Described,
        arrays: tuple[Any, ...],
        out: Any,
        stream: Any,
        *,
        in_place: bool = False,
    ) -> Any:
        """Compute it with other arrays; return None where a plan has to look at them.

        Parameters
        ----------
        library, described
            Their descriptions.
        arrays : tuple
            The inputs, some of which may be None.
        out : array or None
            The output, if it is given.
        stream : int, stream or None
            As the caller names it.
        in_place : bool
            Whether C is the output.
        """
        _, addresses, current = described
        assert current is not None
        now = current if stream is None else stream_handle(stream)
        if out is not None:
            if not self.no_overlap(addresses, in_place):
                return None
            result = out
        else:
            result = self.new() if now == current else library.made_on(self.new, library.device(arrays[0]), now)
        self.queue(addresses if out is not None else (*addresses, library.address(result)), now)
        if out is not None and library.wrote is not None:
            library.wrote(out)
        if now != current:
            from gemmule.runtime.retain import retain

            # Its library may give the memory to others as soon as its own stream allows it.
            retain((arrays, out), library.device(result), now)
        return result


class HostCall:
    """A product of arrays in host memory, computed there or by way of a GPU, for any arrays of its description.

    Parameters
    ----------
    plan : Plan
        The plan, which was executed.
    new : callable
        Makes the result where the caller gives none, and its memory.
    """

    __slots__ = ("_ending", "_gemm", "_memory", "_new", "_on_gpu", "_plain", "_shape")

    def __init__(self, plan: Plan, new: Callable[[], tuple[Any, Array]]) -> None:
        assert plan.product is not None
        assert plan.execution.gemm is not None
        self._gemm, self._new = plan.execution.gemm, new
        self._ending, self._shape, self._on_gpu = plan.product.ending, plan.product.shape, plan.executor == "gpu"
        # Names the lack of memory for the sums.
        self._memory = memory_for_sums(self._shape.result)
        # Whether the arrays are the matrices that are multiplied, and the output is what is summed into.
        self._plain = self._ending is None and not (self._shape.drop_row or self._shape.drop_col)

    @property
    def quick(self) -> Callable[[Array, Array], Array] | None:
        """NumPy's function of two arrays that is all that is done, on the host; None where more is to be done."""
        return self._gemm.multiply if self._plain and isinstance(self._gemm, CheckedGemm) and self._gemm.alone else None

    def run(self, library: HostCallArrays, described: Described, out: Any, in_place: bool) -> Any:
        """Compute it with other arrays; return None where a plan has to look at them.

        Parameters
        ----------
        library, described
            Their descriptions.
        out : array or None
            The output, if it is given.
        in_place : bool
            Whether C is the output.
        """
        if self._on_gpu and lost_by_fork():
            return None
        arrays = described[1]
        if out is None:
            try:
                result, memory = self._new()
            except MemoryError:
                # The plan's error names what does not fit.
                return None
        else:
            result, memory = out, arrays[_OUT]
            if not memory.flags.writeable:
                return None
            for place, x in enumerate(arrays[:_OUT]):
                if x is not None and np.may_share_memory(x, memory) and not (place == _C and in_place):
                    return None
            if library.wrote is not None:
                library.wrote(out)
        try:
            if self._plain:
                self._gemm.run(arrays[0], arrays[1], memory, arrays[_C])
            else:
                self._run(arrays, memory)
        except MemoryError:
            with self._memory:
                raise
        return result

    def _run(self, arrays: tuple[Any, ...], out: Array) -> None:
        a, b, c, bias, _ = arrays
        shape = self._shape
        if shape.drop_row or shape.drop_col:
            # As the plan does it, not by None, which gives the new dimension another stride.
            a, b = np.expand_dims(a, 0) if shape.drop_row else a, np.expand_dims(b, -1) if shape.drop_col else b
            c, out = None if c is None else self._as_matrices(c), self._as_matrices(out)
        if self._ending is None:
            self._gemm.run(a, b, out, c)
            return
        given = {role: x for role, x in zip(("a", "b", "c", "bias"), (a, b, c, bias), strict=True) if x is not None}
        finish_on_host(
            self._ending, shape.result, given, out, lambda factor, total: self._gemm.run(a, factor, total, c)
        )

    def _as_matrices(self, x: Array) -> Array:
        """Return a result, or C, with the dimensions that 1-D operands leave out."""
        if self._shape.drop_row:
            x = np.expand_dims(x, len(self._shape.batch))
        return np.expand_dims(x, -1) if self._shape.drop_col else x


class QuantizeCall:
    """A quantisation whose one launch is decided.

    Parameters
    ----------
    queue : callable
        Queues it, given the addresses of the matrix, the 8-bit floats and the scales, and a stream.
    library : DeviceCallArrays
        The library of its arrays.
    values, scales : array
        Results of the same call before.
    """

    __slots__ = ("_address", "_new_scales", "_new_values", "_queue", "_shape")

    def __init__(self, queue: Queue, library: DeviceCallArrays, values: Any, scales: Any) -> None:
        self._queue, self._address, self._new_values = queue, library.address, library.maker(values)
        # Scales by block have contiguous columns: their memory is that of the transpose.
        self._shape = tuple(scales.shape) if scales.shape[-1] > 1 else None
        self._new_scales = library.maker(scales if self._shape is None else scales.reshape(-1, self._shape[-1]).T)

    def run(self, address: int, stream: int) -> tuple[Any, Any]:
        """Quantise the matrix at an address, on the current stream."""
        values, scales = self._new_values(), self._new_scales()
        self._queue((address, self._address(values), self._address(scales)), stream)
        if self._shape is None:
            return values, scales
        return values, scales.T if len(self._shape) == 2 else scales.T.reshape(self._shape)


#: An entry of the call cache, found by its description.
CachedCall: TypeAlias = DeviceCall | HostCall | QuantizeCall
