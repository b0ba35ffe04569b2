"""Words that guarded launches read and write, and the key of their specialisation."""

from __future__ import annotations

import functools
from collections.abc import Callable

from gemmule.core.arch import Arch
from gemmule.core.dtype import GUARDED_PRODUCTS, Precision
from gemmule.core.launch import Param, TensorParam
from gemmule.core.spec import Signature

#: Workspace of the guard's words, and what the decision is written to where it is asked for.
SHORTFALL, DECISION_WORD = "shortfall", "products"
#: The shortfall of what is never emulated.
NEVER = len(GUARDED_PRODUCTS)
#: The words: the shortfall, which is how many choices of moduli do not suffice; for each of them the guard's limit; how
#: many rows, and columns, are listed, which the native kernel computes; how many may be; how many are listed of those
#: that are measured first; whether the geometric mean of some line is too small to decide. Then come the lists.
LIMITS, LISTED = 1, 1 + NEVER
ROOM, EARLY_LISTED = LISTED + 2, LISTED + 4
UNCERTAIN = EARLY_LISTED + 2
SHORTFALL_WORDS = UNCERTAIN + 1
#: The key of launches that read the shortfall.
GUARDED: Signature = (("guarded", "yes"),)


def word_param(name: str) -> TensorParam:
    """Describe a word that a guarded launch reads or writes."""
    return TensorParam(name, (1,), ())


def guard_params(precision: Precision) -> tuple[Param, ...]:
    """Describe the guard's shortfall where there is one."""
    return (word_param(SHORTFALL),) if precision is Precision.OZAKI else ()


def guarded_key(precision: Precision) -> Signature:
    """Return the key of launches that read the shortfall, if they do."""
    return GUARDED if precision is Precision.OZAKI else ()


def with_guarded(plain: Callable[[Arch], tuple[Signature, ...]]) -> Callable[[Arch], tuple[Signature, ...]]:
    """Return signatures without a guard and with one."""
    return functools.partial(_both, plain)


def _both(plain: Callable[[Arch], tuple[Signature, ...]], arch: Arch) -> tuple[Signature, ...]:
    return (*plain(arch), *((*one, *GUARDED) for one in plain(arch)))
