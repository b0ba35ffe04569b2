"""Choosing a kernel for a problem."""

from __future__ import annotations

from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.errors import UnsupportedError
from gemmule.core.problem import GemmProblem, Problem
from gemmule.core.spec import Choice, KernelSpec

from .registry import REGISTRY


def choose(problem: Problem, arch: Arch, registry: Sequence[KernelSpec] = REGISTRY) -> Choice:
    """Return the first kernel of the registry that can take the problem, in its default config.

    Parameters
    ----------
    problem : GemmProblem or TransposeProblem
        What is to be computed.
    arch : Arch
        The GPU's architecture.
    registry : sequence of KernelSpec
        The kernels to choose from, best first.

    Raises
    ------
    UnsupportedError
        If none can; the message gives every kernel's reason.
    """
    operation = "gemm" if isinstance(problem, GemmProblem) else "transpose"
    refused: list[tuple[str, str]] = []
    for spec in registry:
        if spec.operation != operation:
            continue
        reason = spec.why_not(problem, arch, spec.default)
        if reason is None:
            return Choice(spec, spec.default, tuple(refused))
        refused.append((spec.name, reason))
    raise UnsupportedError("; ".join(f"{name}: {reason}" for name, reason in refused))
