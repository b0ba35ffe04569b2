"""PyTorch's operations on the buffer sets of a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from epilogue_forms import Form, Tensors

from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.runtime.rotation import OperandSets, Rotation


def tensor(address: int, shape: tuple[int, ...]) -> Any:
    """Return memory as a bfloat16 tensor of PyTorch."""
    import torch

    memory = type("Memory", (), {})()
    memory.__cuda_array_interface__ = {
        "version": 3, "shape": shape, "typestr": "<i2", "data": (address, False), "strides": None,
    }  # fmt: skip
    return torch.as_tensor(memory, device="cuda:0").view(torch.bfloat16)


def torch_work(
    form: Form, plain: GemmProblem, alone: OperandSets, operands: OperandSets, largest: Any, stream: int
) -> Rotation:
    """Return PyTorch's operations on every buffer set in turn; `alone` has the factors, `operands` everything else."""
    import torch

    def lying(matrix: StridedMatrix, address: int) -> Any:
        if matrix.is_row_major:
            return tensor(address, (matrix.rows, matrix.cols))
        return tensor(address, (matrix.cols, matrix.rows)).t()

    ours = torch.cuda.ExternalStream(stream)
    columns = plain.n // 2 if form.gated else plain.n
    half = torch.empty(plain.m, columns, device="cuda", dtype=torch.bfloat16) if form.gated else None

    def queued(index: int) -> Callable[[], None]:
        factors, at = alone.addresses(index), operands.addresses(index)
        given = Tensors(
            tensor(at["d"], (plain.m, columns)),
            lying(plain.a, factors["a"]),
            lying(plain.b, factors["b"]),
            tensor(at["e0"], (plain.n,)) if form.bias else None,
            lying(plain.d, at["c"]) if form.residual else None,
            lying(plain.d, factors["d"]) if form.gated else None,
            half,
            largest,
        )

        def queue() -> None:
            with torch.cuda.stream(ours):
                form.torch(torch.ops.aten, given)

        return queue

    return Rotation([queued(index) for index in range(operands.sets)])
