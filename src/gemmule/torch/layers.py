"""A linear layer, and its place in a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemmule.core.dtype import Precision

from .functions import linear
from .linear_cache import repeated
from .shapes import modules_of

# Of a layer a symbolic trace has this function as one node.
torch.fx.wrap("linear")


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` by gemmule's kernels, forward and backward.

    Parameters
    ----------
    in_features, out_features : int
        Columns of the input and of the output.
    bias : bool
        Whether something is added to each row.
    device, dtype
        As of `torch.nn.Linear`.
    precision : {'ieee', 'tf32', 'bf16x6', 'ozaki', 'ozaki-14', 'ozaki-15', 'ozaki-16'}, optional
        For float32, float64 and complex types, as of `gemmule.matmul`.

    Examples
    --------
    >>> import torch, gemmule.torch
    >>> gemmule.torch.Linear(3, 5)(torch.ones(2, 7, 3)).shape
    torch.Size([2, 7, 5])
    """

    #: The class's is the default of modules pickled before the attribute existed.
    precision: str | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        precision: str | None = None,
    ) -> None:
        Precision.parse(precision)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.precision = precision

    def forward(self, input: Any) -> Any:  # noqa: A002
        """Return ``input @ weight.T + bias`` over any leading dimensions."""
        if torch.compiler.is_dynamo_compiling():
            return linear(input, self.weight, self.bias, precision=self.precision)
        try:
            # PyTorch's dict of a module's parameters.
            parameters = self._parameters
            weight, bias = parameters["weight"], parameters["bias"]
        except KeyError:
            # Parametrizations and sharding put something else in their place.
            weight, bias = self.weight, self.bias
        # As `linear` does first; a call between costs as much as two of PyTorch's checks.
        if (known := repeated(input, weight, bias, self.precision)) is not None:
            return known
        return linear(input, weight, bias, precision=self.precision)

    def extra_repr(self) -> str:
        """Return the text of the layer for `print`."""
        text: str = super().extra_repr()
        return text if self.precision is None else f"{text}, precision={self.precision!r}"


def replace_linear(
    model: Any, *, precision: str | None = None, where: Callable[[str, Any], bool] | None = None
) -> tuple[str, ...]:
    """Let the linear layers of a model compute by gemmule's kernels, in place.

    Every module that is a `torch.nn.Linear` becomes a `Linear`: the same object with the same parameters, hooks and
    names, so that optimizers, checkpoints and references to it stay valid. Subclasses of `torch.nn.Linear` are left
    alone, since they compute something else.

    Parameters
    ----------
    model : torch.nn.Module
        The model; it may itself be the layer.
    precision : {'ieee', 'tf32', 'bf16x6', 'ozaki', 'ozaki-14', 'ozaki-15', 'ozaki-16'}, optional
        For float32, float64 and complex types, as of `gemmule.matmul`.
    where : callable, optional
        Takes a module's name and the module, and returns whether it is replaced; by default all are.

    Returns
    -------
    tuple of str
        Names of the modules that were replaced.

    Raises
    ------
    ArgumentError
        If `model` is no module, or there is no such precision.

    Examples
    --------
    >>> import torch, gemmule.torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> gemmule.torch.replace_linear(model)
    ('0', '2')
    """
    Precision.parse(precision)
    found = modules_of(model, lambda module: type(module) is torch.nn.Linear, where)
    for _, module in found:
        module.__class__ = Linear
        module.precision = precision
    return tuple(name for name, _ in found)
