"""The kernels of the guard: the least product of magnitudes, the decision; and native kernels that depend on it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.dtype import BF16_PRODUCTS, FLOAT8_E5M2, FLOAT64, INT32
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.launch import Launch, Param, ScalarParam, TensorParam
from gemmule.core.problem import GemmProblem
from gemmule.core.signature import every_signature
from gemmule.core.spec import Buildable, KernelSpec, Signature
from gemmule.kernels.hopper import tile_config
from gemmule.kernels.hopper.refusals import HOPPER, refuse_hopper, refuse_no_config
from gemmule.kernels.hopper.tma_tiles import operand_params

from .guard import CHOICES, MODULI_CHOICES, SAMPLE_RUN, largest_shortfalls, sample_runs
from .guard_words import DECISION_WORD, GUARDED, SHORTFALL, planes_of, word_param
from .ozaki_config import PARTS, SLICE, DecisionConfig, ProductsConfig
from .ozaki_steps import product_costs, product_grid

#: Microseconds of a launch on an H100.
_LAUNCH = 2.0


def sampled_length(k: int) -> int:
    """Return the bytes of a line of magnitudes, whole k-tiles."""
    return -(-sample_runs(k) * SAMPLE_RUN // SLICE) * SLICE


def bound_columns(problem: GemmProblem) -> int:
    """Return the columns of sums of magnitudes: of a complex result those of real and of imaginary parts."""
    return problem.n * (PARTS if planes_of(problem) > 1 else 1)


def _takes_all(problem: GemmProblem, arch: Arch) -> None:
    del problem, arch


def _why_not_guard(problem: GemmProblem, arch: Arch) -> str | None:
    if problem.a.dtype != FLOAT8_E5M2 or problem.b.dtype != FLOAT8_E5M2 or problem.k % SLICE:
        return f"A is {problem.a.dtype} and B {problem.b.dtype}; this kernel takes what ozaki_magnitudes makes"
    return refuse_hopper(problem, arch, "ab", tma="ab")


def _guard_signature(problem: GemmProblem, config: ProductsConfig) -> Signature:
    del problem, config
    return (("element", FLOAT8_E5M2.name),)


def _guard_launch(problem: GemmProblem, config: ProductsConfig) -> Launch:
    """Return the launch recipe: maps of the magnitudes, and the shortfall with the extents of D."""
    return Launch(
        grid=product_grid(problem, config),
        block=(tile_config.THREADS, 1, 1),
        cluster=(config.cluster_size, 1, 1),
        shared_bytes=config.shared_bytes,
        params=(
            *operand_params("a", problem.a, (1,), config.tile_m, config.cluster_n),
            *operand_params("b", problem.b.transposed(), (1,), config.tile_n, config.cluster_m),
            TensorParam(SHORTFALL, (problem.m, problem.n, 1), (0, 0)),
        ),
        overlaps=True,
    )


GUARD = KernelSpec(
    name="ozaki_guard",
    operation="gemm",
    summary="the least product of magnitudes in float8_e5m2: wgmma, TMA, one number written",
    package=f"{__package__}.ozaki_guard",
    archs=(HOPPER,),
    configs=(ProductsConfig(), ProductsConfig(tile_m=128, tile_n=128, stages=6, pingpong=1)),
    signatures=every_signature(element=[FLOAT8_E5M2]),
    why_not=refuse_no_config,
    signature=_guard_signature,
    launch=_guard_launch,
    refuses=_why_not_guard,
    costs=product_costs,
    cost_in_us=True,
)


def _decision_signature(problem: GemmProblem, config: DecisionConfig) -> Signature:
    del problem, config
    return (("element", INT32.name),)


def _decision_launch(problem: GemmProblem, config: DecisionConfig) -> Launch:
    del config
    fewest, largest = decision_of(problem)
    params: tuple[Param, ...] = (
        word_param(SHORTFALL),
        word_param(DECISION_WORD),
        *(ScalarParam(f"largest{number}", INT32, one) for number, one in enumerate(largest)),
        ScalarParam("fewest", INT32, fewest),
    )
    return Launch(grid=(1, 1, 1), block=(32, 1, 1), params=params, overlaps=True)


def decision_of(problem: GemmProblem) -> tuple[int, tuple[int, ...]]:
    """Return the fewest products, and for each choice from there on the largest shortfall with which it suffices."""
    real = problem.a.dtype
    if real == FLOAT64 or planes_of(problem) > 1:
        return CHOICES[real][0], largest_shortfalls(problem.k, real)
    return BF16_PRODUCTS, (0,) * len(MODULI_CHOICES)


def _decision_cost(problem: GemmProblem, config: DecisionConfig, gpu: GpuRates) -> float:
    del problem, config
    return gpu.launch * _LAUNCH


DECISION = KernelSpec(
    name="guard_decision",
    operation="gemm",
    summary="how many products emulate the native one, by what the guard measured",
    package=f"{__package__}.guard_decision",
    archs=(HOPPER,),
    configs=(DecisionConfig(),),
    signatures=every_signature(element=[INT32]),
    why_not=refuse_no_config,
    signature=_decision_signature,
    launch=_decision_launch,
    refuses=_takes_all,
    cost=_decision_cost,
    cost_in_us=True,
)


def guarded_native(whole: KernelSpec, name: str) -> KernelSpec:
    """Return the spec of a native kernel whose CTAs return at once unless the guard decided for it.

    Parameters
    ----------
    whole : KernelSpec
        The kernel; its ``buildable(config, types)`` takes the key ``guarded``.
    name : str
        As of `KernelSpec`.
    """
    return dataclasses.replace(
        whole,
        name=name,
        summary=f"{whole.name}, where the guard of precision='ozaki' decided for it",
        epilogues=False,
        absmax=False,
        archs=(HOPPER,),
        signatures=functools.partial(_native_signatures, whole),
        signature=functools.partial(_native_signature, whole),
        launch=functools.partial(_native_launch, whole),
        package=f"{__package__}.guarded_native",
        build=_build_native,
        why_not=whole.why_not,
        refuses=whole.refuses,
        refuses_types=None,
    )


def _native_signature(whole: KernelSpec, problem: GemmProblem, config: Any) -> Signature:
    return (*whole.signature(problem, config), *GUARDED)


def _native_signatures(whole: KernelSpec, arch: Arch) -> tuple[Signature, ...]:
    return tuple((*one, *GUARDED) for one in whole.signatures(arch))


def _native_launch(whole: KernelSpec, problem: GemmProblem, config: Any) -> Launch:
    """Return the kernel's launch recipe with the decision."""
    recipe = whole.launch(problem, config)
    return dataclasses.replace(recipe, params=(*recipe.params, word_param(DECISION_WORD)), overlaps=True)


def _build_native(config: Any, signature: Signature) -> Buildable:
    from .guarded_native.kernel import buildable

    return buildable(config, dict(signature))
