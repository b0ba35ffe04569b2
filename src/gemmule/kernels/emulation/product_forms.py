"""Forms of products by Ozaki scheme II: their planes, the numbers of moduli, and the keys of both."""

from __future__ import annotations

from gemmule.core.dtype import FLOAT32, FLOAT64, INT8_PRODUCTS, DType, Kind, Precision
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Signature

from .guard import CHOICES, NATIVE_SHARE
from .ozaki_config import PARTS, PLANES


def planes_of(problem: GemmProblem) -> int:
    """Return how many products of residues there are for each modulus: of a complex result three (3M), else one.

    A and B of the former have real elements, the parts of successive elements of K.
    """
    return PLANES if problem.d.dtype.kind is Kind.COMPLEX else 1


def planes_key(planes: int) -> Signature:
    """Return the key of kernels for so many products of residues, if they are several."""
    return (("planes", str(planes)),) if planes > 1 else ()


def forms_key(planes: int, real: DType) -> Signature:
    """Return the keys of kernels that see numbers too: of so many products, and of real numbers but float64."""
    return (*planes_key(planes), *((("real", real.name),) if real != FLOAT64 else ()))


def forms_of(problem: GemmProblem) -> Signature:
    """Return `forms_key` of a problem."""
    return forms_key(planes_of(problem), problem.a.dtype)


#: The keys of complex types.
COMPLEX_FORMS = tuple(forms_key(PLANES, real) for real in (FLOAT64, FLOAT32))
#: Values of the key of moduli: how many there are, or that the guard decides.
MODULI_KEYS = ("14", "15", "16", "guarded")


def moduli_key(precision: Precision) -> Signature:
    """Return the key of how many moduli there are."""
    return (("moduli", "guarded" if precision is Precision.OZAKI else str(INT8_PRODUCTS[precision])),)


def most_moduli(problem: GemmProblem) -> int:
    """Return how many moduli there are at most, for which there must be memory."""
    guarded = problem.precision is Precision.OZAKI
    return CHOICES[problem.a.dtype][-1] if guarded else INT8_PRODUCTS[problem.precision]


def fewest_moduli(problem: GemmProblem) -> int:
    """Return how many moduli ordinary numbers need."""
    guarded = problem.precision is Precision.OZAKI
    return CHOICES[problem.a.dtype][0] if guarded else INT8_PRODUCTS[problem.precision]


def depth_of(problem: GemmProblem) -> int:
    """Return K in the elements of a plane."""
    return problem.k // (PARTS if planes_of(problem) > 1 else 1)


def native_room(problem: GemmProblem) -> tuple[int, int]:
    """Return how many rows and columns of an emulated product the native kernel may compute: of complex ones none."""
    if problem.precision is not Precision.OZAKI or planes_of(problem) > 1:
        return 0, 0
    return problem.m // NATIVE_SHARE, problem.n // NATIVE_SHARE


def lead(matrix: StridedMatrix) -> int:
    """Return the elements from one contiguous line of a matrix to the next."""
    return matrix.row_stride if matrix.has_contiguous_rows else matrix.col_stride
