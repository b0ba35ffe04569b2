"""Validation of the arguments of `gemmule.outofcore.matmul`, before any file is opened."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gemmule.core.errors import ArgumentError, shown

from ..validation.rules import number_in

#: Kinds of numbers, the narrowest first, with what makes Python's own of them.
_KINDS: list[tuple[type, Callable[[Any], Any]]] = [
    (numbers.Integral, int),
    (numbers.Real, float),
    (numbers.Complex, complex),
]


def extents(name: str, given: Any) -> tuple[int, int] | None:
    """Return rows and columns of chunks or shards, of which one number stands for both.

    Raises
    ------
    ArgumentError
        If they are no two whole numbers from 1.
    """
    if given is None:
        return None
    pair = _whole_numbers(given)
    if len(pair) == 1:
        pair = (*pair, *pair)
    if len(pair) != 2 or min(pair) < 1:
        raise ArgumentError(f"{name}={shown(given)} are not rows and columns; give two whole numbers, as (1024, 512)")
    return pair[0], pair[1]


def ordinals(given: Any) -> tuple[int, ...] | None:
    """Return the numbers of GPUs, of which one may stand alone.

    Raises
    ------
    ArgumentError
        If they are no whole numbers.
    """
    if given is None:
        return None
    numbers_given = _whole_numbers(given)
    if not numbers_given:
        raise ArgumentError(
            f"devices={shown(given)} are no numbers of GPUs; give some, as [0, 1], or leave devices out"
        )
    return numbers_given


def factor(name: str, value: Any) -> Any:
    """Return alpha or beta as Python's own number, which is written into journals and compares without rounding.

    Raises
    ------
    ArgumentError
        If it is no number, or none that a float64 has room for.
    """
    value = number_in(name, value)
    for kind, number in _KINDS:
        if isinstance(value, kind):
            try:
                return number(value)
            except OverflowError:
                raise ArgumentError(f"{name} does not fit into a float64; scale the matrices instead") from None
    raise ArgumentError(
        f"{name} is a {type(value).__name__}, not a number; pass a number, or an array without dimensions"
    )


def name_or_none(name: str, given: Any) -> str | None:
    """Return what is to be a name.

    Raises
    ------
    ArgumentError
        If it is no text.
    """
    if given is not None and not isinstance(given, str):
        raise ArgumentError(f"{name}={shown(given)} is no text; give a name, or leave {name} out")
    return given


def flag(name: str, given: Any) -> bool:
    """Return a switch.

    Raises
    ------
    ArgumentError
        If it is neither True nor False: a text such as ``'no'`` would count as True.
    """
    if isinstance(given, (bool, np.bool_)):
        return bool(given)
    raise ArgumentError(f"{name}={shown(given)} is neither True nor False; give one of the two")


def told(progress: Any) -> Any:
    """Return what is told of progress.

    Raises
    ------
    ArgumentError
        If it cannot be called.
    """
    if progress is not None and not callable(progress):
        raise ArgumentError(f"progress={progress!r} cannot be called; give a function of two numbers: done and in all")
    return progress


def _whole_numbers(given: Any) -> tuple[int, ...]:
    """Return a number, or several, as a tuple; an empty one for what is neither."""
    items = given if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    try:
        return tuple(map(operator.index, items))
    except (TypeError, NotImplementedError):
        # The latter of a memoryview of several dimensions.
        return ()
