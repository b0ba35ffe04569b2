"""Random problems that decide which compiled kernels the wheel holds."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np

from gemmule.core.activations import NAMED, silu
from gemmule.core.dtype import DType, Precision, dtype_named
from gemmule.core.epilogue import Epilogue, Expression
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem, Problem, mark_own_transpose
from gemmule.core.tracing import accumulated, accumulated_second, lowered, matrix_input
from gemmule.dispatch.problem_key import problem_of
from gemmule.dispatch.tuned_file import read_tuned
from gemmule.dispatch.tuned_table import shipped_files
from gemmule.lab.products import LAYOUTS, gemm_problem
from gemmule.lab.transposes import transpose_of

from .forms import form


@dataclasses.dataclass(frozen=True)
class Kind:
    """Types of A, B and D, the precision, and the share of such products in percent."""

    a: str
    b: str
    d: str
    percent: float
    precision: Precision = Precision.IEEE


KINDS = (
    Kind("bfloat16", "bfloat16", "bfloat16", 26),
    Kind("float16", "float16", "float16", 14),
    Kind("float32", "float32", "float32", 14),
    Kind("float32", "float32", "float32", 10, Precision.TF32),
    Kind("float64", "float64", "float64", 10),
    Kind("int8", "int8", "int32", 5),
    Kind("float8_e4m3fn", "float8_e4m3fn", "bfloat16", 5, Precision.FLOAT8),
    Kind("bfloat16", "bfloat16", "float32", 4),
    Kind("float16", "float16", "float32", 3),
    Kind("float8_e4m3fn", "float8_e4m3fn", "bfloat16", 1.5),
    Kind("bfloat16", "float8_e4m3fn", "bfloat16", 1.5),
    Kind("float32", "float32", "float32", 2, Precision.BF16X6),
    Kind("float64", "float64", "float64", 1, Precision.OZAKI_15),
    Kind("int8", "int8", "int8", 1),
    Kind("float16", "float8_e5m2", "float16", 0.5),
    Kind("float8_e5m2", "float8_e5m2", "bfloat16", 0.5, Precision.FLOAT8),
    Kind("int32", "int32", "int32", 1),
)
#: Types that only the draws of first tries have as well.
COMPLEX = (Kind("complex64", "complex64", "complex64", 6), Kind("complex128", "complex128", "complex128", 4))
#: Shares of the draws that are transposes, and of the products: with few rows or columns, in batches, of a matrix and
#: its own transpose, with a C, and of 8- and 16-bit floats with an epilogue.
TRANSPOSES, SKINNY, BATCHED, OWN, ADDED, FUSED = 0.08, 0.12, 0.08, 0.02, 0.08, 0.1
#: Extents, as of the draws that gemmule is measured on: log-uniform, one third odd, the others multiples of 16 bytes.
LOW, HIGH = 64, 8192
#: Share of first tries whose extents are powers of two, between those; no tile is cut by an edge of such a matrix.
POWERS = 0.5
#: Share of first tries that are of other calls than GEMMs and matrix transposes.
FORMS = 0.4
#: Widths and inner widths of Llamas, their words, rows of a decode and of a prefill, and tokens of a training step.
LLAMAS, VOCABULARY = ((2048, 5632), (4096, 14336)), 32000
ROWS, TRAINED_ROWS = (1, 8, 64, 256, 1999, 2048), (2048,)
#: Problems that are drawn one after another; such parts are drawn in parallel.
PART = 2000
_ODD = 1 / 3
_ALIGNED_BYTES = 16
_FUSED_BYTES = 2


def problems(count: int, seed: int) -> Iterator[Problem]:
    """Yield random problems; those of a smaller count are the first of a larger one."""
    for number in range(math.ceil(count / PART)):
        yield from itertools.islice(part(number, seed), count - number * PART)


def part(number: int, seed: int, *, first_tries: bool = False) -> Iterator[Problem]:
    """Yield the problems from `number` times `PART`, which need not be drawn after the former ones.

    First tries are other problems, of complex numbers and of other calls too, and of powers of two, which random
    extents hardly ever are.
    """
    rng = np.random.default_rng([seed, number, 1] if first_tries else [seed, number])
    kinds, powers = ((*KINDS, *COMPLEX), POWERS) if first_tries else (KINDS, 0.0)
    shares = np.array([kind.percent for kind in kinds])
    for _ in range(PART):
        if first_tries and rng.random() < FORMS:
            yield form(rng)
        elif rng.random() < TRANSPOSES:
            itemsize = int(2 ** rng.integers(4))
            m, n = (_extent(rng, itemsize) for _ in range(2))
            yield transpose_of(m, n, itemsize)
        else:
            yield _product(kinds[int(rng.choice(len(kinds), p=shares / shares.sum()))], rng, powers)


def shipped_problems() -> Iterator[Problem]:
    """Yield the products of the tuned tables that gemmule ships."""
    for path in shipped_files():
        for entry in read_tuned(path):
            yield problem_of(entry.key)


def layer_problems() -> Iterator[Problem]:
    """Yield the products of Llama's linear layers, forward and backward, by width and inner width."""
    for width, inner in LLAMAS:
        shapes = ((width, width), (width // 4, width), (inner, width), (width, inner), (VOCABULARY, width))
        for (n, k), rows in itertools.product(shapes, ROWS):
            yield gemm_problem(rows, n, k, "bfloat16", "bfloat16", "nt")
        for (n, k), rows in itertools.product(shapes, TRAINED_ROWS):
            yield gemm_problem(rows, k, n, "bfloat16", "bfloat16", "nn")
            yield gemm_problem(n, k, rows, "bfloat16", "bfloat16", "tn")


def _product(kind: Kind, rng: np.random.Generator, powers: float) -> GemmProblem:
    a, b, d = map(dtype_named, (kind.a, kind.b, kind.d))
    odd = rng.random() < _ODD
    itemsize = min(a.itemsize, b.itemsize)
    m, n, k = (_extent(rng, itemsize, odd=odd) for _ in range(3))
    if powers and rng.random() < powers:
        m, n, k = (int(2**power) for power in rng.integers(LOW.bit_length() - 1, HIGH.bit_length(), 3))
    layout = str(rng.choice(LAYOUTS))
    batch: tuple[int, ...] = ()
    if a is not b or rng.random() < SKINNY:
        m, n = (_extent(rng, itemsize, 1, LOW, odd=True), n) if rng.random() < 0.7 else (m, int(rng.integers(1, LOW)))
    if rng.random() < BATCHED:
        batch, (m, n, k) = (int(rng.integers(2, 65)),), (max(x // 8, 1) for x in (m, n, k))
    own = a is b and rng.random() < OWN
    fused = a.itemsize <= _FUSED_BYTES and a.kind is d.kind and a.name != "int8" and rng.random() < FUSED
    if fused and rng.random() < 0.75:
        # Layers of models: x @ W.T.
        layout = "nt"
    if own:
        n, layout = m, str(rng.choice(("nt", "tn")))
    added = not own and not fused and rng.random() < ADDED

    def stored(dtype: DType, rows: int, cols: int, letter: str) -> StridedMatrix:
        if letter == "n":
            return contiguous(dtype, rows, cols, batch, _ALIGNED_BYTES)
        return contiguous(dtype, cols, rows, batch, _ALIGNED_BYTES).transposed()

    out = stored(d, m, n, "n")
    problem = GemmProblem(
        m, n, k, batch, stored(a, m, k, layout[0]), stored(b, k, n, layout[1]), out if added else None, out,
        beta=int(added), precision=kind.precision,
    )  # fmt: skip
    return dataclasses.replace(problem, epilogue=_epilogue(problem, rng)) if fused else mark_own_transpose(problem, own)


def _extent(
    rng: np.random.Generator, itemsize: int, low: int = LOW, high: int = HIGH, *, odd: bool | None = None
) -> int:
    """Return a log-uniform extent: odd, or a multiple of 16 bytes."""
    extent = math.exp(rng.uniform(math.log(low), math.log(high)))
    if odd if odd is not None else rng.random() < _ODD:
        return int(extent) | 1
    step = max(_ALIGNED_BYTES // itemsize, 1)
    return max(round(extent / step), 1) * step


def _epilogue(problem: GemmProblem, rng: np.random.Generator) -> Epilogue:
    """Return a bias, a function by name with or without one, or the gated form of SiLU."""
    name = str(rng.choice(("", *NAMED, "swiglu")))
    if name == "swiglu":
        return Epilogue(_expression(name, False), second=problem.b)
    biased = not name or rng.random() < 0.5
    zeros = (0,) * len(problem.batch)
    bias = StridedMatrix(problem.d.dtype, problem.m, problem.n, 0, 1, zeros, _ALIGNED_BYTES)
    return Epilogue(_expression(name, biased), (bias,) if biased else ())


@functools.cache
def _expression(name: str, biased: bool) -> Expression:
    acc = accumulated() + matrix_input("bias", 0) if biased else accumulated()
    if name == "swiglu":
        return lowered(silu(accumulated()) * accumulated_second(), name)[0]
    return lowered(NAMED[name](acc) if name else acc, name)[0]
