"""float64 with precision='ozaki-15': scales, then residues, their products and the CRT reconstruction by blocks."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import FEWEST_INT8_PRODUCTS, FLOAT64, Precision
from gemmule.core.errors import ArgumentError
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.launch import Launch
from gemmule.core.problem import GemmProblem, OperandTypes
from gemmule.core.row_major import row_result
from gemmule.core.signature import every_signature
from gemmule.core.spec import Buildable, NextKernel, Signature
from gemmule.kernels.emulation.guarded_native.spec import guarded_native
from gemmule.kernels.emulation.launch_spec import emulation_spec
from gemmule.kernels.emulation.ozaki_chain import emulation, emulation_us, native_kernel, pays, why_not_elements
from gemmule.kernels.emulation.ozaki_config import LAUNCH_US, ScalesConfig
from gemmule.kernels.emulation.ozaki_gemm.first_launches import (
    build_words,
    scales_launch,
    scales_us,
    signature,
    words_launch,
)
from gemmule.kernels.emulation.product_forms import MODULI_KEYS
from gemmule.kernels.float64.gemm.spec import SPEC as PLAIN
from gemmule.kernels.hopper.refusals import refuse_hopper, refuse_types

NATIVE = guarded_native(PLAIN, "float64_guarded")


def next_kernel(problem: GemmProblem, config: ScalesConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    """Return the kernels after the scales: for each block of columns residues, their products, the reconstruction."""
    del config
    return _next_kernel(problem, gpu)


# Selection, a plan and the launch need the same.
@functools.lru_cache(maxsize=256)
def _next_kernel(problem: GemmProblem, gpu: GpuRates) -> NextKernel:
    oriented, *names = row_result(problem)
    native = native_kernel(problem, NATIVE, gpu) if problem.precision is Precision.OZAKI else None
    return emulation(oriented, names, native, gpu)


def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem without batch, or None where all do."""
    if reason := why_not_elements(problem) or refuse_types((FLOAT64,), problem.types, arch):
        return reason
    if reason := refuse_hopper(problem, arch, batch_dims=0):
        return reason
    try:
        _next_kernel(problem, H200_RATES)
    except ArgumentError as error:
        return str(error)
    return None


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    del arch
    if types.precision in FEWEST_INT8_PRODUCTS:
        return None
    return f"precision is {types.precision.value!r}; this kernel is for 'ozaki', 'ozaki-14', 'ozaki-15' and 'ozaki-16'"


def launch(problem: GemmProblem, config: ScalesConfig) -> Launch:
    """Return the recipe of the first launch: with a guard its words, else the scales."""
    return (words_launch if problem.precision is Precision.OZAKI else scales_launch)(problem, config)


def times_us(problem: GemmProblem, gpu: GpuRates) -> tuple[float, float]:
    """Return roughly the microseconds of all launches where the product is emulated, and where the guard refuses it.

    Without a guard both are the same.
    """
    guarded = problem.precision is Precision.OZAKI
    first = gpu.launch * LAUNCH_US if guarded else scales_us(problem, ScalesConfig(), gpu)
    emulated, refused = emulation_us(_next_kernel(problem, gpu), gpu)
    return first + emulated, first + refused


def costs(problem: GemmProblem, configs: Sequence[ScalesConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the time in microseconds of all launches, which is that of all configs: of ordinary numbers."""
    emulated, _ = times_us(problem, gpu)
    return [emulated for _ in configs]


def faster_alternative(problem: GemmProblem, cost: float, gpu: GpuRates) -> str | None:
    """Return the kernel of plain float64, where residues are not expected to pay."""
    del cost
    return None if pays(*times_us(problem, gpu), PLAIN.least_cost(problem, gpu)) else PLAIN.name


def _build(config: ScalesConfig, signature: Signature) -> Buildable:
    from .kernel import buildable

    return (
        build_words(config, signature) if dict(signature)["moduli"] == "guarded" else buildable(config, dict(signature))
    )


SPEC = emulation_spec(
    name="ozaki_gemm",
    summary="float64 with precision='ozaki' or 'ozaki-14' to '-16', any leading dimensions: int8 GEMMs of residues",
    package=__package__,
    build=_build,
    configs=(ScalesConfig(),),
    signatures=every_signature(a_major="km", b_major="nk", moduli=MODULI_KEYS),
    signature=signature,
    launch=launch,
    batch_dims=0,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    next_kernel=next_kernel,
    faster_alternative=faster_alternative,
)
