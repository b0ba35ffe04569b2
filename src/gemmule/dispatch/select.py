"""Choosing a kernel for a problem."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision, dtype_named
from gemmule.core.errors import DTypeError, UnsupportedError
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem, Problem, split_batch
from gemmule.core.spec import Choice, Config, KernelSpec

from .registry import REGISTRY


def choose(
    problem: Problem, arch: Arch, registry: Sequence[KernelSpec] = REGISTRY, *, multiprocessors: int | None = None
) -> Choice:
    """Return the first kernel of the registry that can take the problem, in the config that suits its size.

    Parameters
    ----------
    problem : GemmProblem or TransposeProblem
        What is to be computed.
    arch : Arch
        The GPU's architecture.
    registry : sequence of KernelSpec
        The kernels to choose from, best first.
    multiprocessors : int, optional
        The GPU's: the config is the one with the largest tiles that give each of them a CTA. None takes the default.

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
            config = spec.default if multiprocessors is None else _config(spec, problem, arch, multiprocessors)
            return Choice(spec, config, tuple(refused))
        refused.append((spec.name, reason))
    raise UnsupportedError("; ".join(f"{name}: {reason}" for name, reason in refused))


def _config(spec: KernelSpec, problem: Problem, arch: Arch, multiprocessors: int) -> Config:
    inner, _, _ = split_batch(problem, spec.batch_dims)
    ctas = {
        config: math.prod(spec.launch(inner, config).grid)
        for config in spec.configs
        if spec.why_not(problem, arch, config) is None
    }
    enough = [config for config, count in ctas.items() if count >= multiprocessors]
    if enough:
        return min(enough, key=lambda config: ctas[config])
    # Reversed: of equals the last, whose tiles are smaller.
    return max(reversed(ctas), key=lambda config: ctas[config])


def contiguous_gemm(
    m: int,
    n: int,
    k: int,
    dtypes: tuple[str, str, str],
    *,
    c_dtype: str | None = None,
    batch: tuple[int, ...] = (),
    alpha: float | int = 1,
    beta: float | int = 0,
    precision: Precision = Precision.IEEE,
) -> GemmProblem:
    """Return the product of contiguous matrices: what host arrays become on a GPU.

    Parameters
    ----------
    m, n, k : int
        A is (m, k), B is (k, n), the result (m, n).
    dtypes : tuple of str
        Types of A, B and the result.
    c_dtype : str, optional
        Type of the matrix to add.
    batch, alpha, beta, precision
        As of GemmProblem.

    Raises
    ------
    DTypeError
        If kernels do not know a type.
    """
    a, b, d = map(dtype_named, dtypes)
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        batch=batch,
        a=contiguous(a, m, k, batch),
        b=contiguous(b, k, n, batch),
        c=contiguous(dtype_named(c_dtype), m, n, batch) if c_dtype is not None else None,
        d=contiguous(d, m, n, batch),
        alpha=alpha,
        beta=beta,
        precision=precision,
    )


def why_no_gemm(dtypes: tuple[str, str, str], c_dtype: str | None, arch: Arch) -> str | None:
    """Say why no kernel multiplies contiguous matrices of those types, or None where one does."""
    try:
        choose(contiguous_gemm(1, 1, 1, dtypes, c_dtype=c_dtype), arch)
    except (DTypeError, UnsupportedError) as error:
        return str(error)
    return None
