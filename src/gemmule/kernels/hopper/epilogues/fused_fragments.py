"""Fused epilogue of accumulators as wgmma leaves them: a thread's elements, their inputs, and how they are stored.

Of every 8 columns a thread has two contiguous elements of one row, and those of the row 8 below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, cute

from gemmule.core.dtype import FLOAT32
from gemmule.core.epilogue import ACC, MATRIX, UP, C
from gemmule.core.epilogue_inputs import PAIRS
from gemmule.kernels.parts.absolute_maximum import absmax_update
from gemmule.kernels.parts.epilogue import pair_operations
from gemmule.kernels.parts.epilogue_inputs import EpilogueInputs
from gemmule.kernels.parts.hopper_facts import WARPGROUP

from .lane_columns import WARP, load_columns
from .warp_epi_tile import Scale, WarpEpiTile, read_block, stmatrix_blocks, write_block

_ROW_STEP, _COL_STEP = 8, 8
# Bits of a cache line, and the mark of contiguous elements.
_LINE_BITS, _UNIT = 1024, "1"


class FusedEpiTile(NamedTuple):
    """A warp's part of an epilogue tile."""

    smem_tile: WarpEpiTile  #: Its place in shared memory.
    accumulators: Any  #: Tensor. This thread's accumulators, flat, as wgmma leaves them.
    #: first, up_offset: The first accumulator of the epilogue tile, and the distance to that of the second B (`up`), or
    #: 0.
    first: int
    up_offset: int
    #: Callable or None. For the absolute maximum, ``inside(v)`` returns whether D has this thread's element
    #: `v`.
    inside: Any
    absmax: Any  #: Tensor or None. This thread's register of the absolute maximum.


