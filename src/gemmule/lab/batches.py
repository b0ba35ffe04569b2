"""Accuracy of batches of products: every element written, some of its matrices held against a reference."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem

from .accuracy import Accuracy, Reference, accuracy, reference, sampled_rows
from .products import Array

#: Matrices of a batch that are compared: the first, the last, and others at random.
MATRICES = 4


@dataclasses.dataclass(frozen=True)
class BatchReference:
    """References of some of a batch's products, by their place; `problem` has one batch dimension."""

    problem: GemmProblem
    parts: tuple[tuple[int, Reference], ...]


def reference_of(problem: GemmProblem, inputs: dict[str, Array], seed: int, rows: int) -> Reference | BatchReference:
    """Return the reference of a product, or of some products of a batch, in `rows` of their rows."""
    sampled = sampled_rows(problem.m, seed, rows)
    if not problem.batch:
        return reference(problem, inputs, sampled)
    one = single(problem)
    parts = [
        (int(index), reference(one, {name: values[index] for name, values in inputs.items()}, sampled))
        for index in sampled_rows(problem.batch[0], seed, MATRICES)
    ]
    return BatchReference(problem, tuple(parts))


def accuracy_of(expected: Reference | BatchReference, output: Array) -> Accuracy:
    """Hold a product, or a batch of them, against its reference; the least exact of those compared counts."""
    if isinstance(expected, Reference):
        return accuracy(expected, output)
    found = [(index, accuracy(part, output[index])) for index, part in expected.parts]
    for index, one in found:
        if one.failure is not None:
            return dataclasses.replace(one, failure=f"matrix {index} of the batch: {one.failure}")
    if output.dtype.kind not in "iu" and not np.isfinite(output).all():
        where = np.argwhere(~np.isfinite(output))[0].tolist()
        failure = f"elements are NaN or infinite or were not written, as {tuple(where)}"
        return Accuracy(math.inf, math.inf, math.inf, math.inf, failure)
    every = [one for _, one in found]
    return Accuracy(
        error_u=max(one.error_u for one in every),
        over_bound=max(one.over_bound for one in every),
        rms_over_bound=max(one.rms_over_bound for one in every),
        mean_squared=max(one.mean_squared for one in every),
        failure=None,
    )


def single(problem: GemmProblem) -> GemmProblem:
    """Return one product of a batch."""

    def alone(matrix: StridedMatrix) -> StridedMatrix:
        return dataclasses.replace(matrix, batch_strides=())

    return dataclasses.replace(problem, batch=(), a=alone(problem.a), b=alone(problem.b), d=alone(problem.d))
