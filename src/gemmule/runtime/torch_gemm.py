"""PyTorch's own product on the operands of a measurement: what a user calls today."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gemmule.core.dtype import INT8_PRODUCTS, Kind, Precision
from gemmule.core.errors import UnsupportedError
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem

from .rotation import OperandSets, Rotation

#: Precisions whose kernels are compared with PyTorch's product in the operands' type.
_IN_THE_TYPE = (Precision.IEEE, Precision.BF16X6, Precision.OZAKI, *INT8_PRODUCTS)


class TorchGemm:
    """PyTorch's product on one GPU and stream, by its own choice of algorithm.

    Parameters
    ----------
    stream : int
        The driver's handle of the stream.

    Raises
    ------
    UnsupportedError
        If PyTorch is not installed, or sees no GPU.
    """

    def __init__(self, ordinal: int, stream: int) -> None:
        try:
            import torch
        except ImportError as error:
            raise UnsupportedError(
                f"PyTorch is not installed ({error}); pip install torch, or measure without it"
            ) from error
        if not torch.cuda.is_available():
            raise UnsupportedError("PyTorch sees no GPU; install a CUDA build of it, or measure without it")
        self._torch, self.version = torch, str(torch.__version__)
        self._device = torch.device("cuda", ordinal)
        self._stream = torch.cuda.ExternalStream(stream, self._device)

    def work(self, problem: GemmProblem, operands: OperandSets) -> Rotation:
        """Return a call on every buffer set in turn.

        Raises
        ------
        UnsupportedError
            If PyTorch does not compute the product into a given result, with its reason.
        """
        torch = self._torch
        torch.backends.cuda.matmul.allow_tf32 = problem.precision is Precision.TF32
        product = self._function(problem)

        def on(addresses: dict[str, int]) -> Callable[[], None]:
            a, b, d = (self._tensor(addresses[name], getattr(problem, name), problem.batch) for name in "abd")

            def queue() -> None:
                with torch.cuda.stream(self._stream):
                    product(a, b, d)

            return queue

        calls = [on(operands.addresses(number)) for number in range(operands.sets)]
        try:
            calls[0]()
        except RuntimeError as error:
            raise UnsupportedError(f"PyTorch does not compute it: {str(error).splitlines()[0]}") from error
        return Rotation(calls)

    def _function(self, problem: GemmProblem) -> Callable[[Any, Any, Any], object]:
        """Return a function that computes ``d = a @ b``."""
        torch, a, d = self._torch, problem.a.dtype, problem.d.dtype
        if a.is_float8 and not problem.batch:
            one = torch.ones((), device=self._device, dtype=torch.float32)
            return lambda x, y, out: torch._scaled_mm(x, y, scale_a=one, scale_b=one, out_dtype=out.dtype, out=out)
        if a.kind is Kind.INTEGER and a.itemsize == 1 and d.name == "int32" and not problem.batch:
            return lambda x, y, out: torch._int_mm(x, y, out=out)
        if a is not d or a.kind is Kind.INTEGER or problem.precision not in (*_IN_THE_TYPE, Precision.TF32):
            raise UnsupportedError(f"PyTorch has no product of {a} into {d} that writes a given result")
        multiply = torch.bmm if problem.batch else torch.mm
        return lambda x, y, out: multiply(x, y, out=out)

    def _tensor(self, address: int, matrix: StridedMatrix, batch: tuple[int, ...]) -> Any:
        """Return a tensor of memory that is there already."""
        itemsize = matrix.dtype.itemsize
        shape = (*batch, matrix.rows, matrix.cols)
        strides = (*matrix.batch_strides, matrix.row_stride, matrix.col_stride)
        held = _Held(address, math.prod(shape) * itemsize)
        flat = self._torch.as_tensor(held, device=self._device).view(getattr(self._torch, matrix.dtype.name))
        return flat.as_strided(shape, strides)


class _Held:
    """Bytes at an address, by the CUDA array interface."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None,
        }  # fmt: skip
