"""The kernel and the problem that a user names."""

from __future__ import annotations

import dataclasses
import itertools
import re

from gemmule.core.arch import Arch
from gemmule.core.chip import Chip
from gemmule.core.config import Config
from gemmule.core.dtype import Precision
from gemmule.core.errors import ArgumentError, NoKernelError, UnsupportedError
from gemmule.core.problem import GemmProblem, Problem
from gemmule.core.spec import Choice
from gemmule.dispatch.kernel_names import only_choice, unknown_kernel
from gemmule.dispatch.registry import REGISTRY, kernels_of
from gemmule.dispatch.select import choose

from ..products import LAYOUTS, MEASURED_DTYPES, gemm_problem, output_type
from ..transposes import itemsize_of, problem_for, transpose_of

_HALF = "it computes half of a result, and its counts are not in proportion to tiles"
_PERMUTATION = (
    "it permutes three axes or more, for which gm.transpose.plan predicts a time, and --shape M,N is of matrices",
    "transpose_tiled",
)
#: Kernels that cannot be explained, why, and what to explain instead.
_UNEXPLAINED = {
    "complex_gemm_upcast": ("it copies operands of different types, and one type is explained", "complex64_gemm"),
    "complex128_syrk": (_HALF, "complex128_gemm"),
    "complex64_syrk": (_HALF, "complex64_gemm"),
    "float64_syrk": (_HALF, "float64_gemm"),
    "simt_syrk": (_HALF, "simt_gemm"),
    "ozaki_complex": ("it begins a chain of launches, none of which is the product by itself", "complex128_gemm"),
    "ozaki_gemm": ("it begins a chain of launches, none of which is the product by itself", "hopper_gemm"),
    "hopper_syrk": (_HALF, "hopper_gemm"),
    "transpose_blocks": _PERMUTATION,
    "transpose_word_blocks": _PERMUTATION,
    "transpose_merged": _PERMUTATION,
    "transpose_rows": _PERMUTATION,
    "hopper_gemm_k_major": ("it transposes operands, and the product is another's", "transpose_tiled"),
    "simt_gemm_mn_major": ("it transposes operands, and the product is another's", "transpose_tiled"),
}
#: Kernels whose counts are explained.
EXPLAINED = tuple(spec for spec in REGISTRY if spec.name not in _UNEXPLAINED)
#: Rungs are numbered; production kernels are not, though a ladder ends with one.
_RUNG = re.compile(r"[a-z]\d\d_")
# Sizes of which every kernel supports one: aligned, and skinny with rows that TMA cannot load.
_FRIENDLY = ((4096, 4096, 4096), (4097, 65, 4097))
# Without a given type, float32 is tried first; with Hopper's kernels last, since they are for tensor cores.
_ITEMSIZES = (4, 1, 2, 8, 16)
_DTYPES = ("float32", *(dtype for dtype in MEASURED_DTYPES if dtype != "float32"))


def choice_named(word: str) -> Choice:
    """Return the kernel of that name, in the config in brackets, as in ``g05_conflict_free[tile_k=16]``.

    Raises
    ------
    ArgumentError
        If there is no such kernel or config, or more than one.
    UnsupportedError
        If it cannot be explained.
    """
    name = word.partition("[")[0].strip()
    operations = {spec.name: spec.operation for spec in REGISTRY}
    if name in (spec.name for spec in kernels_of("grouped")):
        raise UnsupportedError(
            f"{name} cannot be explained: what kernels of grouped products load depends on the groups' ends, which are "
            f"data; explain {name.replace('grouped', 'gemm')} instead"
        )
    if name not in operations:
        raise unknown_kernel(name, operations)
    if name in _UNEXPLAINED:
        why, instead = _UNEXPLAINED[name]
        raise UnsupportedError(f"{name} cannot be explained: {why}; explain {instead} instead")
    return only_choice(word, kernels_of(operations[name]))


