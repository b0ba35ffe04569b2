"""Networks of two hidden layers that learn what predicted times are off by: their training and their outputs.

Needs PyTorch, and no GPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

#: Error, as a logarithm to base 2, beyond which its loss is linear.
_HUBER = 0.1
#: Names of a network's arrays.
_ARRAYS = ("first", "hidden", "out", "biases", "out_bias")


class Training(NamedTuple):
    """Units of both layers, networks, rounds, products' configs of a step, learning rate, and decay of weights."""

    units: tuple[int, int]
    networks: int
    epochs: int
    batch: int
    rate: float
    decay: float


class Networks:
    """Networks that are trained together, of which each starts and sees its samples at random.

    Parameters
    ----------
    inputs : tensor
        A row for each sample.
    wanted, weights : tensor
        Logarithms to base 2 that the networks are to return, and what each sample counts.
    training : Training
        How they are trained.
    start : dict, optional
        The arrays that each network starts with, as of `weights`.
    """

    def __init__(
        self,
        inputs: torch.Tensor,
        wanted: torch.Tensor,
        weights: torch.Tensor,
        training: Training,
        start: dict[str, Any] | None = None,
    ) -> None:
        torch.manual_seed(0)
        count, width = inputs.shape
        (first, second), networks, epochs, batch, rate, decay = training
        shapes = ((width, first, 1.4), (first, second, 1.4), (second, 1, 0.3))
        layers = [torch.randn(networks, rows, cols) * (gain / rows**0.5) for rows, cols, gain in shapes]
        biases = [torch.zeros(networks, 1, second), torch.zeros(networks, 1, 1)]
        if start is not None:
            given = (torch.tensor(start[name], dtype=torch.float32) for name in _ARRAYS)
            *layers, second_biases, bias = (
                one.reshape(empty.shape[1:]).repeat(networks, 1, 1)
                for one, empty in zip(given, (*layers, *biases), strict=True)
            )
            biases = [second_biases, bias]
        self._parameters = [one.requires_grad_() for one in (*layers, *biases)]
        optimizer = torch.optim.AdamW(self._parameters, rate, betas=(0.9, 0.99), weight_decay=decay)
        steps = max(epochs * -(-count // batch), 1)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.15)
        for _ in range(epochs):
            order = torch.stack([torch.randperm(count) for _ in range(networks)])
            for chosen in order.split(batch, dim=1):
                error = (self._outputs(inputs[chosen]) - wanted[chosen]).abs()
                loss = torch.where(error < _HUBER, error * error / 2, _HUBER * (error - _HUBER / 2))
                optimizer.zero_grad()
                (loss * weights[chosen]).mean().backward()
                optimizer.step()
                schedule.step()

    def _outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        first, second, out, biases, bias = self._parameters
        layer = torch.relu(inputs @ first)
        layer = torch.relu(layer @ second + biases)
        return (layer @ out + bias)[..., 0]

    def logs(self, inputs: torch.Tensor) -> Any:
        """Return the mean of the networks' outputs."""
        with torch.no_grad():
            return self._outputs(inputs).mean(dim=0).numpy()

    def weights(self) -> list[dict[str, Any]]:
        """Return the arrays of each network: first, hidden, biases, out, out_bias."""
        first, second, out, biases, bias = (one.detach().numpy() for one in self._parameters)
        return [
            {"first": a, "hidden": b, "biases": d[0], "out": c[:, 0], "out_bias": e[0, 0]}
            for a, b, c, d, e in zip(first, second, out, biases, bias, strict=True)
        ]


def rounded(weights: dict[str, Any]) -> dict[str, Any]:
    """Return arrays as nested lists of numbers with three digits."""
    return {name: _digits(value.tolist()) for name, value in weights.items()}


def _digits(value: Any) -> Any:
    return [_digits(one) for one in value] if isinstance(value, list) else float(f"{value:.3g}")
