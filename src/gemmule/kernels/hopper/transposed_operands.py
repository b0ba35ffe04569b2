"""Products of operands that are transposed first, to be K-major or MN-major; other operands are repacked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import MAP_ALIGNMENT, Launch, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, TransposeProblem
from gemmule.core.spec import KernelSpec, NextKernel
from gemmule.kernels.transpose.cost import least_seconds, total_tile_costs
from gemmule.kernels.transpose.tile_config import ByteTileConfig

from .next_kernel import NextProduct, Prepared, WorkspaceCopy, with_copies
from .operand_copies import REPACKED_BYTES, OperandCopy, are_alike, copied_lines, operand_copy, why_not_copied
from .repack_config import RepackConfig
from .tma_tiles import why_not_tma

#: Microseconds on an H200 between one launch and the next.
_LAUNCH = 1.3


def least_transpose_us(nbytes: int, gpu: GpuRates) -> float:
    """Return the least time in microseconds that is predicted of a transpose and its launch."""
    return _LAUNCH * gpu.launch + 1e6 * least_seconds(nbytes, gpu)


@dataclasses.dataclass
class TransposedOperand(WorkspaceCopy):
    """An operand and its transposed copy."""

    problem: TransposeProblem  #: The transpose, of every matrix of the batch.


class TransposedOperands:
    """The steps of a kernel that transposes operands of the wrong major, repacks others, and multiplies.

    Parameters
    ----------
    k_major : bool
        Whether the product takes K-major operands; else it takes MN-major ones.
    specs : sequence of KernelSpec
        Kernels of the product, best first.
    transpose, repacked : KernelSpec
        Kernels that transpose operands and repack them.
    packing_us : callable
        ``packing_us(nbytes, result, config, gpu)`` is the time of repacking.
    takes_one : callable, optional
        ``takes_one(problem)`` is whether the product takes one operand of the wrong major: of two, the smaller one is
        transposed.
    predicted : callable, optional
        As of `NextProduct`.
    """

    def __init__(
        self,
        k_major: bool,
        specs: Sequence[KernelSpec],
        transpose: KernelSpec,
        repacked: KernelSpec,
        packing_us: Callable[[int, int, RepackConfig, GpuRates], float],
        takes_one: Callable[[GemmProblem], bool] | None = None,
        predicted: Callable[[GemmProblem, GpuRates], tuple[KernelSpec, Any] | None] = lambda _problem, _gpu: None,
    ) -> None:
        assert isinstance(repacked.default, RepackConfig)
        self._takes_one, self._packing = takes_one, repacked.default
        self._k_major, self._transpose, self._repacked, self._packing_us = k_major, transpose, repacked, packing_us
        self.transposed = cache_last_call(self._transposed)
        self.packed = cache_last_call(self._packed)
        self.product = NextProduct(self._prepared, specs, predicted)

    def _are_right(self, problem: GemmProblem) -> dict[str, bool]:
        """Return whether each factor has the right major."""
        return {
            name: matrix.is_row_major if (name == "a") == self._k_major else matrix.is_col_major
            for name, matrix in problem.factors().items()
        }

    def _kept(self, problem: GemmProblem) -> str | None:
        """Return the larger operand, if the product takes it as it is with a copy of the other one."""
        if self._takes_one is None or any(self._are_right(problem).values()):
            return None
        name, matrix = ("a", problem.a) if problem.m >= problem.n else ("b", problem.b)
        return name if self._takes_one(problem) and not why_not_tma(name, matrix, problem.batch) else None

    def _transposed(self, problem: GemmProblem) -> tuple[TransposedOperand, ...]:
        """Return the operands of the wrong major, but for one that the product takes."""
        found, kept, are_right = [], self._kept(problem), self._are_right(problem)
        for name, matrix in problem.factors().items():
            if are_right[name] or name == kept:
                continue
            # Lines of the source are contiguous along the other extent than those of the copy.
            lines = problem.m if name == "a" else problem.n
            stride = matrix.col_stride if matrix.is_col_major else matrix.row_stride
            rows, cols = (lines, problem.k) if self._k_major else (problem.k, lines)
            unit = REPACKED_BYTES // matrix.dtype.itemsize
            ld = -(-cols // unit) * unit
            # One matrix for all of a batch is transposed once.
            once = problem.batch and not matrix.batch_strides[0]
            batch = (1,) if once else problem.batch
            steps, after = matrix.batch_strides, (0 if once else ld * rows,) if problem.batch else ()
            source = StridedMatrix(matrix.dtype, rows, cols, 1, stride, steps, matrix.alignment)
            target = StridedMatrix(matrix.dtype, rows, cols, ld, 1, after, MAP_ALIGNMENT, padded=True)
            copy = target if (name == "a") == self._k_major else target.transposed()
            nbytes = ld * rows * (batch or (1,))[0] * matrix.dtype.itemsize
            transpose = TransposeProblem(rows, cols, batch, source, target)
            found.append(
                TransposedOperand(name, f"{name} along {'k' if self._k_major else 'mn'}", copy, nbytes, transpose)
            )
        return tuple(found)

    def _packed(self, problem: GemmProblem) -> tuple[OperandCopy, ...]:
        """Return the copies of operands of the right major that TMA cannot load."""
        factors, are_right = problem.factors(), self._are_right(problem)

        def lines(name: str, matrix: StridedMatrix) -> bool | None:
            return matrix.has_contiguous_rows if are_right[name] and why_not_tma(name, matrix, problem.batch) else None

        return tuple(
            operand_copy(name, factors[name], problem.batch, "packed", rows=rows)
            for name, rows in copied_lines(problem, lines).items()
        )

    def _prepared(self, problem: GemmProblem) -> Prepared:
        return with_copies(problem, self.copies(problem))

    def next_kernel(self, problem: GemmProblem, config: ByteTileConfig, gpu: GpuRates) -> NextKernel:
        """Return the transpose of the second operand, if that has the wrong major too, or its repacking; the product.

        `config` is that of transposes.
        """
        found = self.product.kernel(problem, gpu)
        if packed := self.packed(problem):
            operands = {one.workspace: one.workspace for one in packed}
            prepared = with_copies(problem, self.transposed(problem))
            found = NextKernel(
                self._repacked,
                self._packing,
                prepared.problem,
                {**prepared.operands, **operands},
                found.workspaces,
                then=found,
            )
        for one in self.transposed(problem)[1:]:
            operands = {"a": one.operand, "d": one.workspace}
            found = NextKernel(self._transpose, config, one.problem, operands, found.workspaces, then=found)
        return found

    def why_not(self, problem: GemmProblem, config: ByteTileConfig) -> str | None:
        """Say why operands cannot be transposed with `config`, or repacked, or None where they can."""
        if (packed := self.packed(problem)) and (reason := why_not_copied(packed, self._packing, "repack")):
            return reason
        for one in self.transposed(problem):
            # No operand has what every config of the transpose refuses.
            if reason := config.why_not(one.problem):
                return reason
        return None

    def refuses(self, problem: GemmProblem) -> str | None:
        """Say why no config prepares a problem of at most one batch dimension, or None where that depends on it."""
        if not are_alike(problem):
            return "the two B of the gated activation have different strides"
        if not self.transposed(problem):
            return f"A and B are {'K' if self._k_major else 'MN'}-major"
        for copy in self.packed(problem):
            if reason := copy.why_not():
                return reason
        return self.product.why_not(problem)

    def launch(self, problem: GemmProblem, config: ByteTileConfig) -> Launch:
        """Return the launch recipe of the first transpose, from the operand to its workspace."""
        first = self.transposed(problem)[0]
        recipe = self._transpose.launch(first.problem, config)
        names = {"a": first.operand, "d": first.workspace}
        params = tuple(
            dataclasses.replace(one, operand=names[one.operand]) if isinstance(one, TensorParam) else one
            for one in recipe.params
        )
        return dataclasses.replace(recipe, params=params)

    def copies(self, problem: GemmProblem) -> tuple[WorkspaceCopy, ...]:
        """Return all copies."""
        return (*self.transposed(problem), *self.packed(problem))

    def costs(
        self, problem: GemmProblem, configs: Sequence[ByteTileConfig], gpu: GpuRates, more: float = 0.0
    ) -> list[float]:
        """Return roughly the times in microseconds of the transposes and of the product, which is that of all.

        `more` is how much longer the product takes than it would of other operands.
        """
        transposed = self.transposed(problem)
        product = self.product.cost(problem, gpu) + _LAUNCH * gpu.launch * len(transposed) + more
        if packed := self.packed(problem):
            product += self._packing_us(sum([one.nbytes for one in packed]), 0, self._packing, gpu)
        seconds = total_tile_costs([one.problem for one in transposed], configs, gpu)
        return [product + 1e6 * one for one in seconds]
