"""simt_grouped, float32 products of groups whose sizes are in device memory: its limits, launch recipe and cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32
from gemmule.core.epilogue import Epilogue
from gemmule.core.epilogue_inputs import epilogue_params, epilogue_signature, why_not_inputs
from gemmule.core.gpu_rates import GpuRates
from gemmule.core.grouped_problem import AXES, GroupedProblem
from gemmule.core.last_call_cache import cache_last_call
from gemmule.core.launch import Launch, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.row_major import why_not_extents, why_not_grid, why_not_strides
from gemmule.core.spec import KernelSpec, Signature
from gemmule.kernels.parts.grouped_tiles import (
    MAX_GROUPS,
    expected_bytes,
    expected_tiles,
    most_tiles,
    overlapping_tiles,
)
from gemmule.kernels.simt.config import SimtConfig
from gemmule.kernels.simt.cost import costs_of_tiles
from gemmule.kernels.simt.gemm.spec import SPEC as GEMM

#: Types of the result.
OUTPUTS = (FLOAT32, FLOAT16, BFLOAT16)
#: Shared memory of the running sum of the groups' tiles, up to where the stages begin.
_TABLE_BYTES = 3 << 10
#: Rows and columns of the smallest tile; most tiles, of groups that overlap too, that 32-bit numbers count.
_LEAST_TILE, _MOST = 32, 1 << 30
#: Rows and columns of operands.
_DIMENSIONS = {"a": ("m", "k"), "b": ("k", "n"), "d": ("m", "n")}


def why_not(problem: GroupedProblem, arch: Arch, config: SimtConfig) -> str | None:
    """Say why a config does not take `problem`, or None where it does."""
    del arch
    return why_not_grid(_grid(problem, config))


@cache_last_call
def refuses(problem: GroupedProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where that depends on the config."""
    del arch
    a, b, d = problem.a.dtype, problem.b.dtype, problem.d.dtype
    if a != FLOAT32 or b != FLOAT32:
        return f"A is {a} and B is {b}; this kernel takes both of {FLOAT32}"
    if problem.axis == "row":
        return f"the rows of {a} have numbers of matrices; sort them by these, and give the groups' ends as offsets"
    if d not in OUTPUTS:
        return f"the output is {d}; grouped products of {a} give {', '.join(map(str, OUTPUTS))}"
    if not all((problem.m, problem.n, problem.k, problem.groups)):
        return "there is nothing to multiply: an extent or the number of groups is 0"
    if problem.axis != "k" and problem.groups > MAX_GROUPS:
        return f"there are {problem.groups} groups, of at most {MAX_GROUPS}; multiply them in several calls"
    if not problem.d.is_row_major:
        return "D is not row-major; pass an output whose last dimension is contiguous"
    if problem.epilogue is not None and (reason := _why_not_epilogue(problem, problem.epilogue)):
        return reason
    if reason := why_not_strides(batched(problem)):
        return f"{reason}; pass a copy"
    if overlapping_tiles(problem, _LEAST_TILE) >= _MOST:
        return f"there may be {_MOST} tiles; multiply fewer groups in a call"
    return why_not_extents(batched(problem))


def _why_not_epilogue(problem: GroupedProblem, epilogue: Epilogue) -> str | None:
    if problem.axis != "m":
        return f"the offsets divide {problem.axis.upper()}; a bias or an epilogue is for groups of rows"
    if epilogue.second is not None:
        return "the epilogue is gated (a function of two products), of grouped products of 16 bits only; apply it after"
    if any(matrix.rows > 1 and matrix.row_stride for matrix in epilogue.matrices):
        return "an input of the epilogue has rows; grouped products take one row for each group"
    return why_not_inputs(batched(problem))


@cache_last_call
def batched(problem: GroupedProblem) -> GemmProblem:
    """Return the product of a batch with a matrix of every operand for each group: divided ones are repeated.

    They are aligned to an element where groups begin between those that are contiguous.
    """

    def repeated(name: str, matrix: StridedMatrix) -> StridedMatrix:
        rows, cols = _DIMENSIONS[name]
        within = (matrix.is_col_major and rows == problem.axis) or (matrix.is_row_major and cols == problem.axis)
        strides = matrix.batch_strides if AXES[problem.axis] == name else (0,)
        alignment = matrix.dtype.itemsize if within else matrix.alignment
        return dataclasses.replace(matrix, batch_strides=strides, alignment=alignment)

    a, b, d = (repeated(name, getattr(problem, name)) for name in _DIMENSIONS)
    return GemmProblem(
        problem.m, problem.n, problem.k, (problem.groups,), a, b, None, d, precision=problem.precision,
        epilogue=problem.epilogue,
    )  # fmt: skip


def _grid(problem: GroupedProblem, config: SimtConfig) -> tuple[int, int, int]:
    return most_tiles(problem, config.tile_m, config.tile_n), 1, 1


def signature(problem: GroupedProblem, config: SimtConfig) -> Signature:
    """Specialise as `simt_gemm` does, with tiles that do not divide, and for the divided dimension."""
    plain = GEMM.signature(dataclasses.replace(batched(problem), epilogue=None), config)
    return (*_grouped(plain, problem.axis), *epilogue_signature(problem.epilogue))


def _grouped(plain: Signature, axis: str) -> Signature:
    """Return the signature of groups along an axis by that of a product."""
    ragged = ((name, "ragged" if name == "tiles" else value) for name, value in plain)
    return (*ragged, ("axis", axis))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return the signatures of a mixture of experts, and one of groups of columns."""
    wanted = (("m", ("k", "k", "4")), ("m", ("k", "n", "4")), ("k", ("m", "n", "4")), ("n", ("k", "k", "1")))
    found = ((dict(one), one) for one in GEMM.signatures(arch) if dict(one)["tiles"] == "ragged")
    by_layout = {(types["a_major"], types["b_major"], types["d_vector"]): one for types, one in found}
    return tuple(_grouped(by_layout[layout], axis) for axis, layout in wanted)


def launch(problem: GroupedProblem, config: SimtConfig) -> Launch:
    """Return the launch recipe: a CTA for each of the most tiles that there may be."""
    plain = dataclasses.replace(batched(problem), epilogue=None)
    recipe = GEMM.launch(plain, config)
    return dataclasses.replace(
        recipe,
        grid=_grid(problem, config),
        shared_bytes=recipe.shared_bytes + (0 if problem.axis == "k" else _TABLE_BYTES),
        params=(
            *recipe.params,
            TensorParam("offsets", (problem.groups,), ()),
            *epilogue_params(problem.epilogue, problem.groups, problem.accumulator),
        ),
    )


def costs(problem: GroupedProblem, configs: Sequence[SimtConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the times in microseconds: those of `simt_gemm` for as many tiles."""
    tiles = [expected_tiles(problem, one.tile_m, one.tile_n) for one in configs]
    plain = batched(problem)
    if problem.axis == "k":
        plain = dataclasses.replace(plain, k=max(problem.k // problem.groups, 1))
    return costs_of_tiles(plain, tiles, sum(expected_bytes(problem)), configs, gpu)


SPEC = KernelSpec(
    name="simt_grouped",
    operation="grouped",
    summary="groups along M, N or K of float32, row- or column-major, any alignment: FMA units",
    package=__package__,
    archs=GEMM.archs,
    # Tiles of a multiple of three warps were not timed in groups.
    configs=tuple(
        one for one in GEMM.configs if isinstance(one, SimtConfig) and one.cluster_k == 1 and one.threads % 3
    ),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
)
