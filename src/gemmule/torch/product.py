"""The operator ``gemmule::gemm``: what PyTorch needs to know of it to trace, compile, differentiate and batch it."""

from __future__ import annotations

import math
from typing import Any

import torch

import gemmule as gm

from .shapes import check_addend, check_dtypes, result_shape

_SCHEMA = "(Tensor a, Tensor b, Tensor? c, float alpha, float beta, ScalarType? out_dtype, str? precision) -> Tensor"


def _compute(a: Any, b: Any, c: Any, alpha: float, beta: float, out_dtype: Any, precision: str | None) -> Any:
    shape, dtype = _checked(a, b, c, out_dtype)
    a, b = a.detach(), b.detach()
    if c is None or beta == 0:
        return gm.gemm(a, b, alpha=alpha, out_dtype=dtype, precision=precision)
    # The one place that decides how something is added. What is broadcast is laid out in the output first: the copy
    # engine, by which the kernels for tensor cores read C, repeats no rows, and the sum is rounded once this way.
    out = torch.empty(shape, dtype=dtype, device=a.device)
    addend = c.detach()
    if addend.shape != out.shape or not addend.is_contiguous():
        addend = out.copy_(addend)
    return gm.gemm(a, b, addend, alpha=alpha, beta=beta, out=out, precision=precision)


def _checked(a: Any, b: Any, c: Any, out_dtype: Any) -> tuple[tuple[Any, ...], Any]:
    dtype = a.dtype if out_dtype is None else out_dtype
    check_dtypes(a=a, b=b)
    shape = result_shape(a, b)
    if c is not None:
        check_addend("c", c, shape)
    return shape, dtype


#: alpha * a @ b + beta * c for tensors of two or more dimensions, c broadcast to the shape of the product.
gemm = torch.library.custom_op("gemmule::gemm", _compute, mutates_args=(), schema=_SCHEMA)


@gemm.register_fake
def _describe(a: Any, b: Any, c: Any, alpha: float, beta: float, out_dtype: Any, precision: str | None) -> Any:
    del alpha, beta, precision
    shape, dtype = _checked(a, b, c, out_dtype)
    return a.new_empty(shape, dtype=dtype)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    del output
    a, b, c, ctx.alpha, ctx.beta, _, ctx.precision = inputs
    ctx.save_for_backward(a, b)
    ctx.addend = None if c is None else (c.shape, c.dtype)


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    # Both factors of one type: the kernels for tensor cores take no others.
    factor = grad.to(a.dtype)
    grad_a = grad_b = grad_c = None
    if ctx.needs_input_grad[0]:
        grad_a = _product(factor, b.mT, ctx).sum_to_size(a.shape)
    if ctx.needs_input_grad[1]:
        if math.prod(b.shape[:-2]) == 1 and a.shape[:-2] == grad.shape[:-2]:
            # What b was multiplied with in every matrix of the batch is one long sum.
            grad_b = _product(a.flatten(0, -2).mT, factor.flatten(0, -2), ctx).reshape(b.shape)
        else:
            grad_b = _product(a.mT, factor, ctx).sum_to_size(b.shape)
    if ctx.addend is not None and ctx.needs_input_grad[2]:
        shape, dtype = ctx.addend
        grad_c = (grad.sum_to_size(shape) * ctx.beta).to(dtype)
    return grad_a, grad_b, grad_c, None, None, None, None


def _product(a: Any, b: Any, ctx: Any) -> Any:
    return gemm(a, b, None, ctx.alpha, 0.0, None, ctx.precision)


gemm.register_autograd(_backward, setup_context=_setup)


@gemm.register_vmap
def _over_a_batch(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, int]:
    (a, b, c), options, (of_a, of_b, of_c) = inputs[:3], inputs[3:], in_dims[:3]
    if of_a is None and of_b is None:
        # The product has the batch, even where it is the same in all of it.
        a, of_a = a.expand(info.batch_size, *a.shape), 0
    mapped = ((a, of_a), (b, of_b), (c, of_c))
    rank = max(x.ndim - (dim is not None) for x, dim in mapped if x is not None)
    return gemm(*(_in_front(x, dim, rank) for x, dim in mapped), *options), 0


def _in_front(x: Any, dim: int | None, rank: int) -> Any:
    """Return a tensor with the dimension that is mapped over before `rank` others."""
    if x is None or dim is None:
        return x
    x = x.movedim(dim, 0)
    return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:])
