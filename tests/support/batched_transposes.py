"""Batches of transposes, for tests of kernels that take several matrices at once."""

from __future__ import annotations

import dataclasses

from gemmule.core.layout import StridedMatrix


def batched(problem, batch):
    """The same matrices one behind the other."""
    size = problem.rows * problem.cols
    strides = tuple(size * n for n in range(1, len(batch) + 1))

    def repeated(matrix: StridedMatrix) -> StridedMatrix:
        return dataclasses.replace(matrix, batch_strides=strides)

    return dataclasses.replace(problem, batch=batch, source=repeated(problem.source), target=repeated(problem.target))
