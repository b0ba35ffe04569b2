"""Operators without a gradient: their backward is an error when it runs, as of PyTorch's own."""

from __future__ import annotations

from typing import Any, Never

import torch

_NAME = "gemmule::no_gradient"


def _refuse(grad: Any, shape: Any, dtype: Any, operator: str) -> Never:
    del grad, shape, dtype
    raise RuntimeError(f"derivative for {operator} is not implemented; detach its inputs, or call it under no_grad")


# An operator of its own, so that a compiled program holds it in its backward: what is only run forward compiles.
torch.library.define(_NAME, "(Tensor grad, SymInt[] shape, ScalarType dtype, str operator) -> Tensor")
torch.library.impl(_NAME, "default", _refuse)


@torch.library.register_fake(_NAME)
def _describe(grad: Any, shape: Any, dtype: Any, operator: str) -> Any:
    del operator
    return grad.new_empty(shape, dtype=dtype)


def refuse_gradient(operator: str) -> None:
    """Make the backward of an operator of one or more tensors an error, where one of its inputs requires a gradient."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        del output
        # Without the last, which is of the dispatcher's.
        needed = ctx.needs_input_grad[: len(inputs)]
        ctx.inputs = [(x.shape, x.dtype) if one else None for x, one in zip(inputs, needed, strict=True)]

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (grad, *_) = (one for one in grads if one is not None)
        refused = torch.ops.gemmule.no_gradient.default
        return tuple(None if one is None else refused(grad, *one, operator) for one in ctx.inputs)

    torch.library.register_autograd(operator, backward, setup_context=setup_context)
