"""Lists what a checkout compiles: ``python tools/ptx_listing.py keys``, or ``… compile`` with keys on standard input.

`compare_ptx.py` runs it once for each of two commits, with that commit's sources on ``PYTHONPATH``. A key is a JSON
list of kernel, config and signature. ``keys`` prints those of every kernel and config that some product or transpose
needs: registered kernels, and those that only run after one of them; of grouped products and quantisation those of all
signatures, without launch recipes. Names after ``keys`` are the only kernels listed. ``compile`` prints, for each key
that it reads, the normalised PTX and the launch recipes, as a JSON object a line.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from gemmule.compiler.pool import Job, compile_all
from gemmule.core.arch import Arch
from gemmule.core.block_triangle import STEP, BlockTriangle
from gemmule.core.dtype import INT8_PRODUCTS, Kind, Precision, dtype_named, opaque_dtype
from gemmule.core.errors import CompileError
from gemmule.core.gpu_rates import H200_RATES
from gemmule.core.layout import compact_strides, contiguous
from gemmule.core.permutation import transpose_problem
from gemmule.core.problem import GemmProblem, TransposeProblem, inner_problem, mark_own_transpose
from gemmule.core.spec import KernelSpec
from gemmule.dispatch.registry import REGISTRY, kernels_of
from gemmule.kernels.emulation.guard_decision.spec import SPEC as DECISION
from gemmule.kernels.quantize.spec import BY_TENSOR
from gemmule.kernels.quantize.spec import SPEC as QUANTIZE

ARCHS = tuple(Arch.parse(name) for name in ("sm_90a", "sm_80", "sm_100a"))
# Extents that every tile divides, that copies of 16 and of 8 bytes divide, and that nothing divides, A or B the larger
# one, with a K that a cluster of eight splits; and K so long that it is accumulated in parts.
_EXTENTS = (
    (768, 768, 384), (80, 144, 48), (68, 132, 20), (65, 63, 17), (65, 63, 513), (63, 65, 513), (64, 64, 2048),
    (64, 768, 2**17),
)  # fmt: skip
_CONJUGATED = _EXTENTS[2]
# Element types of A, B and D, and the precisions that say something of them.
_TYPES = {
    ("float64", "float64", "float64"): (Precision.IEEE, Precision.OZAKI, *INT8_PRODUCTS),
    ("float32", "float32", "float32"): (Precision.IEEE, Precision.TF32, Precision.BF16X6, Precision.OZAKI),
    ("float32", "float32", "bfloat16"): (Precision.IEEE,),
    ("bfloat16", "bfloat16", "bfloat16"): (Precision.IEEE,),
    ("bfloat16", "bfloat16", "float32"): (Precision.IEEE,),
    ("float16", "float16", "float16"): (Precision.IEEE,),
    ("float16", "float16", "float8_e4m3fn"): (Precision.IEEE,),
    ("float8_e4m3fn", "float8_e4m3fn", "bfloat16"): (Precision.IEEE, Precision.FLOAT8),
    ("float8_e5m2", "float8_e4m3fn", "float32"): (Precision.IEEE, Precision.FLOAT8),
    ("bfloat16", "float8_e4m3fn", "bfloat16"): (Precision.IEEE,),
    ("bfloat16", "int8", "bfloat16"): (Precision.IEEE,),
    ("int8", "int8", "int32"): (Precision.IEEE,),
    ("int8", "int8", "int8"): (Precision.IEEE,),
    ("int32", "int32", "int32"): (Precision.IEEE,),
    ("complex64", "complex64", "complex64"): (Precision.IEEE, Precision.OZAKI),
    ("complex128", "complex128", "complex128"): (Precision.IEEE, Precision.OZAKI),
}
# Permutations of several axes: their extents and order. Rows that stay, short ones too; many short axes; long runs of
# odd axes; a long and a short side in a batch.
_PERMUTATIONS = (
    ((9, 40, 6, 128), (0, 2, 1, 3)),
    ((9, 41, 6, 65), (0, 2, 1, 3)),
    ((300, 8, 10, 6), (0, 2, 1, 3)),
    ((16, 8, 16, 8, 16), (4, 3, 2, 1, 0)),
    ((15, 5, 7, 9, 25), (4, 2, 0, 1, 3)),
    ((601, 7, 11), (0, 2, 1)),
    ((30, 29, 75, 13, 3), (1, 4, 2, 3, 0)),
    ((5, 1001, 3), (0, 2, 1)),
)
# What a register, a label or a symbol is called.
_NAME = re.compile(r"%[a-z]+\d+\b|\$L__BB\d+_\d+")
_DROPPED = re.compile(r"\s*(//|\.loc\b|\.file\b|\.reg\b)")


def normalised(ptx: str, entry: str) -> str:
    """Return PTX without comments, source lines and declarations of registers, its names numbered as they appear."""
    kept = "\n".join(line.rstrip() for line in ptx.splitlines() if line.strip() and not _DROPPED.match(line))
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        name = match[0]
        prefix = re.match(r"\D+", name)
        assert prefix is not None
        return f"{prefix[0]}{numbers.setdefault(name, len(numbers))}"

    return _NAME.sub(number, kept.replace(entry, "KERNEL"))


def arch_of(spec: KernelSpec) -> Arch:
    """Return the architecture that a kernel is compared on: Hopper where it runs there."""
    return next(arch for arch in ARCHS if spec.signatures(arch))


@functools.cache
def products() -> tuple[GemmProblem, ...]:
    """Return products of every type, precision, extent and layout.

    With C, of A by its transpose, lower triangles, of conjugates.
    """
    found = []
    for (types, precisions), (m, n, k), rows in itertools.product(
        _TYPES.items(), _EXTENTS, itertools.product((True, False), repeat=2)
    ):
        a, b, d = map(dtype_named, types)
        left = contiguous(a, m, k) if rows[0] else contiguous(a, k, m).transposed()
        right = contiguous(b, k, n) if rows[1] else contiguous(b, n, k).transposed()
        out = contiguous(d, m, n)
        for precision in precisions:
            plain = GemmProblem(m, n, k, (), left, right, None, out, precision=precision)
            found += [plain, dataclasses.replace(plain, c=out, beta=1)]
            # As specs name them: of one layout, with tiles that do not divide.
            if a.kind is Kind.COMPLEX and all(rows) and (m, n, k) == _CONJUGATED:
                marks = itertools.product((False, True), repeat=2)
                found += [
                    dataclasses.replace(
                        plain, a=dataclasses.replace(left, conj=one), b=dataclasses.replace(right, conj=other)
                    )
                    for one, other in marks
                    if one or other
                ]
            if m <= n and precision is Precision.IEEE:
                found.append(dataclasses.replace(plain, needed=BlockTriangle(0, STEP)))
            if (own := mark_own_transpose(plain, same=True)).own_transpose:
                found.append(own)
    return tuple(found)


@functools.cache
def transposes() -> tuple[TransposeProblem, ...]:
    """Return transposes and copies of every element size, of whole and of odd lines, and in place."""
    found = []
    for itemsize, (rows, cols) in itertools.product((1, 2, 4, 8, 16), ((160, 96), (33, 20), (129, 257))):
        dtype = opaque_dtype(itemsize)
        source = contiguous(dtype, cols, rows).transposed()
        found += [TransposeProblem(rows, cols, (), source, one) for one in (contiguous(dtype, rows, cols), source)]
        square = contiguous(dtype, rows, rows)
        found.append(TransposeProblem(rows, rows, (), square.transposed(), square, in_place=True))
    for itemsize, (extents, order) in itertools.product((1, 2, 4, 8, 16), _PERMUTATIONS):
        shape, strides = tuple(extents[axis] for axis in order), compact_strides(extents)
        source = tuple(strides[axis] for axis in order)
        found.append(transpose_problem(shape, source, compact_strides(shape), itemsize, (16, 16)))
    return tuple(found)


def unplanned() -> tuple[KernelSpec, ...]:
    """Return the kernels of which all signatures are listed, without problems."""
    return (*kernels_of("grouped"), QUANTIZE, BY_TENSOR, DECISION)


@functools.cache
def launches(specs: tuple[KernelSpec, ...] = (*REGISTRY, *unplanned())) -> dict[Job, str]:
    """Return what the problems have compiled of `specs`, each with a digest of its launch recipes.

    Kernels that only run after another one are compiled in all their configs, not only in the one that runs.
    """
    digests: dict[Job, Any] = {}
    followers: dict[KernelSpec, dict[Any, None]] = {}

    def add(spec: KernelSpec, problems: Iterable[Any]) -> None:
        arch = arch_of(spec)
        for given in problems:
            problem = inner_problem(given, spec.batch_dims) if isinstance(given, TransposeProblem) else given
            if spec.refuses is not None and spec.refuses(problem, arch):
                continue
            for config in spec.configs:
                if spec.why_not(problem, arch, config) is None:
                    job = Job(spec, config, spec.signature(problem, config), arch)
                    digest = digests.setdefault(job, hashlib.sha256())
                    digest.update(repr(dataclasses.asdict(spec.launch(problem, config))).encode())
                    if spec.next_kernel is not None:
                        for one in spec.next_kernel(problem, config, H200_RATES).chain():
                            digest.update(repr([one.operands, one.workspaces, one.beyond]).encode())
                            if one.spec not in REGISTRY:
                                followers.setdefault(one.spec, {})[one.problem] = None

    for spec in specs:
        if spec in unplanned():
            arch = arch_of(spec)
            for config, signature in itertools.product(spec.configs, spec.signatures(arch)):
                digests.setdefault(Job(spec, config, signature, arch), hashlib.sha256())
        else:
            add(spec, products() if spec.operation == "gemm" else transposes())
    for spec, problems in followers.items():
        add(spec, problems)
    return {job: digest.hexdigest()[:16] for job, digest in digests.items()}


def key_of(job: Job) -> list[Any]:
    """Return what names a job for both commits."""
    return [job.spec.name, job.config.as_dict(), [list(pair) for pair in job.signature]]


def launches_of(names: set[str]) -> dict[Job, str]:
    """Return the launches of kernels of those names; all where there are none, or one that another kernel is before."""
    every = (*REGISTRY, *unplanned())
    named = tuple(spec for spec in every if spec.name in names)
    return launches(named) if names and names == {spec.name for spec in named} else launches()


def compiled(wanted: list[list[Any]]) -> Iterator[dict[str, Any]]:
    """Compile keys in parallel; yield each with its PTX, or why there is none, and its launches."""
    digests = launches_of({key[0] for key in wanted})
    by_text = {json.dumps(key_of(job)): job for job in digests}
    jobs = [by_text[json.dumps(key)] for key in wanted]
    for job, result in compile_all(jobs):
        ptx = f"error: {result}" if isinstance(result, CompileError) else normalised(result.ptx, result.entry)
        yield {"key": key_of(job), "launches": digests[job], "ptx": ptx}


def main() -> None:
    """Print keys, or what keys compile to."""
    found: Iterable[Any] = (
        map(key_of, launches_of(set(sys.argv[2:])))
        if sys.argv[1] == "keys"
        else compiled([json.loads(line) for line in sys.stdin])
    )
    for one in found:
        print(json.dumps(one), flush=True)


if __name__ == "__main__":
    main()
