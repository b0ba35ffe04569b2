"""The operator ``gemmule::grouped_mm``: products of groups whose ends are in a tensor, with their gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

import gemmule as gm
from gemmule.core.errors import ArgumentError, DTypeError, ShapeError

from .functions import as_autocast_wants
from .functions import matmul as product
from .product import as_factor, compute_or_redispatch, differentiate, lies_in_columns, may_skip_operator
from .shapes import check_dtypes, check_tensors, torch_dtype

_NAME = "gemmule::grouped_mm"
#: Bytes of the types that kernels load by TMA, and of what its lines are multiples of.
_HALF, _LINE_BYTES = 2, 16


def grouped_mm(mat_a: Any, mat_b: Any, *, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Multiply groups, as `torch.nn.functional.grouped_mm`; differentiable.

    - mat_a (m, k), mat_b (groups, k, n): `offs` divides the rows. The result is (m, n).
    - mat_a (groups, m, k), mat_b (k, n): `offs` divides the columns. The result is (m, n).
    - mat_a (m, k), mat_b (k, n): `offs` divides k. The result is (groups, m, n).
    - mat_a (groups, m, k), mat_b (groups, k, n), without `offs`: a batch.

    Unlike PyTorch's, the result is zero where no group is, and groups may begin anywhere.

    Parameters
    ----------
    mat_a, mat_b : Tensor
        Operands of one type: on a GPU float16, bfloat16 or float32, on the CPU also float64.
    offs : Tensor of int32, shape (groups,), optional
        End of each group, on the operands' device; the host does not wait for it.
    bias : None
        As in PyTorch, none is added.
    out_dtype : dtype, optional
        Type of the result, or its name: that of the operands.

    Returns
    -------
    Tensor
        The product.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, UnsupportedError
        As of `gemmule.grouped_gemm`.
    """
    check_tensors(mat_a=mat_a, mat_b=mat_b, offs=offs)
    if bias is not None:
        raise ArgumentError("bias is not added by grouped_mm; add it to the result")
    a, b = as_autocast_wants(mat_a, mat_b)
    check_dtypes("", mat_a=a, mat_b=b)
    if a.is_complex():
        raise DTypeError(f"mat_a is {a.dtype}; grouped products take real types: multiply group by group with matmul")
    if out_dtype is not None and (dtype := torch_dtype(out_dtype)) != a.dtype:
        raise DTypeError(f"out_dtype={dtype} differs from the operands' {a.dtype}; convert the result")
    if offs is None:
        if a.ndim != 3 or b.ndim != 3:
            raise ShapeError(
                f"mat_a has shape {tuple(a.shape)} and mat_b {tuple(b.shape)}; without offs both have 3 dimensions"
            )
        return product(a, b)
    if offs.dtype != torch.int32 or offs.ndim != 1:
        kind = str(offs.dtype).removeprefix("torch.")
        remedy = "" if offs.dtype == torch.int32 else ", offs.int()"
        raise DTypeError(f"offs is {kind} of shape {tuple(offs.shape)}; give one dimension of int32{remedy}")
    _shape(a, b, offs)
    return multiply_groups(a, b, offs)


def multiply_groups(a: Any, b: Any, offs: Any) -> Any:
    """Compute what the operator does, past PyTorch's dispatcher where nothing would hear of its being called."""
    if not may_skip_operator((a, b, offs)):
        return _operator(a, b, offs)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return _Grouped.apply(a, b, offs, None, None)
    return _compute(a, b, offs)


def _shape(a: Any, b: Any, offs: Any) -> tuple[Any, ...]:
    """Return the shape of the result."""
    if sorted((a.ndim, b.ndim)) not in ([2, 2], [2, 3]):
        raise ShapeError(
            f"mat_a has shape {tuple(a.shape)} and mat_b {tuple(b.shape)}; with offs one has 2 dimensions, the other 2 "
            "or 3"
        )
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"mat_a has {a.shape[-1]} columns and mat_b {b.shape[-2]} rows; the last dimension of mat_a and the one "
            "before the last of mat_b must be equal"
        )
    if a.ndim == b.ndim:
        return (offs.shape[0], a.shape[0], b.shape[1])
    name, stack = ("mat_b", b) if b.ndim > a.ndim else ("mat_a", a)
    if stack.shape[0] != offs.shape[0]:
        raise ShapeError(
            f"offs has {offs.shape[0]} ends and {name} {stack.shape[0]} matrices; each group has one of each"
            + ("; leave out the leading 0" if offs.shape[0] == stack.shape[0] + 1 else "")
        )
    return (a.shape[-2], b.shape[-1])


