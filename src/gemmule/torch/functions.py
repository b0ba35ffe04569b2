"""Products under PyTorch's names, with its order of arguments."""

from __future__ import annotations

from typing import Any

import torch

from gemmule.api.validation.rules import scalar
from gemmule.core.errors import ArgumentError, ShapeError

from .linear_cache import planned, repeated
from .product import may_skip_operator, multiply
from .shapes import (
    DTYPES,
    check_addend,
    check_devices,
    check_dtypes,
    check_features,
    check_tensors,
    result_shape,
)


def matmul(input: Any, other: Any, *, precision: str | None = None) -> Any:  # noqa: A002
    """Multiply two tensors, by the rules of `torch.matmul`; differentiable.

    Parameters
    ----------
    input : Tensor, shape (..., m, k) or (k,)
        First operand: float64, float32, float16, bfloat16, complex64 or complex128, on a CUDA device or the CPU, any
        strides; lazy conjugates are read in place.
    other : Tensor, shape (..., k, n) or (k,)
        Second operand, of the same type. Batch dimensions are broadcast.
    precision : {'ieee', 'tf32', 'bf16x6', 'ozaki', 'ozaki-14', 'ozaki-15', 'ozaki-16'}, optional
        For float32, float64 and complex types, as of `gemmule.matmul`. PyTorch's own setting for TF32 is not read.

    Returns
    -------
    Tensor, shape (..., m, n)
        The product. A 1-D operand's dimension is left out.

    Raises
    ------
    ShapeError, DTypeError
        If shapes or types do not fit together.

    Examples
    --------
    >>> import torch, gemmule.torch
    >>> gemmule.torch.matmul(torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[1., 2.],
            [3., 4.]])
    """
    check_tensors(input=input, other=other)
    input, other = as_autocast_wants(input, other)  # noqa: A001
    for name, x in (("input", input), ("other", other)):
        if x.ndim == 0:
            raise ShapeError(f"{name} has shape () but must have at least one dimension; use * to scale by a number")
    row, col = input.ndim == 1, other.ndim == 1
    a = input.unsqueeze(0) if row else input
    b = other.unsqueeze(-1) if col else other
    if (
        input.dtype != other.dtype
        or input.dtype not in DTYPES
        or a.shape[-1] != b.shape[-2]
        or (a.ndim > 2 and b.ndim > 2 and a.shape[:-2] != b.shape[:-2])
        or input.device != other.device
    ):
        # The operator would find what is wrong, and name its own parameters.
        check_devices(input=input, other=other)
        check_dtypes(input=input, other=other)
        result_shape(a, b, ("input", "other"))
    product = multiply(a, b, None, 1.0, 0.0, None, precision)
    if col:
        product = product.squeeze(-1)
    return product.squeeze(-1 if col else -2) if row else product


def addmm(
    input: Any,  # noqa: A002
    mat1: Any,
    mat2: Any,
    *,
    beta: float = 1,
    alpha: float = 1,
    precision: str | None = None,
) -> Any:
    """Compute ``beta * input + alpha * mat1 @ mat2``, as `torch.addmm`; differentiable.

    Parameters
    ----------
    input : Tensor, broadcastable to (m, n)
        Addend of shape (m, n), (1, n), (m, 1), (1, 1), (n,), (1,) or (). With ``beta=0`` it is not read.
    mat1 : Tensor, shape (m, k)
        First operand, types as of `matmul`.
    mat2 : Tensor, shape (k, n)
        Second operand, of the same type, as is `input`.
    beta, alpha : number
        Scalars without a gradient; 0-d arrays and tensors too, if they are not on a GPU, where reading them would
        synchronise.
    precision : {'ieee', 'tf32', 'bf16x6', 'ozaki', 'ozaki-14', 'ozaki-15', 'ozaki-16'}, optional
        As of `matmul`.

    Returns
    -------
    Tensor, shape (m, n)
        The sum, rounded once.

    Raises
    ------
    ShapeError
        If `mat1` or `mat2` is not a matrix, they do not fit together, or `input` does not broadcast to their product.
    DTypeError
        If the types differ, or have no backward.
    """
    return _add_product(("input", input), ("mat1", mat1), ("mat2", mat2), 2, beta, alpha, precision)


