"""Conjugated operands of the complex kernels."""

from __future__ import annotations

from gemmule.core.problem import GemmProblem


def conj_key(problem: GemmProblem) -> str:
    """Return which operands are conjugated: no, or a, b, ab, and with C each followed by c."""
    return "".join(name for name, matrix in problem.operands().items() if matrix.conj) or "no"


def why_not_conjugates(problem: GemmProblem, taken: str = "ab") -> str | None:
    """Return which operand is conjugated but those that a kernel takes as such, or None."""
    return next(
        (
            f"{name.upper()} is a lazy conjugate; this kernel takes those of {' and '.join(taken.upper())} only"
            for name, matrix in problem.operands().items()
            if matrix.conj and name not in taken
        ),
        None,
    )
