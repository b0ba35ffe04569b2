"""What h01_mma_sync is expected to take: for kernels that rearrange operands first, and are compared with it.

Times are of the config that suits a product, on an H200. Two sets of products were measured: 206 that
`hopper_gemm_repacked` was timed on too, of 16 bits or of operands that lie along K; and those of operands of 8 and 32
bits across K of records 20261122T190626 and 20261122T190657.
"""

from __future__ import annotations

import math

from gemmule.core.gpu_rates import GpuRates
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem

#: Bytes of K of a slice, and a vector that is written at once.
_SLICE_BYTES, _VECTOR = 128, 16
#: Microseconds of a launch; of writing 64 x 64 of 16 bits, and where rows of the result begin anywhere. What C or an
#: epilogue add is not measured: it is taken for what `hopper_gemm` was seen to take.
_LAUNCH, _WRITE, _WRITE_ODD, _TILE, _FINISH = 2.31, 0.14, 1.41, 64, 5.0 / 8
#: Of 128 bytes of K for 64 rows or columns, by the bytes that an operand's lines let a copy have, and how much of that
#: where a tile has hardly any of its lines; what tiles take that wait for their turn, as one runs on each SM at once;
#: bytes to and from memory in a microsecond.
_READ, _EMPTY, _LATER, _BYTES = {8: 0.169, 4: 0.249, 1: 0.601}, 0.57, 0.623, 2.72e6
#: Of operands of 8 and 32 bits across K: microseconds of a launch; of 128 bytes of K in tiles of so many rows and
#: columns, as long as SMs have one each; and how much of that where they have more, by bytes of an element.
_ACROSS_LAUNCH, _ACROSS_TILES, _ACROSS_MORE = 2.3, ((128, 0.8), (64, 0.33)), {4: 1.07, 1: 0.81}


def expected_us(problem: GemmProblem, gpu: GpuRates) -> float:
    """Return roughly the time in microseconds of a product of at most one batch dimension."""
    along_k = problem.a.is_row_major and problem.b.is_col_major
    if along_k or problem.a.dtype.itemsize not in _ACROSS_MORE:
        return _by_lines_us(problem, gpu)
    return _by_tiles_us(problem, gpu)


def _by_lines_us(problem: GemmProblem, gpu: GpuRates) -> float:
    item = problem.a.dtype.itemsize
    tiles = -(-problem.m // _TILE) * -(-problem.n // _TILE) * (problem.batch or (1,))[0]
    read = _read_us(problem.a, problem.m) + _read_us(problem.b, problem.n)
    wide = max(problem.d.dtype.itemsize / 2, 1.0)
    written = _WRITE * wide if _whole(problem.d) % _VECTOR == 0 else _WRITE_ODD
    finished = _FINISH * ((problem.c is not None) + (problem.epilogue is not None))
    each = problem.k * item / _SLICE_BYTES * read + written + finished
    later = _LATER * max(tiles / gpu.multiprocessors - 1, 0.0)
    return _LAUNCH * gpu.launch + each * (1 + later) * gpu.load + problem.bytes_min / _BYTES


def _read_us(matrix: StridedMatrix, lines: int) -> float:
    """Return what an operand of so many rows or columns takes of 128 bytes of K."""
    whole, item = _whole(matrix), matrix.dtype.itemsize
    found = _READ[8 if whole % 8 == 0 else 4 if whole % 4 == 0 and item < 4 else 1]
    return found * (_EMPTY + (1 - _EMPTY) * min(lines / _TILE, 1.0))


def _whole(matrix: StridedMatrix) -> int:
    """Return bytes that all lines begin at multiples of."""
    pitch = matrix.row_stride if matrix.col_stride == 1 else matrix.col_stride
    return math.gcd(pitch * matrix.dtype.itemsize, matrix.alignment)


def _by_tiles_us(problem: GemmProblem, gpu: GpuRates) -> float:
    item, matrices = problem.a.dtype.itemsize, (problem.batch or (1,))[0]
    slices = -(-problem.k * item // _SLICE_BYTES)

    def tiled(side: int, slice_us: float) -> float:
        tiles = -(-problem.m // side) * -(-problem.n // side) * matrices / gpu.multiprocessors
        return slices * slice_us * max(1.0, tiles * _ACROSS_MORE[item]) * gpu.load

    return _ACROSS_LAUNCH * gpu.launch + min(tiled(*one) for one in _ACROSS_TILES)
