"""The key of tuned entries: the properties of a product that the choice of a config depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gemmule.core.dtype import DType, Precision, dtype_named
from gemmule.core.errors import FileFormatError
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, collapse_batch

from .former_names import PRECISIONS

#: Bytes of the widest load; higher alignments are equivalent.
_WHOLE = 16
#: Types of the same size and tensor-core rate.
_TWINS = {"float16": "bfloat16", "bfloat16": "float16"}
_NAMES = ("a_dtype", "b_dtype", "c_dtype", "d_dtype", "precision", "layout", "d_layout", "shared")


class ProblemKey(NamedTuple):
    """The key of a product, independent of alpha, beta, addresses and padding."""

    #: m, n, k: Extents.
    m: int
    n: int
    k: int
    batch: tuple[int, ...]  #: Extents of the batch, merged where strides allow.
    #: a_dtype, b_dtype, c_dtype, d_dtype: Element types; `c_dtype` is empty without C.
    a_dtype: str
    b_dtype: str
    c_dtype: str
    d_dtype: str
    precision: str  #: Least precision.
    layout: str  #: Layouts of A and B: nn, nt, tn or tt, n is row-major.
    d_layout: str  #: Layout of C and D: n or t.
    alignment: tuple[int, ...]  #: Alignments in bytes, up to 16, of the rows or columns of A, B, C (if any) and D.
    shared: str  #: Operands broadcast over the batch, e.g. ``b``.

    def twin(self) -> ProblemKey | None:
        """Return the key of the same product in the other floating-point type of 16 bits, or None."""
        if self.a_dtype not in _TWINS or self.b_dtype != self.a_dtype:
            return None
        own, twin = self.a_dtype, _TWINS[self.a_dtype]
        kinds = (own, self.b_dtype, self.c_dtype, self.d_dtype)
        if twin in kinds:
            # Both 16-bit types are in use.
            return None
        c, d = (twin if kind == own else kind for kind in kinds[2:])
        return self._replace(a_dtype=twin, b_dtype=twin, c_dtype=c, d_dtype=d)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as in JSON."""
        return {
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "batch": list(self.batch),
            **{name: getattr(self, name) for name in _NAMES},
            "alignment": list(self.alignment),
        }

    @classmethod
    def of_dict(cls, fields: Mapping[str, Any]) -> ProblemKey:
        """Return the key of `as_dict`'s fields; others are ignored.

        Raises
        ------
        FileFormatError
            If a field is missing or has a wrong type.
        """
        try:
            texts = {name: fields[name] for name in _NAMES}
            extents = {name: fields[name] for name in "mnk"}
            batch, alignment = tuple(fields["batch"]), tuple(fields["alignment"])
        except (KeyError, TypeError) as error:
            raise FileFormatError(f"a product lacks or misspells {error}") from error
        numbers = (*extents.values(), *batch, *alignment)
        if not all(isinstance(text, str) for text in texts.values()):
            raise FileFormatError(f"a product's {', '.join(_NAMES)} must be texts")
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise FileFormatError("a product's extents and alignments must be whole numbers from 0 on")
        texts["precision"] = PRECISIONS.get(texts["precision"], texts["precision"])
        return cls(**extents, batch=batch, alignment=alignment, **texts)


