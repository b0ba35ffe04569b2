"""Random GEMMs of calls that plain draws lack: other types, results, layouts, scalars and epilogues, by kind."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from gemmule.api.epilogues.ending import Ending, ending_of
from gemmule.api.epilogues.gated import NAMED_GATED
from gemmule.api.validation.rules import promoted
from gemmule.core.activations import NAMED
from gemmule.core.dtype import INT8_PRODUCTS, DType, Precision, accumulator, dtype_named
from gemmule.core.epilogue import Epilogue
from gemmule.core.errors import DTypeError
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem, mark_own_transpose
from gemmule.lab.products import LAYOUTS

from .draws import PART

Rng = np.random.Generator
#: Types of A and B.
Types = tuple[str, str]
HALVES, FLOATS8 = ("bfloat16", "float16"), ("float8_e4m3fn", "float8_e5m2")
REAL = (*HALVES, "float32", "float64", *FLOATS8, "int8", "int32")
#: Types whose products have the results of other types, and these.
RESULTS: Mapping[str, tuple[str, ...]] = {
    "bfloat16": ("float32", "float16", *FLOATS8), "float16": ("float32", "bfloat16", *FLOATS8),
    "float32": ("bfloat16", "float16", "float64"), "float64": ("float32",), "float8_e4m3fn": ("float32", "float16"),
    "float8_e5m2": ("float32", "float16"), "complex64": ("complex128",), "complex128": ("complex64",),
}  # fmt: skip
PARTS = {"complex64": "float32", "complex128": "float64"}
_ALIGNED_BYTES, _ODD = 16, 1 / 3
#: Extents: log-uniform, a third of the products odd, the others of whole 16 bytes, and half of those powers of two.
_LOW, _HIGH, _POWERS = 64, 8192, 0.5


@dataclasses.dataclass(frozen=True)
class Matrices:
    """How the matrices of a product lie in memory.

    Attributes
    ----------
    layout : str
        Of A and B: nn, nt, tn or tt.
    strided : str
        Names of matrices of which every other element is read or written.
    columns : str
        Names of C and D, if they are column-major.
    """

    layout: str = "nn"
    strided: str = ""
    columns: str = ""

    def matrix(self, name: str, dtype: DType, rows: int, cols: int, batch: tuple[int, ...] = ()) -> StridedMatrix:
        """Return a matrix of a shape."""
        column = name in self.columns or (name in "ab" and self.layout["ab".index(name)] == "t")
        lines, along = (cols, rows) if column else (rows, cols)
        step = 2 if name in self.strided else 1
        found = contiguous(dtype, lines, step * along, batch, _ALIGNED_BYTES)
        if step > 1:
            found = dataclasses.replace(found, cols=along, col_stride=step)
        return found.transposed() if column else found


def extents_of(rng: Rng, itemsize: int) -> tuple[int, int, int]:
    """Return M, N and K."""
    if rng.random() < _ODD:
        m, n, k = (int(_between(rng, _LOW, _HIGH)) | 1 for _ in range(3))
    elif rng.random() < _POWERS:
        m, n, k = (int(2 ** rng.integers(_LOW.bit_length() - 1, _HIGH.bit_length())) for _ in range(3))
    else:
        step = max(_ALIGNED_BYTES // itemsize, 1)
        m, n, k = (max(round(_between(rng, _LOW, _HIGH) / step), 1) * step for _ in range(3))
    return m, n, k


def _between(rng: Rng, low: int, high: int) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def product(
    rng: Rng,
    types: Types,
    out: str,
    matrices: Matrices,
    extents: tuple[int, int, int] | None = None,
    *,
    ending: Ending | None = None,
    added: str = "",
    precision: Precision = Precision.IEEE,
) -> GemmProblem:
    """Return a GEMM of types, with an epilogue, or a C of a type."""
    a, b, d = map(dtype_named, (*types, out))
    m, n, k = extents or extents_of(rng, min(a.itemsize, b.itemsize))
    factors = matrices.matrix("a", a, m, k), matrices.matrix("b", b, k, n)
    c = matrices.matrix("c", dtype_named(added), m, n) if added else None
    problem = GemmProblem(
        m, n, k, (), *factors, c, matrices.matrix("d", d, m, n), beta=int(bool(added)), precision=precision
    )
    return problem if ending is None else dataclasses.replace(problem, epilogue=_epilogue(problem, ending))


def _epilogue(problem: GemmProblem, ending: Ending) -> Epilogue:
    """Return the epilogue with broadcast inputs: one value for each column, of scales of rows for each row."""
    kind = problem.d.dtype if problem.d.dtype.itemsize > 1 else dtype_named("bfloat16")
    single = dtype_named("float32")
    rows = StridedMatrix(single, problem.m, problem.n, 1, 0, (), _ALIGNED_BYTES)
    columns = StridedMatrix(single if "scale" in str(ending.roles) else kind, problem.m, problem.n, 0, 1, (), 16)
    inputs = tuple(rows if "row" in role else columns for role in ending.roles)
    return Epilogue(ending.expression, inputs, second=problem.b if ending.gated else None, absmax=ending.absmax)


@functools.cache
def _ending(name: str | None, biased: bool, *, absmax: bool = False) -> Ending:
    found, _ = ending_of(name, object() if biased else None, None, None, gated=name in NAMED_GATED, absmax=absmax)
    assert found is not None
    return found


@functools.cache
def _dequantising() -> Ending:
    scales = {"row_scale": object(), "scale": object()}
    found, _ = ending_of(lambda acc, row_scale, scale: acc * row_scale * scale, None, None, scales)
    assert found is not None
    return found


def _layout(rng: Rng) -> str:
    return str(rng.choice(LAYOUTS))


def _of(rng: Rng, *names: str) -> str:
    return str(rng.choice(names))


def _int8_floats(rng: Rng) -> GemmProblem:
    """Return int8 by int8 with a float result: dequantised by scales, with a bias or function, or as it is."""
    layout = "nt" if rng.random() < 0.6 else _layout(rng)
    drawn, ending = rng.random(), None
    if drawn < 0.4:
        ending = _dequantising()
    elif drawn < 0.6:
        biased = rng.random() < 0.5
        ending = _ending(None if biased and rng.random() < 0.5 else _of(rng, *NAMED), biased)
    out = _of(rng, "float32", *HALVES)
    return product(rng, ("int8", "int8"), out, Matrices(layout), ending=ending, added=out if drawn > 0.95 else "")


def _int8_int8(rng: Rng) -> GemmProblem:
    return product(rng, ("int8", "int8"), "int8", Matrices(_layout(rng)))


def _results(rng: Rng) -> GemmProblem:
    """Return a GEMM with the result of another type."""
    one = _of(rng, *RESULTS)
    precision = Precision.FLOAT8 if one in FLOATS8 and rng.random() < 0.5 else Precision.IEEE
    if one == "float32" and rng.random() < 0.5:
        precision = Precision.TF32
    return product(rng, (one, one), _of(rng, *RESULTS[one]), Matrices(_layout(rng)), precision=precision)


def _gated(rng: Rng) -> GemmProblem:
    """Return a gated form: as frameworks have it, and of operands that are copied first."""
    ending, drawn = _ending(_of(rng, *NAMED_GATED), rng.random() < 0.2), rng.random()
    types = (_of(rng, *HALVES),) * 2
    if drawn < 0.3:
        return product(rng, types, types[0], Matrices("nt"), ending=ending)
    if drawn < 0.5:
        # Pairs of a row-major B.
        return product(rng, types, types[0], Matrices("nn", strided="b"), ending=ending)
    if drawn < 0.65:
        return product(rng, types, types[0], Matrices(_layout(rng), strided="a"), ending=ending)
    if drawn < 0.8:
        types = types[0], _of(rng, *FLOATS8, "int8", "float32")
        if rng.random() < 0.5:
            types = types[1], types[0]
        out = types[0] if types[0] in HALVES else types[1]
        return product(rng, types, out, Matrices(_layout(rng)), ending=ending)
    if drawn < 0.9:
        precision = Precision.FLOAT8 if rng.random() < 0.5 else Precision.IEEE
        return product(rng, (FLOATS8[0],) * 2, "bfloat16", Matrices(_layout(rng)), ending=ending, precision=precision)
    precision = Precision.TF32 if rng.random() < 0.5 else Precision.IEEE
    return product(rng, ("float32",) * 2, "float32", Matrices(_layout(rng)), ending=ending, precision=precision)


def _few_rows(rng: Rng) -> GemmProblem:
    """Return a product of up to 16 rows by weights of another type."""
    a = _of(rng, "float32", "float32", *HALVES)
    b = _of(rng, *(HALVES if a == "float32" else ()), *FLOATS8, "int8")
    n, k = (int(rng.integers(2, 113)) * 128 if rng.random() < 0.5 else int(2 ** rng.integers(8, 15)) for _ in range(2))
    return product(rng, (a, b), a, Matrices(_of(rng, "nt", "nt", "nn")), (int(rng.integers(1, 17)), n, k))


def _mixed(rng: Rng) -> GemmProblem:
    """Return a GEMM of two real types, with the common type, or a float of 16 or 32 bits, as the result."""
    a, b = (str(one) for one in rng.choice(REAL, 2, replace=False))
    try:
        out = promoted(a, b)
    except DTypeError:
        # Calls of these name the result's type.
        out = ""
    sums = accumulator(dtype_named(a), dtype_named(b))
    if sums.name == "float32" and (out not in REAL or out in FLOATS8 or rng.random() < 0.2):
        out = _of(rng, *HALVES, "float32")
    elif out not in REAL or dtype_named(out).kind is not sums.kind:
        out = sums.name
    return product(rng, (a, b), out, Matrices(_layout(rng)))


def _real_complex(rng: Rng) -> GemmProblem:
    """Return a real by a complex matrix, in either order."""
    whole = _of(rng, *PARTS)
    part = PARTS[whole] if rng.random() < 0.8 else _of(rng, "float32", "float64")
    types = (part, whole) if rng.random() < 0.5 else (whole, part)
    out = promoted(*types)
    precision = Precision.OZAKI if part == PARTS[whole] and rng.random() < 0.1 else Precision.IEEE
    added = out if rng.random() < 0.1 else ""
    return product(rng, types, out, Matrices(_layout(rng)), added=added, precision=precision)


def _conjugated(rng: Rng) -> GemmProblem:
    """Return a complex GEMM with conjugated operands, as ``x @ x.conj().T`` has."""
    one = _of(rng, *PARTS)
    problem = product(rng, (one, one), one, Matrices(_of(rng, "nt", "tn", *LAYOUTS)))
    conj = _of(rng, "a", "b", "ab")
    return dataclasses.replace(
        problem, **{name: dataclasses.replace(getattr(problem, name), conj=True) for name in conj}
    )


def _strided(rng: Rng) -> GemmProblem:
    """Return a GEMM of which an operand, or the result, has neither contiguous rows nor columns."""
    one = _of(rng, *HALVES, "float32", "float32", "float64", "int8", "int32", FLOATS8[0], *PARTS)
    precision = Precision.TF32 if one == "float32" and rng.random() < 0.5 else Precision.IEEE
    out = {"int8": "int32", FLOATS8[0]: "bfloat16"}.get(one, one)
    matrices = Matrices(_layout(rng), _of(rng, "a", "b", "ab", "d"))
    return product(rng, (one, one), out, matrices, precision=precision)


def _added(rng: Rng) -> GemmProblem:
    """Return a GEMM with a C, as the result lies or in the other order, of its type or float32."""
    one = _of(rng, *HALVES, "float32", "float32", "float64", *PARTS)
    precision = Precision.TF32 if one == "float32" and rng.random() < 0.4 else Precision.IEEE
    kind = "float32" if one in HALVES and rng.random() < 0.3 else one
    matrices = Matrices(_layout(rng), columns=_of(rng, "", "", "c", "cd"))
    return product(rng, (one, one), one, matrices, added=kind, precision=precision)


def _columns(rng: Rng) -> GemmProblem:
    """Return a GEMM with a column-major result."""
    one = _of(rng, *HALVES, "float32", "float32", "float64", *PARTS)
    precision = Precision.TF32 if one == "float32" and rng.random() < 0.4 else Precision.IEEE
    return product(rng, (one, one), one, Matrices(_layout(rng), columns="d"), precision=precision)


def _epilogues(rng: Rng) -> GemmProblem:
    """Return a GEMM with a bias, a function by name, both, or the largest magnitude."""
    one, absmax = _of(rng, *HALVES, "float32", "float32", "float64"), rng.random() < 0.1
    precision = Precision.TF32 if one == "float32" and rng.random() < 0.4 else Precision.IEEE
    biased = rng.random() < 0.6
    named = not biased or rng.random() < 0.5
    ending = _ending(_of(rng, *NAMED) if named else None, biased, absmax=absmax and one != "float64")
    layout = "nt" if rng.random() < 0.6 else _layout(rng)
    return product(rng, (one, one), one, Matrices(layout), ending=ending, precision=precision)


def _emulated(rng: Rng) -> GemmProblem:
    """Return a product by emulation, guarded or not."""
    precision = (Precision.BF16X6, *INT8_PRODUCTS, Precision.OZAKI)[int(rng.integers(5))]
    one = "float32" if precision is Precision.BF16X6 else "float64"
    if precision is Precision.OZAKI:
        one = _of(rng, "float32", "float64", *PARTS)
    return product(rng, (one, one), one, Matrices(_layout(rng)), precision=precision)


def _own(rng: Rng) -> GemmProblem:
    """Return a matrix times its own transpose."""
    one = _of(rng, *HALVES, "float32", "float64", *PARTS)
    m, _, k = extents_of(rng, dtype_named(one).itemsize)
    problem = product(rng, (one, one), one, Matrices(_of(rng, "nt", "tn")), (m, m, k))
    return mark_own_transpose(problem, True)


#: Kinds of calls by name.
CALLS: Mapping[str, Callable[[Rng], GemmProblem]] = {
    "int8 to floats": _int8_floats, "int8 to int8": _int8_int8, "other results": _results, "gated": _gated,
    "few rows, mixed": _few_rows, "mixed types": _mixed, "real by complex": _real_complex,
    "conjugated": _conjugated, "strided": _strided, "C": _added, "column-major": _columns, "epilogues": _epilogues,
    "emulated": _emulated, "own transpose": _own,
}  # fmt: skip


def call_part(kind: str, number: int, seed: int) -> Iterator[GemmProblem]:
    """Yield the GEMMs of a kind from `number` times `PART`, which need not be drawn after the former ones."""
    rng = np.random.default_rng([seed, number, 2 + list(CALLS).index(kind)])
    return (CALLS[kind](rng) for _ in range(PART))
