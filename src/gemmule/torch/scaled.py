"""The operators of 8-bit floats with scales, for inference: products, those of groups of rows, and quantisation."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

import gemmule as gm
from gemmule.api.validation.scales import check_factors
from gemmule.core.errors import ShapeError
from gemmule.core.quantize_problem import scales_shape

from .no_gradient import refuse_gradient
from .product import may_skip_operator
from .shapes import check_tensors, torch_dtype

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_SCALED, _GROUPED, _QUANTIZE = "gemmule::scaled_mm", "gemmule::scaled_grouped_mm", "gemmule::quantize"


def _check_factors(mat_a: Any, mat_b: Any) -> None:
    if mat_a.dtype not in _FLOAT8 or mat_b.dtype not in _FLOAT8:
        check_factors(mat_a=mat_a, mat_b=mat_b)


def scaled_mm(
    mat_a: Any,
    mat_b: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Any:
    """Multiply matrices of 8-bit floats with scales, as `torch._scaled_mm`; a backward is an error, as there.

    Unlike PyTorch's, scales of both operands may differ in kind, and have any strides; results may be float32 with
    any scales.

    Parameters
    ----------
    mat_a, mat_b : Tensor
        Operands (m, k) and (k, n), of torch.float8_e4m3fn or torch.float8_e5m2.
    scale_a, scale_b : Tensor
        Scales, of the shapes of `gemmule.scaled_gemm`: of everything, of rows and columns, or by blocks.
    bias : Tensor, optional
        Added to each row.
    scale_result : Tensor, optional
        One float32 that the sum is multiplied by before it is rounded.
    out_dtype : dtype, optional
        Type of the result, or its name; that of `mat_a` by default, as in PyTorch.
    use_fast_accum : bool, optional
        Less exact sums are allowed, and not used.

    Returns
    -------
    Tensor
        The product.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, UnsupportedError
        As of `gemmule.scaled_gemm`.
    """
    del use_fast_accum
    check_tensors(mat_a=mat_a, mat_b=mat_b, scale_a=scale_a, scale_b=scale_b, bias=bias, scale_result=scale_result)
    _check_factors(mat_a, mat_b)
    dtype = mat_a.dtype if out_dtype is None else torch_dtype(out_dtype)
    if not may_skip(mat_a, mat_b, scale_a, scale_b, bias, scale_result):
        return scaled_operator(mat_a, mat_b, scale_a, scale_b, bias, scale_result, dtype)
    return gm.scaled_gemm(mat_a, mat_b, scale_a, scale_b, bias=bias, scale_result=scale_result, out_dtype=dtype)


def may_skip(*given: Any) -> bool:
    """Return whether nothing would see a call of an operator with these tensors, some of which may be None."""
    tensors = tuple([x for x in given if x is not None])
    return may_skip_operator(tensors) and not (torch.is_grad_enabled() and torch._C._any_requires_grad(*tensors))


def _compute(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, scale_result: Any, out_dtype: Any
) -> Any:  # fmt: skip
    a, b, scale_a, scale_b = (x.detach() for x in (a, b, scale_a, scale_b))
    return gm.scaled_gemm(
        a, b, scale_a, scale_b, bias=None if bias is None else bias.detach(),
        scale_result=None if scale_result is None else scale_result.detach(), out_dtype=out_dtype,
    )  # fmt: skip


torch.library.define(
    _SCALED,
    "(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, Tensor? scale_result, ScalarType out_dtype) "
    "-> Tensor",
)
torch.library.impl(_SCALED, "default", _compute)
#: Products of 8-bit floats with scales.
scaled_operator = torch.ops.gemmule.scaled_mm.default


@torch.library.register_fake(_SCALED)
def _describe(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, scale_result: Any, out_dtype: Any
) -> Any:  # fmt: skip
    del scale_a, scale_b, bias, scale_result
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ShapeError(f"mat_a has shape {tuple(a.shape)} and mat_b {tuple(b.shape)}; give (m, k) and (k, n)")
    return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype)


def scaled_grouped_mm(
    mat_a: Any,
    mat_b: Any,
    scale_a: Any,
    scale_b: Any,
    offs: Any,
    *,
    bias: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Any:
    """Multiply groups of rows of 8-bit floats with scales, as `torch._scaled_grouped_mm`; a backward is an error.

    Parameters
    ----------
    mat_a, mat_b : Tensor
        Operands (m, k) and (groups, k, n), of torch.float8_e4m3fn or torch.float8_e5m2; on a GPU contiguous along k.
    scale_a, scale_b : Tensor of torch.float32
        Scales of rows, (m,), and of the columns of each matrix, (groups, n); or of one element each.
    offs : Tensor of int32, shape (groups,)
        End of each group, on the operands' device; the host does not wait for it.
    bias : Tensor, optional
        Added to the rows of each group, (groups, n).
    out_dtype : dtype, optional
        Type of the result, or its name: torch.bfloat16 by default, torch.float16 or torch.float32.
    use_fast_accum : bool, optional
        Less exact sums are allowed, and not used.

    Returns
    -------
    Tensor, shape (m, n)
        The product; rows beyond the groups are zero.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, UnsupportedError
        As of `gemmule.grouped_gemm`.
    """
    del use_fast_accum
    check_tensors(mat_a=mat_a, mat_b=mat_b, scale_a=scale_a, scale_b=scale_b, offs=offs, bias=bias)
    _check_factors(mat_a, mat_b)
    scale_a = scale_a.unsqueeze(-1) if scale_a.ndim == 1 else scale_a
    scale_b = scale_b.unsqueeze(1) if scale_b.ndim == 2 else scale_b
    dtype = torch.bfloat16 if out_dtype is None else torch_dtype(out_dtype)
    if not may_skip(mat_a, mat_b, scale_a, scale_b, offs, bias):
        return grouped_operator(mat_a, mat_b, scale_a, scale_b, offs, bias, dtype)
    return gm.grouped_gemm(mat_a, mat_b, offs, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=dtype)


def _compute_groups(
    a: Any, b: Any, scale_a: Any, scale_b: Any, offs: Any, bias: Any, out_dtype: Any
) -> Any:  # fmt: skip
    a, b, scale_a, scale_b = (x.detach() for x in (a, b, scale_a, scale_b))
    return gm.grouped_gemm(
        a, b, offs, scale_a=scale_a, scale_b=scale_b, bias=None if bias is None else bias.detach(), out_dtype=out_dtype
    )


torch.library.define(
    _GROUPED,
    "(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor offs, Tensor? bias, ScalarType out_dtype) -> Tensor",
)
torch.library.impl(_GROUPED, "default", _compute_groups)
#: Products of groups of rows of 8-bit floats with scales.
grouped_operator = torch.ops.gemmule.scaled_grouped_mm.default


@torch.library.register_fake(_GROUPED)
def _describe_groups(
    a: Any, b: Any, scale_a: Any, scale_b: Any, offs: Any, bias: Any, out_dtype: Any
) -> Any:  # fmt: skip
    del scale_a, scale_b, offs, bias
    if a.ndim != 2 or b.ndim != 3 or a.shape[1] != b.shape[1]:
        raise ShapeError(f"mat_a has shape {tuple(a.shape)} and mat_b {tuple(b.shape)}; give (m, k) and (groups, k, n)")
    return a.new_empty((a.shape[0], b.shape[2]), dtype=out_dtype)


@register_flop_formula(torch.ops.gemmule.scaled_grouped_mm)
@register_flop_formula(torch.ops.gemmule.scaled_mm)
def _flop(a_shape: Any, b_shape: Any, *_: Any, **__: Any) -> int:
    """Count operations for `torch.utils.flop_counter.FlopCounterMode`."""
    return 2 * int(a_shape[0] * a_shape[1] * b_shape[-1])


def _quantize(x: Any, by: str, dtype: Any) -> tuple[Any, Any]:
    return gm.quantize(x.detach(), by=by, dtype=dtype)


torch.library.define(_QUANTIZE, "(Tensor x, str by, ScalarType dtype) -> (Tensor, Tensor)")
torch.library.impl(_QUANTIZE, "default", _quantize)
#: Quantisation of a matrix: 8-bit floats, and their scales in float32.
quantize_operator = torch.ops.gemmule.quantize.default


@torch.library.register_fake(_QUANTIZE)
def _describe_quantized(x: Any, by: str, dtype: Any) -> tuple[Any, Any]:
    if x.ndim not in (2, 3):
        raise ShapeError(f"x has shape {tuple(x.shape)}; quantisation is of a matrix or a stack of matrices")
    rows, cols = scales_shape(by, *x.shape[-2:])
    scales = x.new_empty((cols, rows * math.prod(x.shape[:-2])), dtype=torch.float32)
    by_columns = scales if cols == 1 else scales.T
    return x.new_empty(x.shape, dtype=dtype), by_columns.reshape(*x.shape[:-2], rows, cols)


for _operator in (_SCALED, _GROUPED, _QUANTIZE):
    refuse_gradient(_operator)