def baddbmm(
    input: Any,  # noqa: A002
    batch1: Any,
    batch2: Any,
    *,
    beta: float = 1,
    alpha: float = 1,
    precision: str | None = None,
) -> Any:
    """Compute ``beta * input + alpha * batch1 @ batch2`` for every matrix, as `torch.baddbmm`; differentiable.

    Parameters
    ----------
    input : Tensor, broadcastable to (batch, m, n)
        Addend. With ``beta=0`` it is not read.
    batch1 : Tensor, shape (batch, m, k)
        First operands, types as of `matmul`.
    batch2 : Tensor, shape (batch, k, n)
        Second operands, of the same type, as is `input`.
    beta, alpha : number
        Scalars without a gradient; 0-d arrays and tensors too, if they are not on a GPU, where reading them would
        synchronise.
    precision : {'ieee', 'tf32', 'bf16x6', 'ozaki', 'ozaki-14', 'ozaki-15', 'ozaki-16'}, optional
        As of `matmul`.

    Returns
    -------
    Tensor, shape (batch, m, n)
        The sums, each rounded once.

    Raises
    ------
    ShapeError, DTypeError
        As of `addmm`; also if the two batches differ, which are not broadcast.
    """
    check_tensors(batch1=batch1, batch2=batch2)
    if batch1.ndim == batch2.ndim == 3 and batch1.shape[0] != batch2.shape[0]:
        raise ShapeError(
            f"batch1 has {batch1.shape[0]} matrices and batch2 has {batch2.shape[0]}; baddbmm does not broadcast them: "
            "use expand"
        )
    return _add_product(("input", input), ("batch1", batch1), ("batch2", batch2), 3, beta, alpha, precision)


def linear(input: Any, weight: Any, bias: Any = None, *, precision: str | None = None) -> Any:  # noqa: A002
    """Compute ``input @ weight.T + bias``, as `torch.nn.functional.linear`; differentiable.

    Parameters
    ----------
    input : Tensor, shape (..., in_features)
        Rows, over any dimensions: one product if their stride is constant. Types as of `matmul`.
    weight : Tensor, shape (out_features, in_features)
        Weights, of the same type.
    bias : Tensor, shape (out_features,), optional
        Vector added to each row.
    precision : {'ieee', 'tf32', 'bf16x6', 'ozaki', 'ozaki-14', 'ozaki-15', 'ozaki-16'}, optional
        As of `matmul`.

    Returns
    -------
    Tensor, shape (..., out_features)
        The result, each element rounded once.

    Raises
    ------
    ShapeError, DTypeError
        If shapes or types do not fit together.
    """
    # Its guards identify a cached call; all others are checked here.
    if not torch.compiler.is_dynamo_compiling() and (known := repeated(input, weight, bias, precision)) is not None:
        return known
    check_tensors(input=input, weight=weight, bias=bias)
    input, weight, bias = as_autocast_wants(input, weight, bias)  # noqa: A001
    check_features(input, weight)
    if bias is None:
        check_dtypes(input=input, weight=weight)
    else:
        check_dtypes(input=input, weight=weight, bias=bias)
        if tuple(bias.shape) != (weight.shape[0],):
            raise ShapeError(f"bias has shape {tuple(bias.shape)}; weight needs ({weight.shape[0]},)")
    # The cache has no conjugates, which derivatives of complex products have.
    if (
        input.ndim > 1
        and not input.is_complex()
        and may_skip_operator((input, weight) if bias is None else (input, weight, bias))
    ):
        cast = torch.is_autocast_enabled(input.device.type)
        if cast and (known := repeated(input, weight, bias, precision, cast)) is not None:
            return known
        return planned(input, weight, bias, precision, cast)
    rows = input.unsqueeze(0) if input.ndim == 1 else input
    result = multiply(rows, weight.mT, bias, 1.0, 0.0 if bias is None else 1.0, None, precision)
    return result.squeeze(0) if input.ndim == 1 else result


def _add_product(
    given: tuple[str, Any],
    first: tuple[str, Any],
    second: tuple[str, Any],
    rank: int,
    beta: float,
    alpha: float,
    precision: str | None,
) -> Any:
    (given_name, addend), (first_name, a), (second_name, b) = given, first, second
    named = {given_name: addend, first_name: a, second_name: b}
    check_tensors(**named)
    check_devices(**named)
    addend, a, b = as_autocast_wants(addend, a, b)
    for name, x in ((first_name, a), (second_name, b)):
        if x.ndim != rank:
            raise ShapeError(f"{name} has shape {tuple(x.shape)}; it needs {rank} dimensions: matmul takes any number")
    check_dtypes(**{first_name: a, second_name: b, given_name: addend})
    check_addend(given_name, addend, result_shape(a, b, (first_name, second_name)))
    return multiply(a, b, addend, _number("alpha", alpha), _number("beta", beta), None, precision)


def _number(name: str, value: Any) -> float:
    if type(value) is float or type(value) is int:
        return float(value)
    if isinstance(value, torch.Tensor) and value.ndim == 0 and value.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(
            f"{name} requires grad, and is passed without a gradient: pass {name}.detach(), or multiply an operand by "
            "it"
        )
    number: float = scalar(name, value, integer=False, complex_allowed=False)
    return number


def as_autocast_wants(*tensors: Any) -> tuple[Any, ...]:
    """Return tensors in the type of `torch.autocast`, where it is enabled; float64 stays as it is."""
    device = tensors[0].device.type
    # On the meta device asking is an error; torch.compile of older versions cannot trace whether one may ask.
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        x if x is None or not x.is_floating_point() or x.dtype == torch.float64 else x.to(dtype) for x in tensors
    )
