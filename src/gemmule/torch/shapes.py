"""Shapes and types of a product of tensors; extents may be symbols while a model is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemmule.api.validation.rules import dtype_name
from gemmule.core.errors import ArgumentError, DTypeError, ShapeError, shown

#: Types that have a backward: of the operands of `addmm` and the like.
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)

#: Types of results by name.
_NAMED = {str(x).removeprefix("torch."): x for x in (*DTYPES, torch.float8_e4m3fn, torch.float8_e5m2)}
#: Arguments that may be None.
_OPTIONAL = frozenset({"bias", "scale_result", "offs"})


def check_tensors(**given: Any) -> None:
    """Refuse what is no tensor, and tensors without one shape or without strides; optional arguments may be None.

    Raises
    ------
    ArgumentError
        If an argument is one of these.
    """
    for name, x in given.items():
        if x is None and name in _OPTIONAL:
            continue
        if not isinstance(x, torch.Tensor):
            remedy = (
                "call it as gemmule.torch's, whose functions torch.fx.symbolic_trace takes, or trace with torch.export"
                if isinstance(x, torch.fx.Proxy)
                else "convert it, e.g. with torch.as_tensor; gemmule.matmul and its like take other libraries' arrays"
            )
            raise ArgumentError(f"{name} is of type {type(x).__name__}, not a torch.Tensor; {remedy}")
        if x.is_nested:
            raise ArgumentError(f"{name} is a nested tensor; multiply its parts, {name}.unbind(), one by one")
        if x.layout is not torch.strided:
            raise ArgumentError(f"{name} has layout {x.layout}; pass {name}.to_dense()")


def modules_of(model: Any, takes: Callable[[Any], bool], where: Any = None) -> list[tuple[str, Any]]:
    """Return the modules of a model that `takes` takes, and `where`, a user's function of name and module, with names.

    Raises
    ------
    ArgumentError
        If `model` is no module, or `where` cannot be called.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model is of type {type(model).__name__}, not a torch.nn.Module; pass one, e.g. a layer")
    if where is not None and not callable(where):
        raise ArgumentError(f"where={where!r} cannot be called; give a function of a module's name and the module")
    return [
        (name, module)
        for name, module in model.named_modules()
        if takes(module) and (where is None or where(name, module))
    ]


def result_shape(a: Any, b: Any, names: tuple[str, str] = ("a", "b")) -> tuple[Any, ...]:
    """Return the shape of ``a @ b`` for tensors of two or more dimensions, in messages by their names.

    Raises
    ------
    ShapeError
        If they have fewer, the inner dimensions differ, or the batches do not broadcast.
    """
    first, second = names
    for name, x in ((first, a), (second, b)):
        if x.ndim < 2:
            raise ShapeError(f"{name} has shape {tuple(x.shape)}; it needs two dimensions or more: use unsqueeze")
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"{first} of shape {tuple(a.shape)} has {a.shape[-1]} columns, {second} of shape {tuple(b.shape)} has "
            f"{b.shape[-2]} rows; they must be equal"
        )
    if a.ndim == 2 or b.ndim == 2:
        # Most calls: PyTorch takes its time over the others.
        return (*a.shape[:-2], *b.shape[:-2], a.shape[-2], b.shape[-1])
    try:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise ShapeError(
            f"batch dimensions {tuple(a.shape[:-2])} of {first} and {tuple(b.shape[:-2])} of {second} do not broadcast "
            "to one shape"
        ) from None
    return (*batch, a.shape[-2], b.shape[-1])


def check_features(input: Any, weight: Any) -> None:  # noqa: A002
    """Refuse an input of a linear layer that has other features than the weight.

    Raises
    ------
    ShapeError
        If it has, or the weight is no matrix.
    """
    if weight.ndim != 2 or input.ndim == 0 or input.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"input has shape {tuple(input.shape)} and weight {tuple(weight.shape)}; linear takes (..., in_features) "
            "and (out_features, in_features)"
        )


def check_addend(name: str, c: Any, shape: tuple[Any, ...]) -> None:
    """Refuse a matrix to add that does not broadcast to the product's shape.

    Raises
    ------
    ShapeError
        If it has more dimensions, or an extent that is neither 1 nor the product's.
    """
    own = tuple(c.shape)
    if own == shape or own == shape[-1:]:
        # Most calls.
        return
    if len(own) > len(shape) or any(
        extent not in (1, product) for extent, product in zip(reversed(own), reversed(shape), strict=False)
    ):
        raise ShapeError(
            f"{name} has shape {own}, which does not broadcast to {tuple(shape)}, the shape of the product; each of "
            "its extents, counted from the last, must be 1 or the product's"
        )


def check_devices(**tensors: Any) -> None:
    """Refuse tensors on several devices.

    Raises
    ------
    ArgumentError
        If there are several.
    """
    (first, one), *others = tensors.items()
    for name, x in others:
        if x.device != one.device:
            raise ArgumentError(f"{first} is on {one.device} and {name} is on {x.device}; move one of them")


def torch_dtype(out_dtype: Any) -> Any:
    """Return the type of a result, given as PyTorch's, by name or as another library's.

    Raises
    ------
    DTypeError
        If PyTorch has none of that name.
    """
    if isinstance(out_dtype, torch.dtype):
        return out_dtype
    # torch.compile traces no more than this.
    if isinstance(out_dtype, str) and out_dtype in _NAMED:
        return _NAMED[out_dtype]
    if (found := getattr(torch, dtype_name(out_dtype, "out_dtype"), None)) is None:
        raise DTypeError(f"out_dtype={shown(out_dtype)} is no type of PyTorch; pass one, e.g. torch.float32")
    return found


def check_dtypes(more: str = "gemmule.matmul", /, **tensors: Any) -> None:
    """Refuse types without a backward, and mixed ones; the error names the function `more`, if any, which takes them.

    Raises
    ------
    DTypeError
        If a tensor is none of `DTYPES`, or they are of several.
    """
    kinds = [x.dtype for x in tensors.values()]
    if kinds[0] in DTYPES and kinds.count(kinds[0]) == len(kinds):
        return
    (first, one), *_ = tensors.items()
    other = f", or use {more}, which takes more types and has no backward" if more else ""
    for name, x in tensors.items():
        if x.dtype not in DTYPES:
            if x.is_quantized:
                raise DTypeError(f"{name} is {_text(x)}; pass {name}.dequantize()")
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise DTypeError(f"{name} is {_text(x)}; gemmule.torch takes {known}. Convert it{other}")
        if x.dtype != one.dtype:
            raise DTypeError(f"{first} is {_text(one)} and {name} is {_text(x)}; convert one of them{other}")


def _text(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")
