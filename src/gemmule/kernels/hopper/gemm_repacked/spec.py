"""Products of operands that the copy engine cannot take: both are packed, then another kernel multiplies."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from gemmule.core.arch import Arch
from gemmule.core.dtype import opaque_dtype
from gemmule.core.errors import ArgumentError
from gemmule.core.launch import MAP_ALIGNMENT, Launch, Param, TensorParam
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem, split_batch
from gemmule.core.remembered import remembered
from gemmule.core.spec import Config, Following, KernelSpec, Signature
from gemmule.kernels.hopper.gemm.spec import SPEC as PRODUCTION
from gemmule.kernels.hopper.gemm_unaligned.spec import SPEC as RAGGED_RESULT
from gemmule.kernels.hopper.repack_config import CopiedLines, VectorsConfig, copied_lines
from gemmule.kernels.hopper.syrk.spec import SPEC as SYMMETRIC

#: Kernels that may multiply what was packed, best first.
FOLLOWERS = (SYMMETRIC, PRODUCTION, RAGGED_RESULT)
#: Bytes that packed pitches are a multiple of. The copy engine takes 16, but its boxes are rows of 128 bytes, each of
#: which is one line of the L2 cache where it begins at a multiple of 128, elsewhere two.
PITCH = 128
_MAX_VECTORS = 2**31 - 1
_ITEMSIZES = (1, 2, 4)


class PackedConfig(VectorsConfig):
    """How the operands are packed, see `VectorsConfig`."""


def _packed_pitch(found: CopiedLines, itemsize: int) -> int:
    """Return the elements from one packed line to the next: a multiple of `PITCH` bytes."""
    return found.padded(PITCH // itemsize)


def _ready(found: CopiedLines, matrix: StridedMatrix) -> bool:
    """Whether the copy engine can take a matrix as it is."""
    if matrix.alignment % MAP_ALIGNMENT:
        return False
    steps = ((found.lines, found.pitch), (found.matrices, found.step))
    item = matrix.dtype.itemsize
    return all(extent <= 1 or (step > 0 and step * item % MAP_ALIGNMENT == 0) for extent, step in steps)


@remembered
def _to_pack(problem: GemmProblem) -> tuple[CopiedLines, ...]:
    """Return the operands that must be packed: one, where the other is its transpose."""
    operands = (("a", problem.a), ("b", problem.b))[: 1 if problem.own_transpose else 2]
    every = [copied_lines(name, x, problem.batch) for name, x in operands]
    return tuple(found for found, (_, x) in zip(every, operands, strict=True) if not _ready(found, x))


def following(problem: GemmProblem, config: PackedConfig) -> Following:
    """Return the product of the packed matrices, in the kernel and config that suit it."""
    del config
    return _following(problem)


# Selection, a plan and the launch ask for the same.
@functools.lru_cache(maxsize=256)
def _following(problem: GemmProblem) -> Following:
    packed, operands, workspaces = dict(problem.operands()), {name: name for name in problem.operands()}, {}
    for found in _to_pack(problem):
        matrix = packed[found.operand]
        pitch = _packed_pitch(found, matrix.dtype.itemsize)
        strides = (pitch, 1) if found.rows else (1, pitch)
        step = pitch * found.lines
        packed[found.operand] = StridedMatrix(
            matrix.dtype, matrix.rows, matrix.cols, *strides, (step,) if problem.batch else (), MAP_ALIGNMENT
        )
        operands[found.operand] = f"packed {found.operand}"
        workspaces[f"packed {found.operand}"] = step * found.matrices * matrix.dtype.itemsize
    if problem.own_transpose:
        packed["b"], operands["b"] = packed["a"].transposed(), operands["a"]
    then = problem.with_operands(problem.batch, packed)
    for spec in FOLLOWERS:
        if spec.costs is None or (spec.refuses is not None and spec.refuses(then, spec.archs[0])):
            continue
        costs = spec.costs(then, spec.configs, _multiprocessors(spec.default))
        ordered = (spec.configs[number] for number in sorted(range(len(costs)), key=costs.__getitem__))
        chosen = next((config for config in ordered if spec.why_not(then, spec.archs[0], config) is None), None)
        if chosen is not None and spec.outdone is not None:
            # Of another follower, which is asked next.
            chosen = None if spec.outdone(then, min(costs)) else chosen
        if chosen is not None:
            return Following(spec, chosen, then, operands, workspaces)
    reason = FOLLOWERS[-1].why_not(then, FOLLOWERS[-1].archs[0], FOLLOWERS[-1].default)
    raise ArgumentError(f"no kernel multiplies what is packed: {reason}")


def _multiprocessors(config: Config) -> int:
    return config.as_dict()["ctas"]


def why_not(problem: GemmProblem, arch: Arch, config: PackedConfig) -> str | None:
    """Say why the kernel cannot take `problem`, or None where it can."""
    inner, _, _ = split_batch(problem, SPEC.batch_dims)
    if reason := refuses(inner, arch):
        return reason
    ctas = sum(_ctas(found, inner.a.dtype.itemsize, config) for found in _to_pack(inner))
    if ctas * config.threads * config.vectors > _MAX_VECTORS:
        return f"there are more than {_MAX_VECTORS} vectors to pack, the most that the kernel's 32-bit indices take"
    return None


@remembered
def refuses(problem: GemmProblem, arch: Arch) -> str | None:
    """Say why no config takes a problem of at most one batch dimension, or None where that depends on the config."""
    if arch.capability != (9, 0):
        return f"what is packed is multiplied by wgmma, an instruction of sm_90a; this GPU is {arch}"
    for name, matrix in (("a", problem.a), ("b", problem.b)):
        if matrix.dtype.itemsize not in _ITEMSIZES or matrix.alignment % matrix.dtype.itemsize:
            return f"{name.upper()} is {matrix.dtype}, at a multiple of {matrix.alignment} bytes"
        if not (matrix.is_row_major or matrix.is_col_major):
            return (
                f"{name.upper()} has strides ({matrix.row_stride}, {matrix.col_stride}); this kernel takes row-major "
                "and column-major matrices"
            )
        found = copied_lines(name, matrix, problem.batch)
        if reason := found.why_not("packed"):
            return reason
    if not _to_pack(problem):
        return "A and B need no packing"
    try:
        _following(problem)
    except ArgumentError as error:
        return str(error)
    return None


def _ctas(found: CopiedLines, itemsize: int, config: PackedConfig) -> int:
    vectors = -(-found.length * itemsize // MAP_ALIGNMENT) * found.lines
    return -(-vectors // (config.threads * config.vectors))


def signature(problem: GemmProblem, config: PackedConfig) -> Signature:
    """Specialise for the element size and the number of operands that are packed."""
    del config
    return _signature(problem.a.dtype.itemsize, len(_to_pack(problem)))


def _signature(itemsize: int, count: int) -> Signature:
    return (("element", opaque_dtype(itemsize).name), ("operands", str(count)))


def signatures(arch: Arch) -> tuple[Signature, ...]:
    """Return every combination."""
    del arch
    return tuple(_signature(size, count) for size in (2, 1, 4) for count in (2, 1))


def launch(problem: GemmProblem, config: PackedConfig) -> Launch:
    """Return the launch recipe of the packing: one CTA for so many vectors of an operand, operands side by side."""
    to_pack = _to_pack(problem)
    item = problem.a.dtype.itemsize
    params: list[Param] = []
    for found in to_pack:
        extents = (found.length, found.lines, found.matrices)
        params.append(TensorParam(found.operand, extents, (found.pitch, found.step)))
        pitch = _packed_pitch(found, item)
        params.append(TensorParam(f"packed {found.operand}", extents, (pitch, pitch * found.lines)))
    ctas = sum(_ctas(found, item, config) for found in to_pack)
    matrices = to_pack[0].matrices if to_pack else 1
    return Launch(grid=(ctas, 1, matrices), block=(config.threads, 1, 1), params=tuple(params), overlaps=True)


#: Microseconds on an H200: the second launch; each further vector of a CTA of 256 threads, as there are fewer CTAs;
#: bytes that packing reads and writes in one, by CTAs of 128 threads and of more; and bytes of a result, up to so many,
#: as packing waits for that of the product before it to be written.
_LAUNCH, _VECTOR, _BYTES, _FEW_THREADS, _MANY_THREADS = 1.3, 0.3, (3.67e6, 3.6e6), 128, 256
_SETTLED, _UNSETTLED = 2.91e6, 8e6


def _packing_us(nbytes: int, result: int, config: PackedConfig) -> float:
    """Return roughly the time of packing so many bytes, beside a result of so many."""
    rate = _BYTES[0 if config.threads <= _FEW_THREADS else 1]
    vectors = _VECTOR * (config.vectors - 1) * config.threads / _MANY_THREADS
    return _LAUNCH + vectors + 2 * nbytes / rate + min(result, _UNSETTLED) / _SETTLED


def cost(problem: GemmProblem, config: PackedConfig, multiprocessors: int) -> float:
    """Return roughly the time in microseconds of packing and of the product."""
    return costs(problem, (config,), multiprocessors)[0]


def costs(problem: GemmProblem, configs: Sequence[PackedConfig], multiprocessors: int) -> list[float]:
    """Return the times of many configs: the product is the same."""
    if not configs:
        return []
    found = following(problem, configs[0])
    assert found.spec.cost is not None
    product = found.spec.cost(found.problem, found.config, multiprocessors)
    packed, result = sum(found.workspaces.values()), problem.d.distinct_bytes(problem.batch)
    return [product + _packing_us(packed, result, config) for config in configs]


#: What h01_mma_sync takes on an H200, which reads rows as they lie: microseconds of a launch; of writing 64 x 64 of 16
#: bits, and where rows of the result begin anywhere. What C or an epilogue add is not measured: it is taken for what
#: h09 was seen to take.
_READ_LAUNCH, _READ_WRITE, _READ_ODD, _READ_TILE, _READ_FINISH = 2.31, 0.14, 1.41, 64, 5.0 / 8
#: Of 128 bytes of K for 64 rows or columns, by the bytes that an operand's lines let a copy have, and how much of that
#: where a tile has hardly any of its lines; what tiles take that wait for their turn, as so many run at once; bytes to
#: and from memory in a microsecond.
_READ, _READ_EMPTY, _READ_LATER, _READ_AT_ONCE, _READ_BYTES = {8: 0.169, 4: 0.249, 1: 0.601}, 0.57, 0.623, 132, 2.72e6


def outdone(problem: GemmProblem, cost: float) -> str | None:
    """Return the kernel that reads rows as they lie, where a short K or a small result does not pay for packing."""
    return "h01_mma_sync" if _reading_us(problem) < cost else None


def _reading_us(problem: GemmProblem) -> float:
    """Return roughly the time in microseconds of h01_mma_sync."""
    item = problem.a.dtype.itemsize
    tiles = -(-problem.m // _READ_TILE) * -(-problem.n // _READ_TILE) * (problem.batch or (1,))[0]
    read = _read_us(problem.a, problem.m) + _read_us(problem.b, problem.n)
    wide = max(problem.d.dtype.itemsize / 2, 1.0)
    written = _READ_WRITE * wide if _whole(problem.d) % MAP_ALIGNMENT == 0 else _READ_ODD
    finished = _READ_FINISH * ((problem.c is not None) + (problem.epilogue is not None))
    each = problem.k * item / PITCH * read + written + finished
    later = _READ_LATER * max(tiles / _READ_AT_ONCE - 1, 0.0)
    return _READ_LAUNCH + each * (1 + later) + problem.bytes_min / _READ_BYTES


def _read_us(matrix: StridedMatrix, lines: int) -> float:
    """Return what an operand of so many rows or columns takes of 128 bytes of K."""
    whole, item = _whole(matrix), matrix.dtype.itemsize
    found = _READ[8 if whole % 8 == 0 else 4 if whole % 4 == 0 and item < 4 else 1]
    return found * (_READ_EMPTY + (1 - _READ_EMPTY) * min(lines / _READ_TILE, 1.0))


def _whole(matrix: StridedMatrix) -> int:
    """Return bytes that all lines begin at multiples of."""
    pitch = matrix.row_stride if matrix.col_stride == 1 else matrix.col_stride
    return math.gcd(pitch * matrix.dtype.itemsize, matrix.alignment)


SPEC = KernelSpec(
    name="hopper_gemm_repacked",
    operation="gemm",
    summary="as h09 and h10, whatever the pitches of A and B: they are copied to pitches of whole 16 bytes first",
    package=__package__,
    archs=(Arch(9, 0, True),),
    configs=(PackedConfig(), PackedConfig(threads=256), PackedConfig(threads=256, vectors=1), PackedConfig(vectors=4)),
    signatures=signatures,
    why_not=why_not,
    signature=signature,
    launch=launch,
    epilogues=True,
    absmax=True,
    cost=cost,
    refuses=refuses,
    costs=costs,
    cost_in_us=True,
    following=following,
    outdone=outdone,
)
