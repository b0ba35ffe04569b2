"""Conjugated operands of the complex kernels."""

from __future__ import annotations

from gemmule.core.problem import GemmProblem


def conj_key(problem: GemmProblem) -> str:
    """Return which operands are conjugated: no, a, b or ab."""
    return ("a" if problem.a.conj else "") + ("b" if problem.b.conj else "") or "no"


def why_not_conjugates(problem: GemmProblem) -> str | None:
    """Return which operand is conjugated but A and B, or None."""
    return next(
        (
            f"{name.upper()} is a lazy conjugate; this kernel takes those of A and B only"
            for name, matrix in problem.operands().items()
            if matrix.conj and name not in ("a", "b")
        ),
        None,
    )
