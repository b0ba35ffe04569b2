"""Quantisation to 8-bit floats: limits and launch recipes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmule.core.arch import Arch
from gemmule.core.block_scales import BLOCK
from gemmule.core.dtype import BFLOAT16, FLOAT16, FLOAT32
from gemmule.core.gpu_rates import H200_RATES, GpuRates
from gemmule.core.launch import Launch, Param, TensorParam, Workspace
from gemmule.core.layout import StridedMatrix
from gemmule.core.quantize_problem import QuantizeProblem
from gemmule.core.spec import KernelSpec, NextKernel, Signature

from .config import LANES, ROWS, VECTOR, QuantizeConfig

DTYPES = (BFLOAT16, FLOAT16, FLOAT32)
#: The oldest architecture that converts to 8-bit floats.
FLOAT8_ARCH = Arch(8, 9)
_ABSMAX, _ABSMAX_BYTES = "absmax", 4
_MOST, _WARP = 1 << 30, 32


def refuses(problem: QuantizeProblem, arch: Arch) -> str | None:
    """Say why no config takes `problem`, or None where all do."""
    del arch
    if problem.x.dtype not in DTYPES:
        return f"x is {problem.x.dtype}; quantisation takes {', '.join(map(str, DTYPES))}"
    if not problem.q.is_row_major:
        return "the result is not row-major"
    tiles = -(-problem.x.rows // ROWS) * -(-problem.x.cols // BLOCK)
    if max(problem.x.rows, problem.x.cols, tiles) > _MOST:
        return f"x has {problem.x.rows} rows and {problem.x.cols} columns, more than 32-bit indices take"
    return None


def why_not(problem: QuantizeProblem, arch: Arch, config: QuantizeConfig) -> str | None:
    """Say why the kernel cannot take `problem` with `config`, or None where it can."""
    del arch
    if problem.by != "row" and config.threads != ROWS * LANES:
        return f"config {config}: tiles of {ROWS} rows have {ROWS * LANES} threads"
    return None


def _in_vectors(problem: QuantizeProblem) -> bool:
    """Return whether rows of X and Q are whole vectors of 16 and 8 bytes, aligned as such."""

    def aligned(matrix: StridedMatrix, nbytes: int) -> bool:
        row_bytes = matrix.row_stride * matrix.dtype.itemsize if matrix.rows > 1 else 0
        return matrix.is_row_major and matrix.alignment % nbytes == 0 and row_bytes % nbytes == 0

    return problem.x.cols % VECTOR == 0 and aligned(problem.x, 16) and aligned(problem.q, VECTOR)


def signature(problem: QuantizeProblem, config: QuantizeConfig) -> Signature:
    """Specialise for the parts, the types, and whether rows are whole vectors."""
    del config
    return _signature(problem, problem.by)


def _signature(problem: QuantizeProblem, by: str) -> Signature:
    return (
        ("by", by), ("x", problem.x.dtype.name), ("q", problem.q.dtype.name), ("scales", problem.scales.dtype.name),
        ("largest", repr(problem.q.dtype.max_value)), ("vectors", "yes" if _in_vectors(problem) else "no"),
    )  # fmt: skip


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return one of each kind of parts."""
    del arch
    kinds = (("block", "bfloat16", "float32", "yes"), ("row", "bfloat16", "float32", "yes"),
             ("tensor", "float32", "uint8", "no"))  # fmt: skip
    return tuple(
        (("by", by), ("x", x), ("q", "float8_e4m3fn"), ("scales", scales), ("largest", "448.0"), ("vectors", vectors))
        for by, x, scales, vectors in kinds
    )


def _param(name: str, matrix: StridedMatrix, unit: bool) -> TensorParam:
    strides = (matrix.row_stride,) if unit else (matrix.row_stride, matrix.col_stride)
    return TensorParam(name, (matrix.rows, matrix.cols), strides)


