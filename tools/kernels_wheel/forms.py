"""Random problems of other calls than plain GEMMs: permutations, scaled GEMMs, guarded emulation and quantisation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from gemmule.api.epilogues.scaling import Scaling
from gemmule.core.block_scales import BLOCK, BlockScales
from gemmule.core.dtype import Precision, dtype_named, opaque_dtype
from gemmule.core.epilogue import Epilogue
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.permutation import transpose_problem
from gemmule.core.problem import GemmProblem, TransposeProblem, contiguous_gemm
from gemmule.core.quantize_problem import BY, QuantizeProblem, scales_shape

#: Bytes of the elements of permutations, and their shares.
ITEMSIZES = {1: 0.1, 2: 0.4, 4: 0.35, 8: 0.1, 16: 0.05}
#: Types of scaled results, and their shares.
SCALED = {"bfloat16": 0.7, "float16": 0.15, "float32": 0.1, "float8_e4m3fn": 0.05}
#: Rows of A and columns of B that share a scale of 128 of K; None where scales do not depend on K.
BLOCKS = (None, (1, BLOCK), (1, 1), (BLOCK, BLOCK))
GUARDED = ("float32", "float64", "complex64", "complex128")
_ALIGNMENT, _ROWS = 256, 2048
_SHARES = (0.65, 0.25, 0.1)


def form(rng: np.random.Generator) -> GemmProblem | TransposeProblem:
    """Return a random permutation of three to five axes, scaled GEMM, or product with ``precision="ozaki"``."""
    return (_permutation, _scaled, _guarded)[int(rng.choice(3, p=_SHARES))](rng)


def quantisations() -> Iterator[QuantizeProblem]:
    """Yield quantisations of each kind: by type, part and scale, of long and of short rows, whole vectors or not."""
    sources, quantised = ("bfloat16", "float16", "float32"), ("float8_e4m3fn", "float8_e5m2")
    single, exponents = dtype_named("float32"), opaque_dtype(1)
    for by, x, q, cols in itertools.product(BY, sources, quantised, (200, 333, 1024, 4096, 8192, 16384)):
        rows, parts = scales_shape(by, _ROWS, cols)
        for kind in (single, exponents) if by == "block" else (single,):
            scales = contiguous(kind, parts, rows).transposed()
            yield QuantizeProblem(by, *(contiguous(dtype_named(name), _ROWS, cols) for name in (x, q)), scales)


def _permutation(rng: np.random.Generator) -> TransposeProblem:
    axes, sizes = int(rng.integers(3, 6)), list(ITEMSIZES)
    itemsize = int(rng.choice(sizes, p=list(ITEMSIZES.values())))
    elements = math.exp(rng.uniform(math.log(2**14), math.log(2**28))) / itemsize
    extents = [max(round(elements**share), 1) for share in rng.dirichlet(np.ones(axes))]
    extents = [extent if extent < 16 or rng.random() < 1 / 3 else extent // 8 * 8 for extent in extents]
    order = rng.permutation(axes)
    while (order == np.arange(axes)).all():
        order = rng.permutation(axes)
    shape = [extents[axis] for axis in order]
    source = tuple(math.prod(extents[axis + 1 :]) for axis in order)
    target = tuple(math.prod(shape[axis + 1 :]) for axis in range(axes))
    return transpose_problem(tuple(shape), source, target, itemsize, (_ALIGNMENT, _ALIGNMENT))


def _extents(rng: np.random.Generator) -> tuple[int, int, int]:
    """Return rows from 1 on, and widths of layers, powers of two or multiples of 128."""
    m = max(round(math.exp(rng.uniform(0, math.log(8192)))), 1)
    n, k = (int(rng.integers(2, 113)) * 128 if rng.random() < 0.5 else int(2 ** rng.integers(8, 15)) for _ in range(2))
    return m, n, k


def _scaled(rng: np.random.Generator) -> GemmProblem:
    m, n, k = _extents(rng)
    kind, single = dtype_named("float8_e4m3fn"), dtype_named("float32")
    out = dtype_named(str(rng.choice(list(SCALED), p=list(SCALED.values()))))
    blocks, biased = BLOCKS[int(rng.integers(len(BLOCKS)))], bool(rng.random() < 0.25)
    ending = Scaling(blocks, scaled=True, biased=biased, result=out.itemsize == 1)
    expression, roles = ending.traced
    # Scales of rows and columns, or one for everything.
    per_line = int(rng.random() < 0.5)
    broadcast = {
        "scale_a": StridedMatrix(single, m, n, per_line, 0, (), _ALIGNMENT),
        "scale_b": StridedMatrix(single, m, n, 0, per_line, (), _ALIGNMENT),
        "bias": StridedMatrix(out if out.itemsize > 1 else single, m, n, 0, 1, (), _ALIGNMENT),
        "scale_result": StridedMatrix(single, m, n, 0, 0, (), _ALIGNMENT),
    }
    scales = None
    if blocks is not None:
        parts, (lines_a, lines_b) = -(-k // BLOCK), blocks
        # Each of A's columns and of B's rows is contiguous, as scaled products of frameworks have them.
        first = contiguous(single, parts, -(-m // lines_a)).transposed()
        scales = BlockScales(first, contiguous(single, parts, -(-n // lines_b)), lines_a, lines_b)
    epilogue = Epilogue(expression, tuple(broadcast[role] for role in roles), scales=scales)
    a, b = contiguous(kind, m, k), contiguous(kind, n, k).transposed()
    return GemmProblem(m, n, k, (), a, b, None, contiguous(out, m, n), precision=Precision.FLOAT8, epilogue=epilogue)


def _guarded(rng: np.random.Generator) -> GemmProblem:
    m, n, k = (max(round(2 ** rng.uniform(8, 14)), 1) for _ in range(3))
    if rng.random() < 2 / 3:
        m, n, k = (extent // 16 * 16 for extent in (m, n, k))
    return contiguous_gemm(m, n, k, (str(rng.choice(GUARDED)),) * 3, precision=Precision.OZAKI)
