"""Baselines of transposes on a GPU: the driver's copy, and other libraries' transposes of the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gemmule.core.problem import TransposeProblem

from .arrays.cupy_arrays import external_stream
from .device import current
from .driver import call
from .rotation import OperandSets, Rotation

#: Element types by size: what a library calls them does not matter to a transpose.
_TYPES = {1: ("uint8", "|u1"), 2: ("float16", "<f2"), 4: ("float32", "<f4"), 8: ("float64", "<f8"),
          16: ("complex128", "<c16")}  # fmt: skip
# Bytes of the blocks of which the driver copies whole numbers fastest.
_BLOCK = 2 << 20


class TransposeBaselines:
    """The baselines of transposes, on one stream of a GPU.

    Parameters
    ----------
    stream : int
        The driver's handle of the stream.
    """

    def __init__(self, ordinal: int, stream: int) -> None:
        self.ordinal, self.stream = ordinal, stream

    def copy(self, problem: TransposeProblem, operands: OperandSets) -> Rotation:
        """Return the driver's copy from the source to the target of every buffer set in turn."""
        return self._copy(operands, problem.bytes_min // 2)

    def part_copy(self, problem: TransposeProblem, operands: OperandSets) -> tuple[Rotation, int] | None:
        """Return the driver's copy of whole blocks of 2 MiB, all but the last, and their bytes; None for fewer.

        The driver has slower ways to copy what is not of whole blocks, and what is very large.
        """
        size = (problem.bytes_min // 2 - 1) // _BLOCK * _BLOCK
        return (self._copy(operands, size), size) if size else None

    def _copy(self, operands: OperandSets, size: int) -> Rotation:
        def queued(index: int) -> Callable[[], None]:
            addresses = operands.addresses(index)

            def queue() -> None:
                with current(self.ordinal):
                    call("cuMemcpyDtoDAsync", addresses["d"], addresses["a"], size, self.stream)

            return queue

        return Rotation([queued(index) for index in range(operands.sets)])

    def peers(self, problem: TransposeProblem, operands: OperandSets) -> Iterator[tuple[str, Rotation]]:
        """Yield name and work of every other library that is installed: its transpose of the same memory."""
        for name, transposes in (("torch", self._torch), ("cupy", self._cupy)):
            try:
                works = [transposes(problem, operands.addresses(index)) for index in range(operands.sets)]
            except ImportError:
                continue
            yield name, Rotation(works)

    def _torch(self, problem: TransposeProblem, addresses: dict[str, int]) -> Callable[[], None]:
        import torch

        name = _TYPES[problem.itemsize][0]
        source, target = (
            torch.as_tensor(_Memory(addresses[operand], shape, problem.itemsize), device=f"cuda:{self.ordinal}")
            for operand, shape in _shapes(problem)
        )
        assert str(source.dtype) == f"torch.{name}"
        stream = torch.cuda.ExternalStream(self.stream, device=source.device)

        def queue() -> None:
            with torch.cuda.stream(stream):
                # The kernel of x.mT.contiguous(), without the allocation.
                target.copy_(source.mT)

        return queue

    def _cupy(self, problem: TransposeProblem, addresses: dict[str, int]) -> Callable[[], None]:
        import cupy

        with cupy.cuda.Device(self.ordinal):
            source, target = (
                cupy.asarray(_Memory(addresses[operand], shape, problem.itemsize))
                for operand, shape in _shapes(problem)
            )
            stream = external_stream(cupy, self.stream, self.ordinal)

        def queue() -> None:
            with stream:
                cupy.copyto(target, source.swapaxes(-1, -2))

        return queue


def _shapes(problem: TransposeProblem) -> list[tuple[str, tuple[int, ...]]]:
    return [("a", (*problem.batch, problem.cols, problem.rows)), ("d", (*problem.batch, problem.rows, problem.cols))]


class _Memory:
    """Compact memory, as array libraries take it without a copy."""

    def __init__(self, address: int, shape: tuple[int, ...], itemsize: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": shape,
            "typestr": _TYPES[itemsize][1],
            "data": (address, False),
            "strides": None,
        }
