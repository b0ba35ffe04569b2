"""Checks of kernels and of the baseline: runs into poisoned outputs, held against a reference and each other."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from gemmule.core.dtype import Kind, Precision
from gemmule.core.problem import GemmProblem

from .accuracy import Accuracy, Reference
from .batches import BatchReference, accuracy_of
from .device import Operands, Work
from .products import Array

#: Byte of which every float is NaN.
NAN_BYTE = 0xFF
# For integers two, one after the other, so that what was not written differs.
_POISONS = (0x55, 0xAA)
# Factor on the bound for the baseline's errors: it may add partial sums in an output of 16 bits, and
# sums of 8-bit floats keep some 13 bits. Factors may be cut to TF32 instead of rounded.
_SPLIT, _SUMS_OF_8_BITS, _CUT_FACTORS = 20, 2**11, 2
# Bytes that are compared at a time, and those of a word.
_BLOCK, _WORD = 1 << 20, 8


def check(
    problem: GemmProblem, reference: Reference | BatchReference, operands: Operands, work: Work
) -> tuple[Accuracy, tuple[Array, Array]]:
    """Run every buffer set into poisoned outputs, and hold the result against the reference.

    Returns
    -------
    Accuracy
        Accuracy of the output.
    tuple of ndarray
        The outputs of the first and the last set.
    """
    kind = problem.d.dtype.kind
    poisons: tuple[int, ...] = (NAN_BYTE,) if kind is not Kind.INTEGER else _POISONS
    if operands.sets == 1 and len(poisons) == 1:
        # There is nothing else to compare it with.
        poisons *= 2
    outputs = []
    for poison in poisons:
        operands.poison(poison)
        for _ in range(operands.sets):
            work()
        outputs.append(operands.output(0))
    right = accuracy_of(reference, outputs[0])
    last = operands.output(operands.sets - 1) if operands.sets > 1 else outputs[-1]
    failure = right.failure
    others = outputs[1:] if operands.sets == 1 else [*outputs[1:], last]
    if kind is Kind.INTEGER and not same_bits(outputs[0], outputs[-1]):
        failure = "elements were not written: they keep what was there before"
    elif failure is None and not all(same_bits(outputs[0], other) for other in others):
        failure = "two runs on the same inputs give different bits"
    if kind is Kind.INTEGER and failure is not None:
        right = dataclasses.replace(right, over_bound=math.inf)
    return dataclasses.replace(right, failure=failure), (outputs[0], last)


def is_fair(problem: GemmProblem, right: Accuracy) -> bool:
    """Return whether the baseline may be compared with: its error is what its own way of summing up explains."""
    worst = max(right.over_bound, right.rms_over_bound)
    if problem.a.dtype.is_float8:
        return worst <= _SUMS_OF_8_BITS
    if problem.precision is Precision.TF32:
        return worst <= _CUT_FACTORS
    return worst <= (_SPLIT if problem.d.dtype.itemsize < 4 else 1)


def same_bits(one: Array, other: Array) -> bool:
    """Return whether two arrays of a type agree bit by bit: they are compared by blocks, in words of 8 bytes."""
    if one is other:
        return True
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (one, other))
    whole = first.size - first.size % _WORD
    blocks = (slice(start, min(start + _BLOCK, whole)) for start in range(0, whole, _BLOCK))
    return (
        one.shape == other.shape
        and all(np.array_equal(first[block].view(np.uint64), second[block].view(np.uint64)) for block in blocks)
        and np.array_equal(first[whole:], second[whole:])
    )
