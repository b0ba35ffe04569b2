"""Spec of the float32 and int32 GEMM on the FMA units."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.config import why_not_cluster
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FLOAT32, INT8, INT32, DType
from gemmule.core.epilogue_inputs import epilogue_params, epilogue_signature, why_not_inputs
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import FEW_BYTES, Launch
from gemmule.core.problem import GemmProblem, OperandTypes, inner_problem
from gemmule.core.row_major import row_result, why_not_extents, why_not_grid, why_not_strides
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.parts.batched_launch import (
    batched_params,
    copies_signature,
    tile_grid,
    tiles_divide,
    tiles_signature,
)
from gemmule.kernels.parts.leading_dimension import result_vector
from gemmule.kernels.simt.config import VECTOR, VECTOR_BYTES, SimtConfig
from gemmule.kernels.simt.cost import costs, costs_with_copies, operand_copies, operand_layouts

#: Types that C and D may have for each type of A and B.
OUTPUTS: dict[DType, tuple[DType, ...]] = {
    FLOAT32: (FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2),
    INT32: (INT32, INT8),
}


@cache_last_call
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    del arch
    inner = inner_problem(problem, SPEC.batch_dims)
    return why_not_inputs(problem) or why_not_strides(inner) or why_not_extents(inner)


def _refuses_types(types: OperandTypes, arch: Arch) -> str | None:
    a, b, c, out, _ = types
    for name, dtype in (("A", a), ("B", b)):
        if dtype not in OUTPUTS:
            return f"{name} is {dtype}; this kernel takes {' and '.join(map(str, OUTPUTS))} only"
    if a != b:
        return f"A is {a} and B {b}; this kernel takes both of one type"
    if out not in OUTPUTS[a]:
        return f"the output is {out}; from {a} this kernel makes {', '.join(map(str, OUTPUTS[a]))}"
    if c is not None and c != out:
        return f"C is {c} and the output {out}; this kernel takes both of one type"
    return arch.why_not_float8((), out)


def why_not(problem: GemmProblem, arch: Arch, config: SimtConfig) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    if reason := why_not_cluster(config, config.cluster_k, arch):
        return reason
    inner = inner_problem(problem, SPEC.batch_dims)
    first, second = operand_layouts(inner)
    slots = config.by_slots((first.k_major and not first.unaligned, second.k_major and not second.unaligned))
    needed = config.shared_bytes(first.k_major, second.k_major, slots=any(slots))
    most = arch.shared_bytes_per_block
    if needed > most:
        return f"config {config}: {needed} bytes of shared memory; a CTA on {arch} has up to {most}"
    oriented, _, _ = row_result(inner)
    return why_not_grid(tile_grid(oriented, config.tile_m, config.tile_n, config.cluster_k))


def signature(problem: GemmProblem, config: SimtConfig) -> Signature:
    """Specialise for the major modes of A and B, the widths of copies, whole tiles, D's type and the epilogue."""
    oriented, _, _ = row_result(problem)
    a, b, vector = operand_copies(oriented.a), operand_copies(oriented.b), result_vector(oriented, VECTOR)
    # A vector of a padded K-major operand may be half outside.
    along = VECTOR_BYTES if oriented.k % VECTOR == 0 else FLOAT32.itemsize
    a_major, a_copies = ("k", min(a.copy_bytes, along)) if a.row_major else ("m", a.copy_bytes)
    b_major, b_copies = ("n", b.copy_bytes) if b.row_major else ("k", min(b.copy_bytes, along))
    whole = tiles_divide(oriented, (config.tile_m, config.tile_n, config.tile_k)) and vector > 1
    element, out = oriented.a.dtype, oriented.d.dtype
    plain = _signature(element, (a_major, a_copies), (b_major, b_copies), vector, whole)
    # C and D of another type than A and B.
    output = () if out == element else (("d", out.name),)
    return (*plain, *output, *epilogue_signature(oriented.epilogue))


