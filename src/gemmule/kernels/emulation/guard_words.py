"""What guarded launches have in common: the words that they read and write, and the key of their specialisation."""

from __future__ import annotations

import functools
from collections.abc import Callable

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32, FLOAT64, DType, Kind, Precision
from gemmule.core.launch import Param, TensorParam
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Signature

from .ozaki_config import PLANES

#: Workspaces of what the guard measures, and of what it decides: the products of the emulation, or 0 for the native
#: kernel.
SHORTFALL, DECISION_WORD = "shortfall", "products"
#: The key of launches that read the decision.
GUARDED: Signature = (("guarded", "yes"),)


def word_param(name: str) -> TensorParam:
    """Describe a word that a guarded launch reads or writes."""
    return TensorParam(name, (1,), ())


def guard_params(precision: Precision) -> tuple[Param, ...]:
    """Describe the guard's decision where there is one."""
    return (word_param(DECISION_WORD),) if precision is Precision.OZAKI else ()


def guarded_key(precision: Precision) -> Signature:
    """Return the key of launches that read the decision, if they do."""
    return GUARDED if precision is Precision.OZAKI else ()


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


def with_guarded(plain: Callable[[Arch], tuple[Signature, ...]]) -> Callable[[Arch], tuple[Signature, ...]]:
    """Return signatures without a guard and with one."""
    return functools.partial(_both, plain)


def _both(plain: Callable[[Arch], tuple[Signature, ...]], arch: Arch) -> tuple[Signature, ...]:
    return (*plain(arch), *((*one, *GUARDED) for one in plain(arch)))