def as_called(choice: Choice, problem: Problem, arch: Arch, chip: Chip) -> Choice:
    """Return a production kernel in the config that a call takes on a chip; a rung of a ladder as it is.

    Configs whose CTAs share tiles are not explained: the best other one is returned, with the call's as its
    source. A kernel that supports the problem in no config is returned unchanged; explaining it raises its reason.
    """
    spec = choice.spec
    if spec.cost is None or _RUNG.match(spec.name):
        return choice
    sms, name = chip.sms, chip.driver_name
    try:
        called = choose(problem, arch, (spec,), multiprocessors=sms, chip=name)
    except NoKernelError:
        return choice
    if spec.next_kernel is not None or not spec.launch(problem, called.config).workspaces:
        return called
    others = dataclasses.replace(spec, configs=tuple(one for one in spec.configs if not _shares_tiles(one)))
    best = choose(problem, arch, (others,), multiprocessors=sms, chip=name, tuned=False)
    return Choice(spec, best.config, chosen_by="cost", source=f"a call takes {called.config}")


def _shares_tiles(config: Config) -> bool:
    return any(getattr(config, field, 0) == 1 for field in ("stream_k", "split_k"))


def problem_of(
    choice: Choice,
    arch: Arch,
    shape: str,
    dtype: str | None,
    out_dtype: str | None,
    layout: str | None,
    precision: str | None,
) -> Problem:
    """Return the requested problem; a type or layout that is not given is the first that the kernel supports.

    Raises
    ------
    ArgumentError
        If the shape or a type is none, or does not fit the kernel.
    """
    spec, config = choice.spec, choice.config
    if spec.operation != "gemm":
        if out_dtype is not None or layout is not None or precision is not None:
            raise ArgumentError(
                f"{spec.name} moves elements; --out-dtype, --layout and --precision are for products; leave them out"
            )
        *batch, m, n = _sides(shape, "M,N" if spec.in_place else "[BATCH,]M,N", spec.name)
        sizes = (itemsize_of(dtype),) if dtype is not None else _ITEMSIZES
        every = [problem_for(spec, config, arch, transpose_of(m, n, size, tuple(batch))) for size in sizes]
        found = next((one for one in every if spec.why_not(one, arch, config) is None), every[0])
        return dataclasses.replace(found, in_place=True) if spec.in_place else found
    m, n, k = _sides(shape, "M,N,K", spec.name)
    hopper = all(one.specific for one in spec.archs)
    dtypes = (dtype,) if dtype is not None else (*_DTYPES[1:], _DTYPES[0]) if hopper else _DTYPES
    layouts = (layout,) if layout is not None else LAYOUTS
    # 8-bit floats have results of 16 bits at the least, with some kernels.
    outputs = (out_dtype,) if out_dtype is not None else (None, "bfloat16")
    exact = Precision.parse(precision)

    def problem(size: tuple[int, ...], output: str | None, kind: str, way: str) -> GemmProblem:
        whole = gemm_problem(size[0], size[1], size[2], kind, output_type(kind, output), way)
        return dataclasses.replace(whole, precision=exact)

    # If it supports none, the error gives the reason of the first that it would support at another size or on a chip of
    # its own, if there is one.
    ways = list(itertools.product(outputs, dtypes, layouts))
    for on, size in itertools.product((arch, *spec.archs), ((m, n, k), *_FRIENDLY)):
        for way in ways:
            if spec.why_not(problem(size, *way), on, config) is None:
                return problem((m, n, k), *way)
    return problem((m, n, k), *ways[0])


def _sides(shape: str, form: str, name: str) -> tuple[int, ...]:
    parts = [part.strip() for part in shape.split(",")]
    most = form.count(",") + 1
    least = most - form.count("[")
    if not least <= len(parts) <= most or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        example = ",".join(["4096"] * least)
        raise ArgumentError(
            f"--shape {shape!r} is not {form} in whole numbers from 1; {name} takes one such as {example}"
        )
    return tuple(map(int, parts))
