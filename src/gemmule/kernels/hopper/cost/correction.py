"""What measured times add to the limits of the cost model: see `gemmule.kernels.parts.learned_correction`."""

from __future__ import annotations

import functools
from math import log2
from pathlib import Path

import numpy as np

from gemmule.kernels.parts.learned_correction import Given, Networks

from .rates import Numbers, OperandLayout, Operation, TileRates

#: The largest factor, as a logarithm to base 2.
_MOST = 0.8
#: Numbers of a product among its features, which stand before how its operands lie.
NUMBERS = 6


@functools.cache
def _networks() -> tuple[Networks, Numbers]:
    """Return the networks, and their weights of what the limits say of a product and of its numbers."""
    found = Networks(Path(__file__).with_name("correction.json"), _MOST)
    numbers = np.concatenate((found.first["mixed"], found.first["problem"][:NUMBERS]))
    return found, np.ascontiguousarray(numbers.T)


def learned_chips() -> tuple[str, ...]:
    """Return the chips that the correction was fitted to."""
    return _networks()[0].chips


def problem_features(one: Operation) -> list[list[float]]:
    """Return what is read of a product: in two rows, as it is and with swap-AB."""
    rows, cols, *logs = product_numbers(one)
    return [[rows, cols, *logs, *_lines(one, 0)], [cols, rows, *logs, *_lines(one, 1)]]


def product_numbers(one: Operation) -> tuple[float, ...]:
    """Return the numbers that are read of a product, of rows and of columns first."""
    rows, cols, k_tiles = log2(one.rows), log2(one.cols), log2(one.k_tiles)
    return rows, cols, k_tiles, one.last, log2(one.read + one.written), log2(one.written)


def _lines(one: Operation, swap_ab: int) -> tuple[float, ...]:
    """Return what is read of how operands and the result lie."""
    a, b = (one.b, one.a) if swap_ab else (one.a, one.b)
    result = one.result_begin in (1, 2), one.result_begin == 3, one.result_item / 2 - 1
    return *_of_lines(a), *_of_lines(b), *result


def _of_lines(lines: OperandLayout) -> tuple[bool, bool, bool]:
    return lines.begin in (1, 2), lines.begin == 3, lines.across


def correction(of: TileRates, one: Operation, read: Numbers) -> Numbers:
    """Return for each column of `read` the factor by which that is expected to take longer than the limits say.

    Parameters
    ----------
    of : TileRates
        The configs, on a GPU.
    one : Operation
        The product.
    read : array
        What `times.limits` returns of both, a row for each quantity.
    """
    nets, weights = _networks()
    lies = one.a, one.b, one.prepared, one.result_begin, one.result_item, one.float8
    return nets.factors(weights, read, of.remembered(lies, lambda: _given_of_each(nets, of, one)))


def _given_of_each(nets: Networks, of: TileRates, one: Operation) -> Given:
    """Return what is given, of a product and of a prepared one."""
    every = [nets.given(_first(nets, of, x), of.gpu.learned) for x in one.each()]
    joined = [of.of_each([array.T for array in arrays]).T for arrays in zip(*every, strict=True)]
    return Given(*(np.ascontiguousarray(array) for array in joined))


def _first(nets: Networks, of: TileRates, one: Operation) -> Numbers:
    """Return the sums of the first layer by what configs and elements are, and by how operands and the result lie."""
    lines = np.array([_lines(one, 0), _lines(one, 1)], np.float32) @ nets.first["problem"][NUMBERS:]
    found: Numbers = of.features() @ nets.first["config"] + of.of_layout(one).features @ nets.first["operands"]
    found += lines.take(of.side, axis=0) + one.float8 * nets.first["float8"]
    return found
