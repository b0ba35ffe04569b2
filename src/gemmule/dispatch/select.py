"""Choosing a kernel for a problem."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import Precision, dtype_named
from gemmule.core.errors import DTypeError, UnsupportedError
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem, Problem, TransposeProblem, split_batch
from gemmule.core.spec import Choice, Config, KernelSpec

from .registry import REGISTRY

#: Launches of one product beyond which a kernel that covers more of the batch at once is better.
MAX_LAUNCHES = 16


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
        The GPU's: the config is the one that computes least beyond the edges and gives each of them a CTA, of equals
        the one with the largest tiles. None takes the first that can.

    Raises
    ------
    UnsupportedError
        If none can; the message gives every kernel's reason.
    """
    operation = "gemm" if isinstance(problem, GemmProblem) else "transpose"
    in_place = isinstance(problem, TransposeProblem) and problem.in_place
    refused: list[tuple[str, str]] = []
    for spec in registry:
        if spec.operation != operation or spec.in_place != in_place:
            continue
        inner, outer, _ = split_batch(problem, spec.batch_dims)
        reasons = {config: spec.why_not(inner, arch, config) for config in spec.configs}
        able = [config for config, reason in reasons.items() if reason is None]
        launches = math.prod(outer)
        if not able:
            refused.append((spec.name, reasons[spec.default] or ""))
        elif launches > MAX_LAUNCHES and spec.batch_dims < _most_batch_dims(operation, registry):
            refused.append((spec.name, f"it would take {launches} launches, one for each matrix of the batch"))
        else:
            config = able[0] if multiprocessors is None else _suitable(spec, inner, able, multiprocessors)
            return Choice(spec, config, tuple(refused))
    raise UnsupportedError("; ".join(f"{name}: {reason}" for name, reason in refused))


def _most_batch_dims(operation: str, registry: Sequence[KernelSpec]) -> int:
    return max(spec.batch_dims for spec in registry if spec.operation == operation)


def _suitable(spec: KernelSpec, problem: Problem, configs: Sequence[Config], multiprocessors: int) -> Config:
    """Return the config that computes least beyond the edges with a CTA for each multiprocessor, else the most CTAs."""
    if spec.cost is not None:
        cost = spec.cost
        return min(configs, key=lambda config: cost(problem, config, multiprocessors))
    ctas = {config: math.prod(spec.launch(problem, config).grid) for config in configs}
    enough = [config for config in configs if ctas[config] >= multiprocessors]
    if enough:
        return min(enough, key=lambda config: (ctas[config] * config.outputs, ctas[config]))
    # Of equals the last, whose tiles are smaller.
    return max(reversed(configs), key=lambda config: ctas[config])


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
