"""A linear layer of 8-bit weights with scales, and its place in a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

import gemmule as gm
from gemmule.core.block_scales import BLOCK
from gemmule.core.errors import ArgumentError
from gemmule.core.name_suggestions import remedy_for
from gemmule.core.quantize_problem import LEAST_SCALE

from .functions import as_autocast_wants
from .layers import Linear
from .scaled import may_skip, quantize_operator, scaled_operator
from .shapes import check_features, check_tensors, modules_of

#: Unit of a scale in activations, by kind of quantisation.
KINDS = {"fp8-row": "row", "fp8-block": "block"}
_FLOAT8 = torch.float8_e4m3fn
#: Features of a layer that is replaced: multiples, whose rows of 8-bit floats TMA loads.
_MULTIPLE = 16
_INPUTS = (torch.float32, torch.float16, torch.bfloat16)
#: Module and name of a layer of transformers that holds such weights already, as DeepSeek-V3's checkpoint does.
_LOADED = "transformers.integrations.finegrained_fp8", "FP8Linear"
#: Layers that the warning describes one by one.
_DESCRIBED = 3


class QuantizedLinear(torch.nn.Module):
    """A linear layer whose weights are 8-bit floats, and whose inputs are quantised at each call; for inference.

    `quantize_linear` makes it of a `torch.nn.Linear`.

    Attributes
    ----------
    kind : str
        ``fp8-row``: weights have a scale for each row, inputs one for each token. ``fp8-block``: weights have one for
        each 128 x 128, inputs one for each 128 features of a token, as DeepSeek-V3's.
    weight : Tensor of torch.float8_e4m3fn, shape (out_features, in_features)
        The weights.
    weight_scale : Tensor of torch.float32
        Their scales, (out_features, 1), or one for each block.
    bias : Parameter or None
        Added to each row.
    """

    kind: str
    in_features: int
    out_features: int
    bias: Any
    weight: Any
    weight_scale: Any

    def forward(self, input: Any) -> Any:  # noqa: A002
        """Return ``input @ weight.T + bias`` over any leading dimensions, in the type of the input or of autocast."""
        return quantized_product(input, self.weight, self.weight_scale, self.bias, self.kind)

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        """Move weights and scales as `fn` moves a tensor, in their types: ``half()`` is for the other layers."""
        own = {name: self._buffers.pop(name) for name in ("weight", "weight_scale")}
        try:
            super()._apply(fn, recurse)
        finally:
            self._buffers.update(own)
        for name, x in own.items():
            moved = fn(x)
            # A conversion may have rounded the values: they are moved alone.
            self._buffers[name] = moved if moved.dtype == x.dtype else x.to(moved.device)
        return self

    def extra_repr(self) -> str:
        """Return the text of the layer for `print`."""
        return f"in_features={self.in_features}, out_features={self.out_features}, kind={self.kind!r}"


def quantized_product(input: Any, weight: Any, weight_scale: Any, bias: Any, kind: str) -> Any:  # noqa: A002
    """Compute what a `QuantizedLinear` of these tensors does."""
    check_tensors(input=input)
    check_features(input, weight)
    if input.requires_grad and torch.is_grad_enabled():
        raise ArgumentError("layers of 8-bit weights have no backward; call the model under torch.no_grad()")
    input, bias = as_autocast_wants(input, bias)  # noqa: A001
    rows = input if input.ndim == 2 else input.reshape(-1, weight.shape[1])
    if may_skip(rows, weight, weight_scale, bias):
        values, scales = gm.quantize(rows, by=KINDS[kind], dtype=_FLOAT8)
        found = gm.scaled_gemm(values, weight.T, scales, weight_scale.T, bias=bias, out_dtype=input.dtype)
    else:
        values, scales = quantize_operator(rows, KINDS[kind], _FLOAT8)
        found = scaled_operator(values, weight.T, scales, weight_scale.T, bias, None, input.dtype)
    return found if input.ndim == 2 else found.reshape(*input.shape[:-1], weight.shape[0])


# A symbolic trace has the function as one node.
torch.fx.wrap("quantized_product")


def quantize_linear(
    model: Any, kind: str = "fp8-row", *, where: Callable[[str, Any], bool] | None = None
) -> tuple[str, ...]:
    """Let the linear layers of a model multiply 8-bit floats with scales, in place; for inference.

    Every module that is a `torch.nn.Linear` or a `Linear`, of float32, float16 or bfloat16 and of numbers of features
    that are multiples of 16, becomes a `QuantizedLinear`: the same object with the same bias, hooks and names. Its
    weights are halved or quartered; what they were is lost. With ``fp8-block`` so does an ``FP8Linear`` of transformers
    whose scales are of 128 x 128 weights and whose inputs are quantised at each call: weights and scales stay as they
    are. Other layers stay; where all do, a warning says why.

    Parameters
    ----------
    model : torch.nn.Module
        The model; it may itself be the layer.
    kind : {'fp8-row', 'fp8-block'}, optional
        Unit of a scale: each row of weights and each token, or each 128 x 128 block and each 128 features of a token.
    where : callable, optional
        Takes a module's name and the module, and returns whether it is replaced; by default all are.

    Returns
    -------
    tuple of str
        Names of the modules that were replaced.

    Raises
    ------
    ArgumentError
        If `model` is no module, or the kind is not known.

    Examples
    --------
    >>> import torch, gemmule.torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
    >>> gemmule.torch.quantize_linear(model, "fp8-row")
    ('0', '2')
    """
    if kind not in tuple(KINDS):
        raise ArgumentError(f"kind={kind!r} is not known; {remedy_for(kind, KINDS)}")
    found = modules_of(model, lambda module: _is_candidate(module) and _why_not(module, kind) is None, where)
    if not found:
        warnings.warn(f"no layer was quantised: {_why_none(model, kind)}", stacklevel=2)
    for _, module in found:
        _replace(module, kind)
    return tuple(name for name, _ in found)


def _why_none(model: Any, kind: str) -> str:
    """Say why no layer of a model is replaced."""
    reasons = {name: _why_not(module, kind) for name, module in modules_of(model, _is_candidate)}
    if not reasons:
        done = any(isinstance(module, QuantizedLinear) for module in model.modules())
        return "all linear layers are QuantizedLinear already" if done else "the model has no torch.nn.Linear"
    others = {name: reason for name, reason in reasons.items() if reason is not None}
    if len(others) < len(reasons):
        return "where=... is false for every layer that could be"
    words = [f"layer {name!r} {reason}" for name, reason in list(others.items())[:_DESCRIBED]]
    return "; ".join([*words, f"and {len(others) - len(words)} more"] if len(others) > len(words) else words)


def _is_candidate(module: Any) -> bool:
    return isinstance(module, torch.nn.Linear) or _is_loaded(module)


def _is_loaded(module: Any) -> bool:
    return (type(module).__module__, type(module).__name__) == _LOADED


def _why_not(module: Any, kind: str) -> str | None:
    """Say why a linear layer cannot become a `QuantizedLinear`, or None."""
    loaded, name = _is_loaded(module), type(module).__name__
    if not loaded and type(module) not in (torch.nn.Linear, Linear):
        return f"is a {name}, a subclass of torch.nn.Linear, which may compute something else"
    if loaded and KINDS[kind] != "block":
        return f"is a {name} with scales of blocks; give kind='fp8-block'"
    # Former versions of transformers have no scales of inputs.
    scaled_inputs = getattr(module, "activation_scale", None) is not None
    if loaded and (scaled_inputs or tuple(module.block_size or ()) != (BLOCK, BLOCK)):
        return f"is a {name} without scales of {BLOCK} x {BLOCK} weights, or with scales of its inputs"
    dtype, types = module.weight.dtype, (_FLOAT8,) if loaded else _INPUTS
    if dtype not in types:
        *others, last = map(str, types)
        return f"is of {dtype}; its type must be {', '.join(others)}{' or ' if others else ''}{last}"
    if module.in_features % _MULTIPLE or module.out_features % _MULTIPLE:
        return f"has {module.in_features} x {module.out_features} features; both must be multiples of {_MULTIPLE}"
    return None


@torch.no_grad()
def _replace(module: Any, kind: str) -> None:
    weight = module.weight.detach()
    if weight.dtype == _FLOAT8:
        values, scales = weight, module.weight_scale_inv.detach().float()
        del module.weight_scale_inv
    else:
        values, scales = quantize_operator(weight, "row", _FLOAT8) if KINDS[kind] == "row" else quantized_blocks(weight)
    del module.weight
    module.register_buffer("weight", values)
    module.register_buffer("weight_scale", scales)
    vars(module).pop("precision", None)
    module.__class__, module.kind = QuantizedLinear, kind


def quantized_blocks(weight: Any) -> tuple[Any, Any]:
    """Return weights as 8-bit floats with a scale for each block of 128 x 128."""
    rows, cols = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -cols % BLOCK, 0, -rows % BLOCK))
    blocks = padded.reshape(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    largest = torch.finfo(_FLOAT8).max
    scales = (blocks.abs().amax((1, 3)) / largest).clamp(min=LEAST_SCALE)
    values = (blocks / scales[:, None, :, None]).clamp(-largest, largest).reshape(padded.shape)
    return values[:rows, :cols].to(_FLOAT8).contiguous(), scales
