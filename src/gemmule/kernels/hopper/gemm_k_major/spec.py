"""Products that wgmma takes along K only: operands that lie otherwise are transposed first, then h09 multiplies."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import FLOAT32, INT8, DType, Precision, opaque_dtype
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import MAP_ALIGNMENT, Launch, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, TransposeProblem, split_batch
from gemmule.core.remembered import remembered
from gemmule.core.spec import Buildable, Config, Following, KernelSpec, Signature
from gemmule.kernels.hopper.gemm.spec import SPEC as PRODUCTION
from gemmule.kernels.hopper.gemm_repacked.spec import PITCH
from gemmule.kernels.hopper.gemm_upcast.spec import SPEC as WIDENED
from gemmule.kernels.transpose.byte_tile_config import ByteTileConfig
from gemmule.kernels.transpose.tiled.spec import SPEC as TRANSPOSE

_HOPPER = PRODUCTION.archs[0]


def takes(dtype: DType, precision: Precision) -> bool:
    """Say whether wgmma multiplies a type, and takes it along K only."""
    if dtype == FLOAT32:
        return precision is Precision.TF32
    return dtype == INT8 or (dtype.is_float8 and precision is Precision.FLOAT8)


@dataclasses.dataclass(frozen=True)
class _Turned:
    """An operand that is transposed.

    Attributes
    ----------
    operand : str
        Its name.
    problem : TransposeProblem
        The transpose, of every matrix of the batch.
    matrix : StridedMatrix
        The operand as it lies afterwards.
    """

    operand: str
    problem: TransposeProblem
    matrix: StridedMatrix

    @property
    def workspace(self) -> str:
        """What recipes call the memory that it is written to."""
        return f"{self.operand} along k"

    @property
    def nbytes(self) -> int:
        """Bytes of that memory."""
        target, matrices = self.problem.target, (self.problem.batch or (1,))[0]
        return target.row_stride * self.problem.rows * matrices * self.problem.itemsize


def _lies_along_k(name: str, matrix: StridedMatrix) -> bool:
    return matrix.is_row_major if name == "a" else matrix.is_col_major


@remembered
def _turned(problem: GemmProblem) -> tuple[_Turned, ...]:
    """Return the operands that do not lie along K."""
    found = []
    for name, matrix in (("a", problem.a), ("b", problem.b)):
        if _lies_along_k(name, matrix):
            continue
        rows, apart = (problem.m, matrix.col_stride) if name == "a" else (problem.n, matrix.row_stride)
        unit = PITCH // matrix.dtype.itemsize
        pitch = -(-problem.k // unit) * unit
        steps, after = matrix.batch_strides, (pitch * rows,) if problem.batch else ()
        source = StridedMatrix(matrix.dtype, rows, problem.k, 1, apart, steps, matrix.alignment)
        target = StridedMatrix(matrix.dtype, rows, problem.k, pitch, 1, after, MAP_ALIGNMENT)
        strides = (pitch, 1) if name == "a" else (1, pitch)
        along = StridedMatrix(matrix.dtype, matrix.rows, matrix.cols, *strides, after, MAP_ALIGNMENT)
        found.append(_Turned(name, TransposeProblem(rows, problem.k, problem.batch, source, target), along))
    return tuple(found)


def following(problem: GemmProblem, config: ByteTileConfig) -> Following:
    """Return the transpose of the second operand, if it needs one too, and the product behind it."""
    turned = _turned(problem)
    found = _product(problem)
    for one in turned[1:]:
        operands = {"a": one.operand, "d": one.workspace}
        found = Following(TRANSPOSE, config, one.problem, operands, found.workspaces, behind=found)
    return found


# Selection, a plan and the launch ask for the same.
@functools.lru_cache(maxsize=256)
def _product(problem: GemmProblem) -> Following:
    turned = _turned(problem)
    along = problem.operands() | {one.operand: one.matrix for one in turned}
    then = problem.with_operands(problem.batch, along)
    operands = {name: name for name in along} | {one.operand: one.workspace for one in turned}
    workspaces = {one.workspace: one.nbytes for one in turned}
    configs = _ordered(then)
    chosen = next((config for config in configs if PRODUCTION.why_not(then, _HOPPER, config) is None), None)
    if chosen is None:
        reason = PRODUCTION.why_not(then, _HOPPER, PRODUCTION.default)
        raise ArgumentError(f"{PRODUCTION.name} does not take what lies along K: {reason}")
    return Following(PRODUCTION, chosen, then, operands, workspaces)


def _ordered(problem: GemmProblem) -> list[Config]:
    """Return the configs of the product, the cheapest first."""
    assert PRODUCTION.costs is not None
    if PRODUCTION.refuses is not None and PRODUCTION.refuses(problem, _HOPPER):
        return []
    costs = PRODUCTION.costs(problem, PRODUCTION.configs, _multiprocessors(PRODUCTION.default))
    return [PRODUCTION.configs[number] for number in sorted(range(len(costs)), key=costs.__getitem__)]


def _multiprocessors(config: Config) -> int:
    return config.as_dict()["ctas"]


def why_not(problem: GemmProblem, arch: Arch, config: ByteTileConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    if reason := refuses(inner, arch):
        return reason
    reasons = (TRANSPOSE.why_not(one.problem, arch, config) for one in _turned(inner))
    return next((reason for reason in reasons if reason), None)


@remembered
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem of at most one batch dimension, or None where that depends on the config."""
    if arch.capability != (9, 0):
        return f"what lies along K is multiplied by wgmma, an instruction of sm_90a; this GPU is {arch}"
    for name, matrix in (("a", problem.a), ("b", problem.b)):
        if not takes(matrix.dtype, problem.precision):
            return (
                f"{name.upper()} is {matrix.dtype} and precision is {problem.precision.value!r}; this kernel is for "
                "int8, float32 with 'tf32' and 8-bit floats with 'float8'"
            )
        if not (matrix.is_row_major or matrix.is_col_major):
            return (
                f"{name.upper()} has strides ({matrix.row_stride}, {matrix.col_stride}); this kernel takes row-major "
                "and column-major matrices"
            )
    if not all((problem.m, problem.n, problem.k, problem.alpha, *problem.batch)):
        return "there is nothing to multiply: an extent, the batch or alpha is 0"
    if not _turned(problem):
        return "A and B lie along K"
    for one in _turned(problem):
        if problem.batch and not one.problem.source.batch_strides[0]:
            return f"{one.operand.upper()} is one matrix for all of the batch; it would be transposed for each"
    try:
        _product(problem)
    except ArgumentError as error:
        return str(error)
    return None


