"""Common keys of signatures.

``a``, ``b``, ``c``, ``d`` and ``acc`` are types of operands and of the accumulators, ``element`` is the common type of
all operands; ``a_major`` and ``b_major`` are the contiguous dimensions of A and B, ``k``, ``m`` or ``n``; ``adds`` is
``yes`` if C is read, else ``no``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable

from .arch import Arch
from .dtype import DType, accumulator
from .problem import GemmProblem
from .spec import Signature


def type_keys(a: DType, b: DType, out: DType) -> Signature:
    """Return the types of the operands and the accumulators; `out` is that of C and D."""
    return (("a", a.name), ("b", b.name), ("c", out.name), ("d", out.name), ("acc", accumulator(a, b).name))


def major_keys(a_major: str, b_major: str) -> Signature:
    """Return the keys of the contiguous dimensions of A and B."""
    return (("a_major", a_major), ("b_major", b_major))


def majors_of(problem: GemmProblem) -> tuple[str, str]:
    """Return the contiguous dimensions of A (M, K) and B (K, N)."""
    return "k" if problem.a.has_contiguous_rows else "m", "k" if problem.b.has_contiguous_cols else "n"


def adds_key(adds: bool) -> Signature:
    """Return the key of whether C is read."""
    return (("adds", "yes" if adds else "no"),)


def every_signature(**values: Iterable[object]) -> Callable[[Arch], tuple[Signature, ...]]:
    """Return `KernelSpec.signatures` with every combination of the values of each key, on any architecture."""
    every = (zip(values, map(str, one), strict=True) for one in itertools.product(*values.values()))
    return functools.partial(_on_any, tuple(map(tuple, every)))


def _on_any(signatures: tuple[Signature, ...], arch: Arch) -> tuple[Signature, ...]:
    del arch
    return signatures