def _compute(a: Any, b: Any, offs: Any) -> Any:
    return gm.grouped_gemm(*(x.detach() if x.requires_grad else x for x in (a, b, offs)))


torch.library.define(_NAME, "(Tensor a, Tensor b, Tensor offs) -> Tensor")
torch.library.impl(_NAME, "default", _compute)
_operator = torch.ops.gemmule.grouped_mm.default


@torch.library.register_fake(_NAME)
def _describe(a: Any, b: Any, offs: Any) -> Any:
    return a.new_empty(_shape(a, b, offs))


@register_flop_formula(torch.ops.gemmule.grouped_mm)
def _flop(a_shape: Any, b_shape: Any, *_: Any, **__: Any) -> int:
    """Count operations as if the groups filled what is divided."""
    return 2 * int(math.prod((a_shape[-2], a_shape[-1], b_shape[-1])))


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    if grad is None:
        return (None,) * 5
    a, b, offs = ctx.saved_tensors
    grad, grad_a, grad_b = as_factor(grad, a.dtype), None, None
    wants_a, wants_b, *_ = ctx.needs_input_grad
    if a.ndim == b.ndim:
        # Groups of rows of A.T and of B: their gradients are too.
        grad = _loadable(grad, 1 if lies_in_columns(grad) else 2)
        grad_a = multiply_groups(_loadable(b, 1), grad.mT, offs).mT if wants_a else None
        grad_b = multiply_groups(_loadable(a.mT, 1), grad, offs) if wants_b else None
    elif b.ndim == 3:
        grad = _loadable(grad, 1)
        grad_a = multiply_groups(grad, b.mT, offs) if wants_a else None
        grad_b = _of_groups(a.mT, grad, offs, b) if wants_b else None
    else:
        grad = _loadable(grad, 0)
        grad_a = _of_groups(grad, b.mT, offs, a) if wants_a else None
        grad_b = multiply_groups(grad.mT, a, offs).mT if wants_b else None
    return grad_a, grad_b, None, None, None


def _of_groups(left: Any, right: Any, offs: Any, like: Any) -> Any:
    """Return a product of each group's part of K, its matrices with the layout of `like`."""
    # `right` is: the gradient by the caller, and B as a kernel took it.
    left = _loadable(left, 0)
    if lies_in_columns(like):
        return multiply_groups(right.mT, left.mT, offs).mT
    return multiply_groups(left, right, offs)


def _loadable(x: Any, dim: int) -> Any:
    """Return a factor contiguous along a dimension, which is not divided, in lines of whole 16 bytes, as TMA loads it.

    Kernels of wider types take any layout.
    """
    lines, multiple = x.transpose(dim, -1), _LINE_BYTES // x.element_size()
    *steps, step = lines.stride()
    whole = step == 1 and not any(other % multiple for other in (*steps, x.storage_offset()))
    if whole or x.element_size() > _HALF:
        return x
    count, lines = lines.shape[-1], lines.contiguous()
    if beyond := -count % multiple:
        lines = torch.nn.functional.pad(lines, (0, beyond))[..., :count]
    elif lines.storage_offset() % multiple:
        lines = lines.clone()
    return lines.transpose(dim, -1)


class _Grouped(torch.autograd.function._SingleLevelFunction):
    """The product's derivatives, backward and forward."""

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return compute_or_redispatch(_operator, _compute, inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        del output
        ctx.save_for_backward(*inputs[:3])
        ctx.save_for_forward(*inputs[:3])
        # What has no tangent is no factor, rather than one of zeros.
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        return _backward(ctx, grad)

    @staticmethod
    def jvp(ctx: Any, tangent_a: Any, tangent_b: Any, *_: Any) -> Any:
        a, b, offs = (forward_ad.unpack_dual(x, level=0).primal for x in ctx.saved_tensors)
        terms = [] if tangent_a is None else [_operator(tangent_a, b, offs)]
        terms += [] if tangent_b is None else [_operator(a, tangent_b, offs)]
        return sum(terms[1:], terms[0])


differentiate(_operator, _Grouped)
