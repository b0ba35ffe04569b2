"""The operator ``gemmule::gemm``: what PyTorch needs to know of it to trace, compile, differentiate and batch it."""

from __future__ import annotations

import math
from typing import Any

import torch

import gemmule as gm

from .shapes import check_addend, check_dtypes, result_shape

_NAME = "gemmule::gemm"
_SCHEMA = "(Tensor a, Tensor b, Tensor? c, float alpha, float beta, ScalarType? out_dtype, str? precision) -> Tensor"


def _compute(a: Any, b: Any, c: Any, alpha: float, beta: float, out_dtype: Any, precision: str | None) -> Any:
    shape, dtype = _checked(a, b, c, out_dtype)
    a, b = _plain(a), _plain(b)
    if c is None or beta == 0:
        return gm.gemm(a, b, alpha=alpha, out_dtype=out_dtype, precision=precision)
    addend = _plain(c)
    if beta == 1 and addend.shape != shape and _adds_in_the_kernel(a, precision):
        return gm.gemm(a, b, alpha=alpha, out_dtype=out_dtype, precision=precision, bias=addend)
    # Otherwise what is broadcast is laid out in the output first and read there as C: the sum is rounded once, too.
    out = torch.empty(shape, dtype=dtype, device=a.device)
    if addend.shape != out.shape or not addend.is_contiguous():
        addend = out.copy_(addend)
    return gm.gemm(a, b, addend, alpha=alpha, beta=beta, out=out, precision=precision)


def _adds_in_the_kernel(a: Any, precision: str | None) -> bool:
    """Whether the kernels for these types read a bias by themselves: those for tensor cores do."""
    return a.is_cuda and (a.dtype.itemsize == 2 or (a.dtype == torch.float32 and precision == "tf32"))


def _plain(x: Any) -> Any:
    """Return a tensor that asks for no gradient: here is below where PyTorch keeps them."""
    return x.detach() if x.requires_grad else x


def _checked(a: Any, b: Any, c: Any, out_dtype: Any) -> tuple[tuple[Any, ...], Any]:
    dtype = a.dtype if out_dtype is None else out_dtype
    check_dtypes(a=a, b=b)
    shape = result_shape(a, b)
    if c is not None:
        check_addend("c", c, shape)
    return shape, dtype


# What `torch.library.custom_op` does, without its check at every call that the result shares no memory with an input:
# that is what the tests have `torch.library.opcheck` for.
torch.library.define(_NAME, _SCHEMA)
torch.library.impl(_NAME, "default", _compute)
#: alpha * a @ b + beta * c for tensors of two or more dimensions, c broadcast to the shape of the product.
gemm = torch.ops.gemmule.gemm.default


@torch.library.register_fake(_NAME)
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
    # Both factors of one type, and none that repeats an element: the fast kernels take no others.
    factor = grad.to(a.dtype)
    if 0 in factor.stride():
        factor = factor.contiguous()
    grad_a = grad_b = grad_c = None
    if ctx.needs_input_grad[0]:
        grad_a = _product_like(a, factor, b.mT, ctx).sum_to_size(a.shape)
    if ctx.needs_input_grad[1]:
        if math.prod(b.shape[:-2]) == 1 and a.shape[:-2] == grad.shape[:-2]:
            # What b was multiplied with in every matrix of the batch is one long sum.
            grad_b = _product_like(b, a.flatten(0, -2).mT, factor.flatten(0, -2), ctx).reshape(b.shape)
        else:
            grad_b = _product_like(b, a.mT, factor, ctx).sum_to_size(b.shape)
    if ctx.addend is not None and ctx.needs_input_grad[2]:
        shape, dtype = ctx.addend
        grad_c = (grad.sum_to_size(shape) * ctx.beta).to(dtype)
    return grad_a, grad_b, grad_c, None, None, None, None


def _product_like(x: Any, a: Any, b: Any, ctx: Any) -> Any:
    """Return a product that lies in columns if `x` does: PyTorch copies gradients that lie otherwise than theirs."""
    if x.stride(-2) == 1 and x.stride(-1) != 1:
        return gemm(b.mT, a.mT, None, ctx.alpha, 0.0, None, ctx.precision).mT
    return gemm(a, b, None, ctx.alpha, 0.0, None, ctx.precision)


torch.library.register_autograd(_NAME, _backward, setup_context=_setup)


@torch.library.register_vmap(_NAME)
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