def key_of(problem: GemmProblem) -> ProblemKey | None:
    """Return the key of a product; None where an operand is neither row- nor column-major.

    None, too, with an epilogue or a partly needed result, whose cost depends on the config and is not measured.
    """
    if problem.epilogue is not None or problem.needed is not None:
        return None
    operands = problem.operands()
    for matrix in operands.values():
        if not (matrix.is_row_major or matrix.is_col_major):
            return None
    if problem.c is not None and problem.c.is_row_major != problem.d.is_row_major:
        return None
    batch, strides, shared = problem.batch, [matrix.batch_strides for matrix in operands.values()], ""
    if batch:
        batch, strides = collapse_batch(batch, strides)
    if batch:
        shared = "".join(name for name, own in zip(operands, strides, strict=True) if not any(own))
    return ProblemKey(
        m=problem.m,
        n=problem.n,
        k=problem.k,
        batch=batch,
        a_dtype=problem.a.dtype.name,
        b_dtype=problem.b.dtype.name,
        c_dtype=problem.c.dtype.name if problem.c is not None else "",
        d_dtype=problem.d.dtype.name,
        precision=problem.precision.value,
        layout=_letter(problem.a) + _letter(problem.b),
        d_layout="n" if problem.d.is_row_major else "t",
        alignment=tuple(map(_alignment, operands.values(), strides)),
        shared=shared,
    )


def _letter(matrix: StridedMatrix) -> str:
    return "n" if matrix.has_contiguous_rows else "t"


def _alignment(matrix: StridedMatrix, batch_strides: tuple[int, ...]) -> int:
    lines, ld = (matrix.rows, matrix.row_stride) if matrix.has_contiguous_rows else (matrix.cols, matrix.col_stride)
    bits = matrix.alignment
    for steps in (ld if lines > 1 else 0, *batch_strides):
        bits |= steps * matrix.dtype.itemsize
    return min(bits & -bits, _WHOLE)


def problem_of(key: ProblemKey) -> GemmProblem:
    """Return a product with a key, of compact matrices, padded where the alignment requires it.

    Raises
    ------
    DTypeError, ArgumentError
        If kernels do not support a type or a precision.
    FileFormatError
        If alignments or layouts are not those of A, B, C and D, or are impossible.
    """
    operands = {
        "a": (key.a_dtype, key.m, key.k, key.layout[:1]),
        "b": (key.b_dtype, key.k, key.n, key.layout[1:]),
        **({"c": (key.c_dtype, key.m, key.n, key.d_layout)} if key.c_dtype else {}),
        "d": (key.d_dtype, key.m, key.n, key.d_layout),
    }
    if len(key.alignment) != len(operands) or not {key.layout[:1], key.layout[1:], key.d_layout} <= {"n", "t"}:
        raise FileFormatError(f"the product {key} has not one alignment and layout for each of {', '.join(operands)}")
    matrices = {
        name: _matrix(dtype_named(dtype), rows, cols, letter, key.batch, alignment, shared=name in key.shared)
        for (name, (dtype, rows, cols, letter)), alignment in zip(operands.items(), key.alignment, strict=True)
    }
    return GemmProblem(
        m=key.m,
        n=key.n,
        k=key.k,
        batch=key.batch,
        a=matrices["a"],
        b=matrices["b"],
        c=matrices.get("c"),
        d=matrices["d"],
        beta=1 if key.c_dtype else 0,
        precision=Precision.parse(key.precision),
    )


def _matrix(
    dtype: DType, rows: int, cols: int, letter: str, batch: tuple[int, ...], alignment: int, *, shared: bool
) -> StridedMatrix:
    if letter == "t":
        return _matrix(dtype, cols, rows, "n", batch, alignment, shared=shared).transposed()
    if alignment not in (1, 2, 4, 8, 16) or (alignment % dtype.itemsize and alignment >= dtype.itemsize):
        raise FileFormatError(f"no {dtype} matrix is aligned to {alignment} bytes; it may be 1, 2, 4, 8 or 16")
    unit = max(alignment // dtype.itemsize, 1)
    ld = max(-(-cols // unit) * unit, 1)
    steps, step = [], ld * max(rows, 1)
    for extent in reversed(batch):
        steps.append(0 if shared else step)
        step *= max(extent, 1)
    # Where rows are more aligned than the key, the first address is not.
    whole = rows <= 1 or (ld * dtype.itemsize) % (2 * alignment) == 0 or alignment == _WHOLE
    begins = alignment if whole else _WHOLE
    return StridedMatrix(dtype, rows, cols, ld, 1, tuple(reversed(steps)), begins)
