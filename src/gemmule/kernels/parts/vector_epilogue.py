"""Fused epilogue of vectors: contiguous elements of a row of the result that a thread writes at once."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, cute

from gemmule.core.epilogue import ACC, MATRIX, UP, C

from .absolute_maximum import absmax_atomic_max, absmax_init, absmax_update
from .epilogue import operations
from .epilogue_inputs import EpilogueInputs


class VectorEpilogue(EpilogueInputs):
    """An epilogue of vectors, and the layouts of its inputs."""

    def of_batch(self, extras: Any, batch: Any) -> tuple[Any, ...]:
        """Return the inputs of one matrix of the batch; last, where it is wanted, the absolute maximum's register."""
        count = len(self.inputs)
        largest = (absmax_init(),) if self.has_absmax else ()
        return (*(matrix[None, None, batch] for matrix in (extras or ())[:count]), *(extras or ())[count:], *largest)

    def end(self, extras: Any) -> None:
        """Write the absolute maximum after a warp's last value; `extras` as of `of_batch`."""
        if self.has_absmax:
            absmax_atomic_max(extras[-1], extras[-2])

    def values(
        self, accumulators: Any, ups: Any, addend: Any, extras: Any, at: Any, mD: Any, alpha: Any, beta: Any
    ) -> Any:
        """Return a vector's values in registers.

        Parameters
        ----------
        accumulators, ups, addend : Tensor
            Accumulators of the vector, those of the second B or None, and elements of C, zeros where there is none.
        extras : tuple
            Inputs, as `of_batch` returns them.
        at : tuple
            Row and column of its first element, perhaps beyond the edges: its values are then not written.
        mD : Tensor
            The result, for its extents.
        alpha, beta : Float32
            The factors; `beta` is not used where the expression names C.
        """
        row = cutlass.min(at[0], mD.shape[0] - 1)
        length = cute.size(addend)
        values = cute.make_rmem_tensor(cute.make_layout(length), Float32)
        table = operations(Float32, mD.element_type)
        for v in range(length):
            acc, c = alpha * accumulators[v], addend[v].to(Float32)
            up = None if ups is None else alpha * ups[v]
            if not self.expression.names_c:
                acc = acc + beta * c
            col = cutlass.min(at[1] + v, mD.shape[1] - 1)

            def leaf(name: str, acc: Any = acc, up: Any = up, c: Any = c, col: Any = col) -> Any:
                if name in (ACC, UP, C):
                    return {ACC: acc, UP: up, C: c}[name]
                place = int(name[1:])
                if name[0] != MATRIX:
                    return extras[len(self.inputs) + place]
                by_row, by_col = (mark != "0" for mark in self.inputs[place][1])
                return extras[place][row if by_row else 0, col if by_col else 0].to(Float32)

            values[v] = self.expression.evaluate(leaf, Float32, table)
            if self.has_absmax:
                absmax_update(extras[-1], values[v], (at[0] < mD.shape[0]) & (at[1] + v < mD.shape[1]))
        return values