class FragmentFusion(EpilogueInputs):
    """The fusion: a function of accumulator fragments, and the loads of its inputs.

    Parameters
    ----------
    types : dict
        As of `EpilogueInputs`.
    columns : int
        Columns of a warpgroup's part of a tile, of both B, if lanes are to share inputs that vary by column only.
    """

    def __init__(self, types: dict[str, str], columns: int = 0) -> None:
        super().__init__(types)
        self.columns = columns // 2 if self.expression.gated else columns

    def in_lanes(self, index: int) -> bool:
        """Return whether the lanes of a warp share the columns of an input."""
        name, strides = self.inputs[index]
        return self.columns > 0 and name == FLOAT32.name and strides != PAIRS and _varies(strides) == (False, True)

    @property
    def takes_few_registers(self) -> bool:
        """Whether lanes share each input, or it is of few elements of a thread: of rows, or one number."""
        return all(self.in_lanes(index) or not _varies(strides)[1] for index, (_, strides) in enumerate(self.inputs))

    def unchanged(self, loaded: list[Any], *, same_rows: bool, same_cols: bool) -> list[Any]:
        """Return what `load` need not load again for another epilogue tile; None for an input that it must."""
        varying = [_varies(strides) for _, strides in self.inputs]
        return [
            values if (same_rows or not by_row) and (same_cols or not by_col or self.in_lanes(index)) else None
            for index, (values, (by_row, by_col)) in enumerate(zip(loaded, varying, strict=True))
        ]

    def prefetch(self, aux_args: Any, mD: Any, origin: tuple[Any, Any, Any], extents: tuple[int, int]) -> None:
        """Prefetch inputs into the L2 cache: of vectors a cache line a lane, of matrices the lines of the extents.

        Parameters
        ----------
        aux_args, mD
            As of `load`.
        origin : tuple of Int32
            The first row and column, and the matrix of the batch.
        extents : tuple of int
            Rows and columns.
        """
        lane = cute.arch.thread_idx()[0] % WARP
        for index, (_, strides) in enumerate(self.inputs):
            varies = _varies(strides)
            mode, matrix = int(varies[1]), aux_args[index]
            if all(varies):
                inner = int(strides[0] != _UNIT)
                _prefetch_lines(matrix, mD, origin, extents, inner, strides[inner] in (_UNIT, PAIRS))
                continue
            if self.in_lanes(index) or not any(varies) or strides[mode] not in (_UNIT, PAIRS):
                continue
            first = origin[mode] + cutlass.min(lane * (_LINE_BITS // matrix.element_type.width), extents[mode] - 1)
            at = cutlass.min(first, mD.shape[mode] - 1)
            _prefetch(matrix, (0, at, origin[2]) if mode else (at, 0, origin[2]))

    def load(
        self, aux_args: Any, mD: Any, row: Any, col: Any, batch: Any, width: int, loaded_before: Any = None
    ) -> list[Any]:
        """Issue the loads of this thread's inputs for an epilogue tile: for each matrix, elements by their coordinate.

        Past the edges of D the last element is loaded, and never used.

        Parameters
        ----------
        aux_args : tuple
            Matrices (M, N, L), then numbers.
        mD : Tensor
            D, for its extents.
        row, col, batch : Int32
            The warp's first row of the epilogue tile, the first column, and the matrix of the batch.
        width : int
            Columns of the epilogue tile.
        loaded_before : list, optional
            What `unchanged` returned.
        """
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % WARP
        first_row, first_col = row + lane // 4, col + lane % 4 * 2
        last_row, last_col = mD.shape[0] - 1, mD.shape[1] - 1
        rows = [cutlass.min(first_row + _ROW_STEP * half, last_row) for half in range(2)]
        cols = {
            (j, e): cutlass.min(first_col + _COL_STEP * j + e, last_col)
            for j in range(width // _COL_STEP)
            for e in range(2)
        }
        loaded = []
        for index, (_, strides) in enumerate(self.inputs):
            if loaded_before is not None and loaded_before[index] is not None:
                loaded.append(loaded_before[index])
                continue
            varies_by_row, varies_by_col = _varies(strides)
            if self.in_lanes(index):
                loaded.append(load_columns(_columns(aux_args[index], col, last_col, batch), self.columns))
                continue
            values: dict[Any, Any] = {}
            for half in range(2 if varies_by_row else 1):
                input_row = rows[half] if varies_by_row else 0
                if strides[1] == PAIRS:
                    # The last column is odd: it is the second of a pair.
                    start = aux_args[index].iterator + cute.crd2idx((input_row, 0, batch), aux_args[index].layout)
                    for j in range(width // _COL_STEP):
                        input_col = cutlass.min(first_col + _COL_STEP * j, last_col - 1)
                        values[(j, 0), half], values[(j, 1), half] = _pair(start + input_col)
                else:
                    for coord in cols if varies_by_col else ((0, 0),):
                        input_col = cols[coord] if varies_by_col else 0
                        values[coord, half] = aux_args[index][input_row, input_col, batch]
            loaded.append(values)
        return loaded

    def write(self, tile: FusedEpiTile, loaded: Any, aux_args: Any, scale: Scale) -> None:
        """Compute an epilogue tile and write it into shared memory, over C's if it is read.

        Parameters
        ----------
        tile : FusedEpiTile
            Its place in shared memory and its accumulators.
        loaded, aux_args
            The result and the argument of `load`.
        scale : Scale
            The factors of the accumulators and of C.
        """
        smem_tile, accumulators = tile.smem_tile, tile.accumulators
        adds_c = scale.reads_c and not self.expression.names_c
        operations = pair_operations(smem_tile.element)
        v = 0
        # Block by block, since accumulators leave few registers.
        for block, count in stmatrix_blocks(smem_tile):
            c: Any = read_block(smem_tile, block, count) if scale.reads_c else None
            values = cute.make_rmem_tensor(cute.make_layout(count), Float32)
            for i in range(0, count, 2):
                first = tile.first + v
                acc = tuple(accumulators[first + e] * scale.alpha for e in range(2))
                if adds_c:
                    acc = tuple(acc[e] + scale.beta * c[i + e] for e in range(2))
                ups = (None, None)
                if tile.up_offset:
                    ups = tuple(accumulators[first + tile.up_offset + e] * scale.alpha for e in range(2))
                products = tuple((acc[e], ups[e], c[i + e] if scale.reads_c else None) for e in range(2))
                values[i], values[i + 1] = self.pair(products, loaded, aux_args, v, operations)
                if self.has_absmax:
                    for e in range(2):
                        absmax_update(tile.absmax, values[i + e], tile.inside(v + e))
                v += 2
            write_block(smem_tile, block, values, (0, count), Scale(Float32(1), Float32(0), False))

    def pair(self, products: Any, loaded: Any, aux_args: Any, v: int, operations: Any) -> Any:
        """Return the values of two contiguous elements, of this thread's the one numbered `v` and the next.

        Parameters
        ----------
        products : tuple
            For each its accumulator, that of the second B, and C's element; None where there is none.
        loaded, aux_args
            The result and the argument of `load`.
        operations : mapping
            `pair_operations`.
        """
        leaves = [self._leaf(products[e], loaded, aux_args, v + e) for e in range(2)]

        def leaf(name: str) -> Any:
            return tuple(one(name) for one in leaves)

        return self.expression.evaluate(leaf, lambda x: (Float32(x),) * 2, operations)

    def inside(self, mD: Any, row: Any, col: Any) -> Any:
        """Return a predicate, whether D has this thread's element `v` of an epilogue tile; row, column as of `load`."""
        if not self.has_absmax:
            return None
        tid, _, _ = cute.arch.thread_idx()
        lane = tid % WARP
        # Rows and columns from this thread's first to the edges.
        rows, cols = mD.shape[0] - row - lane // 4, mD.shape[1] - col - lane % 4 * 2
        return lambda v: (v // 2 % 2 * _ROW_STEP < rows) & (v // 4 * _COL_STEP + v % 2 < cols)

    def _leaf(self, products: tuple[Any, Any, Any], loaded: Any, aux_args: Any, v: int) -> Any:
        """Return a function from names of leaves to their values for this thread's element `v`."""
        coord, half = (v // 4, v % 2), v // 2 % 2

        def leaf(name: str) -> Any:
            if name in (ACC, UP, C):
                return dict(zip((ACC, UP, C), products, strict=True))[name]
            index = int(name[1:])
            if name[0] != MATRIX:
                return aux_args[len(self.inputs) + index]
            varies_by_row, varies_by_col = _varies(self.inputs[index][1])
            return loaded[index][coord if varies_by_col else (0, 0), half if varies_by_row else 0].to(Float32)

        return leaf


@cute.jit
def _prefetch_lines(
    matrix,
    mD,
    origin,
    extents: cutlass.Constexpr[tuple[int, int]],
    inner: cutlass.Constexpr[int],
    unit_stride: cutlass.Constexpr[bool],
):
    """Prefetch a part of a matrix into the L2 cache, by a warpgroup: along mode `inner`, cache line by cache line."""
    outer, batch = cutlass.const_expr(1 - inner), origin[2]
    width = cutlass.const_expr(_LINE_BITS // matrix.element_type.width)
    step = cutlass.Int32(width)
    if cutlass.const_expr(not unit_stride):
        step = width // cutlass.Int32(cutlass.max(cutlass.min(matrix.layout.stride[inner], width), 1))
    # One line more, as the first one may begin before the part.
    lines = ((extents[inner] + step - 1) // step + 1) * extents[outer]
    for line in cutlass.range(cute.arch.thread_idx()[0] % WARPGROUP, lines, WARPGROUP, unroll=1):
        along = origin[inner] + cutlass.min(line // extents[outer] * step, extents[inner] - 1)
        along = cutlass.min(along, mD.shape[inner] - 1)
        across = cutlass.min(origin[outer] + line % extents[outer], mD.shape[outer] - 1)
        if cutlass.const_expr(inner == 1):
            _prefetch(matrix, (across, along, batch))
        else:
            _prefetch(matrix, (along, across, batch))


def _prefetch(matrix: Any, coord: tuple[Any, Any, Any]) -> None:
    """Prefetch the cache line of an element into the L2 cache."""
    start = matrix.iterator + cute.crd2idx(coord, matrix.layout)
    cute.arch.inline_ptx("prefetch.global.L2 [{$r0}];", read_only_args=[start.toint()])


def _varies(strides: str) -> tuple[bool, bool]:
    """Return whether an input varies by row and by column; where its stride is 0, it is broadcast."""
    row, col = (stride != "0" for stride in strides)
    return row, col


def _columns(matrix: Any, first: Any, last: Any, batch: Any) -> Callable[[Any], Any]:
    """Return a function from the number of a column, counted from the first, to its input."""
    return lambda number: matrix[0, cutlass.min(first + number, last), batch]


def _pair(start: Any) -> tuple[Any, Any]:
    """Load two contiguous elements at once."""
    element = start.dtype
    aligned = cute.make_ptr(element, start.toint(), start.memspace, assumed_align=element.width // 4)
    both = cute.make_tensor(aligned, cute.make_layout(2)).load()
    return both[0], both[1]
