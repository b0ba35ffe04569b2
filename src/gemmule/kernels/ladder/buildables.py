"""Functions ``buildable(config, types)`` of the ladder's GEMM kernels, whose matrices have one type and no batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass

from gemmule.core.spec import Buildable
from gemmule.kernels.parts.tensors import cute_type, major_tensor

Build = Callable[[Any, dict[str, str]], Buildable]


def row_major_buildable(kernel: Callable[..., Any]) -> Build:
    """Return that of a kernel for row-major A (M, K), B (N, K), C and D (M, N).

    Its signature has ``element``, the type of all; ``tiles``, ``whole`` where rows start at multiples of 16 bytes.
    """

    def buildable(config: Any, types: dict[str, str]) -> Buildable:
        element = cute_type(types["element"])
        vector = 128 // element.width if types["tiles"] == "whole" else 1
        return Buildable(kernel(config, types), _fake_args(types, (1, 0, 1, 1), vector, element))

    return buildable


def tma_buildable(kernel: Callable[..., Any]) -> Build:
    """Return that of a kernel for A (M, K), B (N, K), row-major C and D (M, N), in rows or columns of whole 16 bytes.

    Its signature has ``element``, the type of all; ``a_major`` and ``b_major``, ``k`` where they are K-major.
    """

    def buildable(config: Any, types: dict[str, str]) -> Buildable:
        units = (*(1 if types[major] == "k" else 0 for major in ("a_major", "b_major")), 1, 1)
        vector = 128 // cute_type(types["element"]).width
        return Buildable(kernel(config, types), _fake_args(types, units, vector, cutlass.Float32))

    return buildable


def _fake_args(types: dict[str, str], units: tuple[int, ...], vector: int, scalar: Any) -> tuple[Any, ...]:
    """Return fake tensors for matrices with unit stride in modes `units`, and for alpha and beta."""
    return (*(major_tensor(types["element"], unit, vector=vector) for unit in units), scalar(1), scalar(0))