def signature(problem: GemmProblem, config: ByteTileConfig) -> Signature:
    """Specialise as the first transpose does; what needs none, and is refused, as any."""
    turned = _turned(problem)
    return TRANSPOSE.signature(turned[0].problem, config) if turned else signatures(_HOPPER)[0]


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return those of elements of one and four bytes."""
    return tuple(one for one in TRANSPOSE.signatures(arch) if dict(one)["element"] in _ELEMENTS)


def launch(problem: GemmProblem, config: ByteTileConfig) -> Launch:
    """Return the launch recipe of the first transpose, from the operand to its workspace."""
    first = _turned(problem)[0]
    recipe = TRANSPOSE.launch(first.problem, config)
    names = {"a": first.operand, "d": first.workspace}
    params = tuple(
        dataclasses.replace(one, operand=names[one.operand]) if isinstance(one, TensorParam) else one
        for one in recipe.params
    )
    return dataclasses.replace(recipe, params=params)


#: Microseconds on an H200 between one launch and the next.
_LAUNCH = 1.3


def costs(problem: GemmProblem, configs: Sequence[ByteTileConfig], multiprocessors: int) -> list[float]:
    """Return roughly the times in microseconds of the transposes and of the product, which is that of all configs."""
    turned, found = _turned(problem), _product(problem)
    assert found.spec.cost is not None
    assert TRANSPOSE.cost is not None
    product = found.spec.cost(found.problem, found.config, multiprocessors) + _LAUNCH * len(turned)
    cost = TRANSPOSE.cost
    return [product + 1e6 * sum(cost(one.problem, config, multiprocessors) for one in turned) for config in configs]


def cost(problem: GemmProblem, config: ByteTileConfig, multiprocessors: int) -> float:
    """Return roughly the time in microseconds."""
    return costs(problem, (config,), multiprocessors)[0]


#: What h01_mma_sync takes on an H200: microseconds of a launch; of 128 bytes of K in tiles of so many rows and columns,
#: as long as multiprocessors have one each; and how much of that where they have more, in float32 and in int8.
_READ_LAUNCH, _READ_TILES, _READ_MORE, _MULTIPROCESSORS = 2.3, ((128, 0.8), (64, 0.33)), {4: 1.07, 1: 0.81}, 132


def outdone(problem: GemmProblem, cost: float) -> str | None:
    """Return the kernel that reads operands as they lie, or widens 8-bit floats, where transposing does not pay."""
    if problem.a.dtype.is_float8:
        return WIDENED.name if _widened_us(problem) < cost else None
    return "h01_mma_sync" if _reading_us(problem) < cost else None


def _widened_us(problem: GemmProblem) -> float:
    if WIDENED.refuses is not None and WIDENED.refuses(problem, _HOPPER):
        return math.inf
    assert WIDENED.costs is not None
    return min(WIDENED.costs(problem, WIDENED.configs, _MULTIPROCESSORS))


def _reading_us(problem: GemmProblem) -> float:
    """Return roughly the time in microseconds of h01_mma_sync: records 20261122T190626 and 20261122T190657."""
    item, matrices = problem.a.dtype.itemsize, (problem.batch or (1,))[0]
    slices = -(-problem.k * item // PITCH)

    def tiled(side: int, slice_us: float) -> float:
        tiles = -(-problem.m // side) * -(-problem.n // side) * matrices / _MULTIPROCESSORS
        return slices * slice_us * max(1.0, tiles * _READ_MORE[item])

    return _READ_LAUNCH + min(tiled(*one) for one in _READ_TILES)


def build(config: ByteTileConfig, signature: Signature) -> Buildable:
    """Return the transpose and its stand-in arguments."""
    return TRANSPOSE.build(config, signature)


_ELEMENTS = {opaque_dtype(size).name for size in (1, 4)}
SPEC = KernelSpec(
    name="hopper_gemm_k_major",
    operation="gemm",
    summary="int8, and TF32 and float8 where asked for, in any layout: what does not lie along K is transposed first",
    package=TRANSPOSE.package,
    archs=(Arch(9, 0, True),),
    configs=TRANSPOSE.configs,
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    build=build,
    epilogues=True,
    absmax=True,
    cost=cost,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
    following=following,
    outdone=outdone,
)
