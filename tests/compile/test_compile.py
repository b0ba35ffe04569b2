"""Every kernel compiles for every architecture that it claims, without a GPU, and its recipe fits what was compiled."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.compiler.compile import compile_kernel
from gemmule.compiler.pool import Job, compile_all
from gemmule.core.arch import Arch
from gemmule.core.block_triangle import STEP, BlockTriangle
from gemmule.core.chips import CHIPS
from gemmule.core.dtype import FEWEST_INT8_PRODUCTS, Kind, Precision, dtype_named, opaque_dtype
from gemmule.core.errors import CompileError
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem, TransposeProblem, mark_own_transpose
from gemmule.dispatch.registry import LADDER, REGISTRY, TRANSPOSE_LADDER
from support.code.instructions import assert_instructions
from support.code.launch_order import LOADS_AHEAD, assert_in_order, waits_of
from support.code.wgmma_waits import early, is_serialised

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

ARCHS = [Arch.parse(name) for name in ("sm_80", "sm_90a", "sm_100a")]


#: Extents that every tile divides, that only copies of 16 or 8 bytes divide, that nothing divides, one that copies of
#: 16 bytes do not divide among others, of long sums, of a square whose lines begin anywhere, and of one that has whole
#: steps of a block triangle.
EXTENTS = (
    (768, 768, 384), (80, 144, 48), (68, 132, 20), (65, 63, 17), (63, 65, 17), (64, 63, 48), (64, 64, 2048),
    (63, 63, 48), (256, 256, 48),
)  # fmt: skip


#: Types of elements that a kernel moves without reading them.
MOVED = {"uint8": "int8", "uint16": "bfloat16", "uint32": "float32"}


def types_of(signature):
    """Types of the elements of A, B, C and D."""
    types = {name: MOVED.get(value, value) for name, value in signature}
    if "moduli" in types:
        return ("float64",) * 4
    if "wide" in types:
        # What is not converted is of the type that the other one is converted to.
        second = types["wide"] if types["second"] == "none" else types["second"]
        return types["element"], second, types["wide"], types["wide"]
    return tuple(types.get(operand) if "acc" in types else types["element"] for operand in "abcd")


#: Precisions that say something of products of a type, beside that of all.
PRECISIONS = {
    "float32": (Precision.TF32, Precision.BF16X6, Precision.OZAKI),
    "float64": tuple(FEWEST_INT8_PRODUCTS),
    "complex128": (Precision.OZAKI,),
}


@functools.cache
def products(types):
    """Products of every precision, extent and layout, with and without C, and of strided operands."""
    a, b, c, d = map(dtype_named, types)
    precisions = (Precision.IEEE, *((Precision.FLOAT8,) if a.is_float8 else PRECISIONS.get(a.name, ())))

    def matrix(dtype, rows, cols, row_major):
        return contiguous(dtype, rows, cols) if row_major else contiguous(dtype, cols, rows).transposed()

    def spread(matrix):
        """Every other element of every other row."""
        strides = {name: 2 * getattr(matrix, name) for name in ("row_stride", "col_stride")}
        return dataclasses.replace(matrix, **strides, alignment=matrix.dtype.itemsize)

    def every():
        for exact, (m, n, k), a_rows, b_rows in itertools.product(precisions, EXTENTS, (True, False), (True, False)):
            operands = (matrix(a, m, k, a_rows), matrix(b, k, n, b_rows), contiguous(c, m, n), contiguous(d, m, n))
            problem = GemmProblem(m, n, k, (), *operands, 1, 1, exact)
            alone = dataclasses.replace(problem, c=None, beta=0)
            yield from (problem, alone)
            yield from (dataclasses.replace(alone, a=spread(alone.a), b=b) for b in (alone.b, spread(alone.b)))
            if a.itemsize == 1:
                # Lines of A that begin anywhere, beside aligned ones.
                along = "row_stride" if a_rows else "col_stride"
                stride = {along: getattr(alone.a, along) + 1}
                yield dataclasses.replace(alone, a=dataclasses.replace(alone.a, **stride, alignment=1))
            found = [alone]
            for conj in ("a", "b", "ab") if a.kind is Kind.COMPLEX else ():
                lazy = {name: dataclasses.replace(getattr(problem, name), conj=True) for name in conj}
                found.append(dataclasses.replace(alone, **lazy))
                yield found[-1]
            if m <= n and exact is Precision.IEEE:
                yield dataclasses.replace(problem, needed=BlockTriangle(0, STEP))
            owns = (mark_own_transpose(one, same=True) for one in found)
            yield from (one for one in owns if one.own_transpose)

    return tuple(every())


@functools.cache
def transposes(element):
    """Transposes and copies, of rows of whole 16 bytes and of others."""
    dtype = opaque_dtype(int(element[4:]) // 8)

    def every():
        for rows, cols in ((160, 96), (33, 20), (3, 2000), (2000, 3)):
            source = contiguous(dtype, cols, rows).transposed()
            for target in (contiguous(dtype, rows, cols), source):
                problem = TransposeProblem(rows, cols, (), source, target)
                yield from (dataclasses.replace(problem, in_place=in_place) for in_place in (False, True))
            square = contiguous(dtype, rows, rows)
            yield TransposeProblem(rows, rows, (), square.transposed(), square, in_place=True)

    return tuple(every())


@functools.cache
def by_signature(spec, config, types):
    """Problems of these types, by the specialisation that they need."""
    found = collections.defaultdict(list)
    for problem in products(types) if spec.operation == "gemm" else transposes(types):
        # This one is specialised for as many products of int8 as are asked for.
        if spec.name != "ozaki_gemm" or problem.precision in FEWEST_INT8_PRODUCTS:
            found[spec.signature(problem, config)].append(problem)
    return found


def operands(job):
    """Types of what is multiplied, or of the elements that are moved."""
    return types_of(job.signature)[:2] if job.spec.operation == "gemm" else dict(job.signature)["element"]


def problems_of(job):
    """Problems that need this very specialisation."""
    types = types_of(job.signature) if job.spec.operation == "gemm" else operands(job)
    return by_signature(job.spec, job.config, types).get(job.signature, ())


def refused(job):
    """Whether the config takes none of the problems that need the specialisation."""
    problems = problems_of(job)
    # Tiles of some configs need no such rows; for a product there is always one.
    may_be = bool(problems) or job.spec.operation == "transpose"
    return may_be and all(job.spec.why_not(problem, job.arch, job.config) for problem in problems)


def taken(job):
    """Problems that need this very specialisation."""
    return [problem for problem in problems_of(job) if job.spec.why_not(problem, job.arch, job.config) is None]


def jobs(configs):
    """Return every specialisation, but those that a config refuses."""
    every = (
        Job(spec, config, signature, arch)
        for spec in REGISTRY
        for config in configs(spec)
        for arch in ARCHS
        if any(arch.capability >= claimed.capability for claimed in spec.archs)
        for signature in spec.signatures(arch)
    )
    return [job for job in every if not refused(job)]


#: Steps of the ladders: calls take other kernels.
STEPS = {*LADDER, *TRANSPOSE_LADDER} - {"float64_gemm", "mma_sync_gemm", "hopper_gemm", "transpose_tiled"}


#: Kernels that take the compiler longest, with the same instructions for every architecture.
LONG = (
    "gemm_reference",
    "g07_cp_async",
    "simt_batched",
    "simt_gemm",
    "simt_syrk",
    "complex64_gemm",
    "complex64_syrk",
    "complex128_gemm",
    "complex128_syrk",
    "mma_sync_gemm",
    "transpose_tiled",
    "transpose_in_place",
    "transpose_in_registers",
    "transpose_skinny",
    "transpose_whole_rows",
    "transpose_whole_sectors",
)


#: Bytes that a thread may spill: half of its registers are accumulators, and a few addresses wait in local memory until
#: the loop over K ends.
SPILLS = {
    "complex64_gemm": 40,
    "complex128_gemm": 48,
    "complex128_syrk": 24,
    "complex64_syrk": 40,
    "float64_gemm": 192,
    # Scales with twelve elements of a line in flight: five CTAs an SM, whose threads have 48 registers.
    "ozaki_gemm": 56,
    "ozaki_scales": 8,
    # What waits while bits of small elements are found, where the most moduli do not suffice.
    "ozaki_guard": 40,
    # Unaligned operands in 96 x 192, whose twelve warps have 168 registers each.
    "simt_gemm": 128,
    "simt_syrk": 64,
}
#: Those of other architectures than Hopper, where more: of 2048 FMAs the loop over K has four loads from local memory.
#: The copy of complex64 as complex128 has 40 registers, and one address waits in local memory on sm_80.
SPILLS_ELSEWHERE = {"complex64_gemm": 72, "complex_gemm_upcast": 8}


def kinds(job):
    """Kinds and sizes of what is multiplied; types that share them differ in a word of some instructions."""
    if job.spec.operation == "transpose":
        return operands(job)
    return tuple((one.kind, one.itemsize) for one in map(dtype_named, operands(job)))


def covering(jobs):
    """Return the jobs that bring a kind or size of A and B which none before them had, on Hopper; elsewhere the first
    of what calls take, but not of those that are compiled longest, to the same instructions.

    Types of results, layouts, alignments and C are seen by the tests that run the kernels. Those multiply float16 with
    every kernel that takes it: what is compiled for it once serves them too.
    """
    seen, kept = set(), []
    for job in sorted(jobs, key=lambda job: job.spec.name in STEPS and "float16" not in dict(job.signature).values()):
        step = job.spec.name in STEPS
        if (step and job.arch.major != 9) or (job.spec.name in LONG and job.arch.major != 9):
            continue
        # Main loops of hopper_syrk are those of hopper_gemm.
        whole = job.arch.major == 9 and not step and job.spec.name != "hopper_syrk"
        value = (job.spec.name, job.arch, kinds(job) if whole else None)
        if value not in seen:
            kept.append(job)
        seen.add(value)
    return kept


EVERY = jobs(lambda spec: [spec.default])
DEFAULT = covering(EVERY)


@functools.cache
def others():
    """Return the other specialisations, which are thousands, and take seconds to find."""
    return [job for job in EVERY if job not in DEFAULT] + jobs(lambda spec: spec.configs[1:])


def pytest_generate_tests(metafunc):
    """Find the others only where slow tests are wanted."""
    if "other" in metafunc.fixturenames:
        wanted = "not slow" not in metafunc.config.getoption("markexpr")
        metafunc.parametrize("other", others() if wanted else [], ids=str)


@pytest.fixture(scope="module")
def compiled_others(request):
    """Compile the other specialisations in parallel processes, once: those whose tests were selected."""
    selected = (one for one in request.session.items if getattr(one, "originalname", None) == "test_other_configs")
    return {str(job): result for job, result in compile_all(one.callspec.params["other"] for one in selected)}


def check(job, artifact):
    launches = [job.spec.launch(problem, job.config) for problem in taken(job)]
    launch = launches[0]
    artifact.check_launch(launch)
    waits = waits_of(job.spec.name, dict(job.signature))
    overlaps, ahead = any(one.overlaps for one in launches), job.spec.name in LOADS_AHEAD
    assert_in_order(artifact.ptx, job.arch, overlaps=overlaps, waits=waits, ahead=ahead)
    # Of sums that are touched while a product is under way nothing but the speed tells.
    assert early(artifact.ptx) == []
    assert not is_serialised(artifact)
    if job.spec.name == "mma_sync_gemm" and dict(job.signature)["tiles"] == "whole":
        assert_instructions(artifact, job.config, dict(job.signature)["a"])
    assert f".target {job.arch}" in artifact.ptx
    most = SPILLS.get(job.spec.name, 0)
    most = most if job.arch.major == 9 else SPILLS_ELSEWHERE.get(job.spec.name, most)
    assert artifact.resources.spill_bytes <= most
    assert artifact.resources.stack_bytes <= most
    chip = next(
        chip for chip in CHIPS if chip.capability[0] == job.arch.major and chip.capability >= job.arch.capability
    )
    assert launch.shared_bytes <= chip.sm.shared_bytes_per_block
    assert 0 < launch.threads * artifact.resources.registers <= chip.sm.registers
    assert f".reqntid {', '.join(map(str, launch.block))}" in artifact.ptx
    assert math.prod(launch.grid) > 0


@pytest.mark.parametrize("job", DEFAULT, ids=str)
def test_default_config(job):
    check(job, job.run())


@pytest.mark.slow
def test_other_configs(other, compiled_others):
    result = compiled_others[str(other)]
    if isinstance(result, CompileError):
        raise result
    check(other, result)


def test_compiling_in_another_process_gives_the_same_code(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMULE_CACHE", str(tmp_path))
    found = list(compile_all([job for job in DEFAULT if job.arch.major == 9][::60], workers=1))
    assert found
    for job, first in found:
        second = compile_kernel(job.spec, job.config, job.signature, job.arch)
        assert first.cubin == second.cubin, job
        assert first.params == second.params, job


@pytest.mark.parametrize("spec", REGISTRY, ids=lambda spec: spec.name)
def test_extents_stay_64_bits_wide(spec):
    """The reference kernels never cut an extent to 32 bits: that shows as a widening of what was narrowed before."""
    if "reference" not in spec.name:
        pytest.skip("a kernel with 32-bit extents says so in why_not")
    arch = Arch.parse("sm_90a")
    ptx = artifact_for(spec, spec.default, spec.signatures(arch)[0], arch).ptx
    assert "ld.param.b64" in ptx
    assert "cvt.s64.s32" not in ptx