def _signature(element: DType, a: tuple[str, int], b: tuple[str, int], vector: int, whole: bool) -> Signature:
    return (("element", element.name), *copies_signature(a, b, vector), *tiles_signature(whole))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return all layouts with whole tiles, with tiles that do not divide, and with rows that are not aligned."""
    del arch
    widths = ((16, VECTOR, True), (16, VECTOR, False), (4, 1, False))
    return tuple(
        _signature(FLOAT32, (a, size), (b, size), vector, whole)
        for (size, vector, whole), a, b in itertools.product(widths, "km", "nk")
    )


def launch(problem: GemmProblem, config: SimtConfig) -> Launch:
    """Return the launch recipe: the CTAs of a cluster for each tile of C and matrix of the batch."""
    types = dict(signature(problem, config))
    problem, first, second = row_result(problem)
    epilogue = problem.epilogue
    if epilogue is not None and epilogue.expression.names_c:
        # The kernel reads C only where beta is not 0.
        problem = dataclasses.replace(problem, beta=1)
    k_major = types["a_major"] == "k", types["b_major"] == "k"
    aligned = (
        k_major[0] and int(types["a_copies"]) == VECTOR_BYTES,
        k_major[1] and int(types["b_copies"]) == VECTOR_BYTES,
    )
    lda, ldb = operand_copies(problem.a).stride, operand_copies(problem.b).stride
    return Launch(
        grid=tile_grid(problem, config.tile_m, config.tile_n, config.cluster_k),
        block=(config.threads, 1, 1),
        shared_bytes=config.shared_bytes(*k_major, slots=any(config.by_slots(aligned))),
        cluster=(config.cluster_k, 1, 1),
        params=(
            *batched_params(problem, first, second, lda, ldb),
            *epilogue_params(epilogue, (problem.batch or (1,))[0], problem.accumulator),
        ),
        # The absolute maximum is cleared before the launch, and by no kernel.
        overlaps=problem.bytes_min <= FEW_BYTES and not (epilogue is not None and epilogue.absmax),
        carve_out=config.carve_out,
    )


#: Multiply-adds below which preparing operands takes longer than it saves.
_FEW = 1 << 28
#: Factor on the predicted time without prepared operands: the timed products with prepared operands that are predicted
#: to be 0.4 % faster to 0.4 % slower were all slower, by 1 to 17 %; 1024 cubed with one K-major operand, 0.8 to 1.7 %
#: faster, is.
_MARGIN = 0.994


def is_small(problem: GemmProblem) -> bool:
    """Return whether it does not pay to prepare the operands of a product: to transpose or to repack them."""
    return problem.m * problem.n * problem.k * (problem.batch or (1,))[0] < _FEW


def predict_with_copies(problem: GemmProblem, copied: Collection[str], gpu: GpuRates) -> tuple[KernelSpec, Any]:
    """Return the kernel and its costs with MN-major copies of some operands; those of the product itself are cached."""
    configs = SPEC.configs_on(gpu)
    own, others = costs_with_copies(problem, copied, configs, gpu)
    SPEC.cache_costs(problem, configs, gpu, own)
    return SPEC, others


def outdoes(problem: GemmProblem, cost: float, gpu: GpuRates) -> bool:
    """Return whether this kernel takes less than a time in microseconds, with operands as they are."""
    return SPEC.least_cost(problem, gpu) * _MARGIN <= cost


SPEC = KernelSpec(
    name="simt_gemm",
    operation="gemm",
    summary="float32 and int32, any of the four layouts, any alignment: FMA units, cp.async, split-K in clusters",
    package=__package__,
    archs=(Arch(8, 0), Arch(9, 0, True), Arch(10, 0, True)),
    configs=(
        SimtConfig(tile_m=64, tile_n=64, tile_k=16, warps_m=2),
        SimtConfig(tile_m=64, tile_n=64, tile_k=16, warps_m=2, cluster_k=2),
        SimtConfig(tile_m=64, tile_n=64, tile_k=16, warps_m=2, cluster_k=3),
        SimtConfig(tile_m=64, tile_n=64, tile_k=16, warps_m=2, cluster_k=4),
        SimtConfig(tile_m=64, tile_n=64, tile_k=16, warps_m=2, cluster_k=8),
        SimtConfig(tile_m=64, tile_k=16, warps_m=2),
        SimtConfig(tile_m=64, tile_k=16, warps_m=2, cluster_k=2),
        SimtConfig(tile_m=64, tile_k=16, warps_m=2, cluster_k=3),
        SimtConfig(tile_m=64, tile_k=16, warps_m=2, cluster_k=4),
        SimtConfig(tile_m=64, tile_k=16, warps_m=2, cluster_k=8),
        SimtConfig(tile_n=64, warps_n=1),
        SimtConfig(tile_n=64, tile_k=16, warps_n=1),
        SimtConfig(tile_n=64, tile_k=16, warps_n=1, cluster_k=2),
        SimtConfig(tile_n=64, tile_k=16, warps_n=1, cluster_k=3),
        SimtConfig(tile_n=64, tile_k=16, warps_n=1, cluster_k=4),
        SimtConfig(tile_n=64, tile_k=16, warps_n=1, cluster_k=6),
        SimtConfig(tile_n=256, warps_m=2, warps_n=4),
        SimtConfig(tile_n=256, tile_k=16, warps_m=2, warps_n=4, stages=3),
        SimtConfig(tile_m=256, tile_k=16, stages=3),
        SimtConfig(tile_k=16, stages=3),
        SimtConfig(tile_m=32, tile_n=32, tile_k=16, warps_m=2, warps_n=1),
        SimtConfig(tile_m=32, tile_n=32, tile_k=16, warps_m=2, warps_n=1, cluster_k=4),
        SimtConfig(tile_m=32, tile_n=32, tile_k=16, warps_m=2, warps_n=1, cluster_k=8),
        SimtConfig(tile_m=32, tile_n=32, tile_k=16, warps_m=2, warps_n=1, cluster_k=16),
        SimtConfig(tile_m=64, tile_n=32, tile_k=16, warps_m=2, warps_n=1, cluster_k=6),
        SimtConfig(tile_n=32, tile_k=16, warps_n=1),
        SimtConfig(tile_n=32, tile_k=16, warps_n=1, cluster_k=8),
        SimtConfig(tile_m=32, tile_k=16, warps_m=1, warps_n=4),
        SimtConfig(tile_m=32, tile_k=16, warps_m=1, warps_n=4, cluster_k=8),
        SimtConfig(tile_m=32, tile_n=32, tile_k=32, warps_m=1, warps_n=1, warps_k=4),
        SimtConfig(tile_m=32, tile_n=32, tile_k=32, warps_m=1, warps_n=1, cluster_k=2, warps_k=4),
        SimtConfig(tile_m=32, tile_n=32, tile_k=32, warps_m=1, warps_n=1, cluster_k=2, warps_k=4, wide_copies=1),
        SimtConfig(tile_m=32, tile_n=32, tile_k=32, warps_m=1, warps_n=1, cluster_k=3, warps_k=4),
        SimtConfig(tile_m=32, tile_n=32, tile_k=32, warps_m=1, warps_n=1, cluster_k=4, warps_k=4),
        SimtConfig(tile_m=32, tile_n=32, tile_k=32, warps_m=1, warps_n=1, cluster_k=6, warps_k=4),
        SimtConfig(tile_m=32, tile_n=32, tile_k=64, warps_m=1, warps_n=1, stages=3, warps_k=4),
        SimtConfig(tile_m=32, tile_n=32, tile_k=64, warps_m=1, warps_n=1, stages=3, cluster_k=8, warps_k=4),
        SimtConfig(tile_m=32, tile_n=64, tile_k=32, warps_m=1, warps_n=1, warps_k=4),
        SimtConfig(tile_m=32, tile_n=64, tile_k=32, warps_m=1, warps_n=1, cluster_k=2, warps_k=4),
        SimtConfig(tile_m=64, tile_n=32, tile_k=32, warps_m=2, warps_n=1, warps_k=2),
        SimtConfig(tile_m=64, tile_n=32, tile_k=32, warps_m=1, warps_n=1, warps_k=4),
        SimtConfig(tile_m=64, tile_n=32, tile_k=32, warps_m=1, warps_n=1, cluster_k=2, warps_k=4),
        SimtConfig(tile_m=64, tile_n=32, tile_k=64, warps_m=1, warps_n=1, warps_k=4),
        SimtConfig(tile_m=64, tile_n=64, tile_k=32, warps_m=2, warps_n=1, stages=3, warps_k=2),
        SimtConfig(tile_m=64, tile_n=64, tile_k=32, warps_m=2, warps_n=1, stages=3, cluster_k=2, warps_k=2),
        SimtConfig(tile_m=64, tile_n=64, tile_k=32, warps_m=2, warps_n=1, stages=3, cluster_k=3, warps_k=2),
        SimtConfig(tile_m=64, tile_n=64, tile_k=32, warps_m=2, warps_n=1, stages=3, cluster_k=4, warps_k=2),
        SimtConfig(tile_m=64, tile_n=64, tile_k=32, warps_m=2, warps_n=1, stages=3, cluster_k=8, warps_k=2),
        SimtConfig(tile_m=64, tile_n=128, tile_k=32, warps_m=2, warps_n=2, stages=3, warps_k=2),
        SimtConfig(tile_m=128, tile_n=64, tile_k=32, warps_m=4, warps_n=1, stages=3, warps_k=2),
        SimtConfig(tile_m=96, tile_n=96, tile_k=32, warps_m=3, warps_n=1, stages=6, warps_k=4),
        SimtConfig(tile_m=96, tile_n=96, tile_k=32, warps_m=3, warps_n=1, stages=6, cluster_k=2, warps_k=4),
        SimtConfig(tile_m=96, tile_n=96, tile_k=64, warps_m=3, warps_n=1, stages=3, cluster_k=2, warps_k=4),
        SimtConfig(tile_m=96, tile_n=192, tile_k=32, warps_m=3, warps_n=2, stages=4, warps_k=2),
        SimtConfig(tile_m=192, tile_n=96, tile_k=32, warps_m=2, warps_n=3, stages=4, warps_k=2),
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    refuses_types=_refuses_types,
    costs=costs,
    cost_in_us=True,
    epilogues=True,
    absmax=True,
)