def _launch(problem: QuantizeProblem, config: QuantizeConfig, by: str) -> Launch:
    tiles = -(-problem.x.rows // ROWS) * -(-problem.x.cols // (BLOCK * config.vectors))
    params: list[Param] = [_param("x", problem.x, _in_vectors(problem))]
    if by != _ABSMAX:
        params += [_param("q", problem.q, True), _param("scales", problem.scales, False)]
    if by in (_ABSMAX, "tensor"):
        params.append(TensorParam(_ABSMAX, (), ()))
    # A matrix without elements has a scale.
    least = 1 if by in (_ABSMAX, "tensor") else 0
    return Launch(
        grid=(problem.x.rows if by == "row" else max(tiles, least), 1, 1),
        block=(config.threads, 1, 1),
        shared_bytes=config.threads // _WARP * _ABSMAX_BYTES if by in ("row", _ABSMAX) else 0,
        params=tuple(params),
        # A memset zeroes the maximum before its launch.
        overlaps=by != _ABSMAX,
        workspaces=(Workspace(_ABSMAX, _ABSMAX_BYTES, zeroed=True),) if by == _ABSMAX else (),
    )


def launch(problem: QuantizeProblem, config: QuantizeConfig) -> Launch:
    """Return the launch recipe: a CTA for each row, or for each tile."""
    return _launch(problem, config, problem.by)


#: Microseconds of a launch, which are assumed, and bytes to and from memory in one, on an H200 (record
#: 20261129T013230); share added for each later config, to break ties.
_LAUNCH_US, _BYTES, _NEXT = 1.9, 4.4e6, 1e-4


CONFIGS = (
    QuantizeConfig(), *(QuantizeConfig(threads=threads) for threads in (64, 128, 512, 1024)), QuantizeConfig(vectors=2)
)  # fmt: skip


def costs(problem: QuantizeProblem, configs: Sequence[QuantizeConfig], gpu: GpuRates) -> list[float]:
    """Return roughly the time in microseconds, of all configs that of memory, and a little more of those behind others.

    Rows take the fewest threads that hold one; else as many CTAs as there are SMs come first.
    """

    def order(number: int) -> int:
        config = configs[number]
        if problem.by == "row":
            held = config.threads * config.vectors * VECTOR
            return held if held >= problem.x.cols else _MOST - held
        tiles = -(-problem.x.rows // ROWS) * -(-problem.x.cols // (BLOCK * config.vectors))
        return 1 if tiles < gpu.multiprocessors else -config.vectors

    launches = 2 if problem.by == "tensor" else 1
    us = launches * _LAUNCH_US * gpu.launch + gpu.moved_us(problem.bytes_min, _BYTES)
    found = [us] * len(configs)
    for place, number in enumerate(sorted(range(len(configs)), key=order)):
        found[number] *= 1 + _NEXT * place
    return found


#: Quantisation whose scale is known, or found while a part is in registers.
SPEC = KernelSpec(
    name="quantize",
    operation="quantize",
    summary="float32, float16 and bfloat16 to 8-bit floats with scales",
    package=__package__,
    archs=(FLOAT8_ARCH,),
    configs=CONFIGS,
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
)


def _then(problem: QuantizeProblem, config: QuantizeConfig, gpu: GpuRates = H200_RATES) -> NextKernel:
    del gpu
    names = {name: name for name in (*problem.operands(), _ABSMAX)}
    # As for launches, of a problem only its batch and its operands are read.
    quantized: Any = problem
    return NextKernel(SPEC, config, quantized, names, {_ABSMAX: _ABSMAX_BYTES})


# Functions with names: the compiler's processes get a spec by pickling.
def _tensor_signatures(arch: Arch) -> tuple[Signature, ...]:
    return (tuple(dict(signatures(arch)[0], by=_ABSMAX).items()),)


def _tensor_signature(problem: QuantizeProblem, config: QuantizeConfig) -> Signature:
    del config
    return _signature(problem, _ABSMAX)


def _tensor_launch(problem: QuantizeProblem, config: QuantizeConfig) -> Launch:
    return _launch(problem, config, _ABSMAX)


#: The largest magnitude of everything, then quantisation with its scale.
BY_TENSOR = KernelSpec(
    name="quantize_tensor",
    operation="quantize",
    summary="the largest magnitude of a matrix, by which it is quantised",
    package=__package__,
    archs=(FLOAT8_ARCH,),
    configs=CONFIGS,
    signatures=_tensor_signatures,
    why_not=why_not,
    signature=_tensor_signature,
    launch=_tensor_launch,
    next_kernel=_then,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
)
