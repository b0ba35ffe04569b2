"""Every synchronisation instruction of every kernel, removed in turn: a check must find that it is missing.

What no check finds is listed here with the reason.
"""

from __future__ import annotations

import numpy as np
import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.vgpu import Options, VirtualGpuError, launch
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.ptx.parser import parse
from support.oracle import poisoned, random_matrix
from support.vgpu.kernel_products import GEMMS, problem_of, types_of
from support.vgpu.mutations import first_finding_is_enough

__all__ = ["first_finding_is_enough"]

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

_EMPTY = "the groups that it waits for are those behind the last slice, and empty"
#: Kernel and instruction, and why no check misses it.
UNSEEN = {
    ("g07_cp_async", "cp.async.wait_group 0"): _EMPTY,
    ("float64_gemm", "cp.async.wait_group 0"): _EMPTY,
    ("simt_batched", "cp.async.wait_group 0"): _EMPTY,
    ("complex128_gemm", "cp.async.wait_group 0"): _EMPTY,
    ("mma_sync_gemm", "cp.async.wait_group 0"): _EMPTY,
    ("mma_sync_gemm", "bar.warp.sync -1"): "what lanes of one warp do to each other is not looked for",
    ("simt_gemm", "bar.warp.sync -1"): "the last of them comes before rows that follow, and this config has none",
}
#: K of kernels whose last slice of the ordinary one lies where nothing is written afterwards, or that load all of it at
#: once.
DEPTHS = {"mma_sync_gemm": 130, "mma_sync_small": 260, "simt_gemm": 100}
SHAPE = (130, 129, 70)
#: Of a kernel of small tiles, eight of them a CTA, and of one whose products take longest: two rows of tiles, the last
#: of which is ragged.
SHAPES = {"simt_batched": (34, 33, 70), "complex128_gemm": (34, 33, 70)}


def shape_for(spec):
    return SHAPES.get(spec.name, (*SHAPE[:2], DEPTHS.get(spec.name, SHAPE[2])))


def synchronisation(kernel):
    """Barriers, and the groups and waits of asynchronous copies."""
    for instruction in kernel.instructions:
        group = {"commit_group", "wait_group", "wait_all"} & set(instruction.modifiers)
        if instruction.name in ("bar", "barrier") or (instruction.name == "cp" and group):
            yield instruction


def config_of(spec):
    """The default config; of kernels whose default is compiled and run longest, the one with the smallest tiles."""
    slow = spec.name in ("g07_cp_async", "simt_gemm", "complex128_gemm")
    return min(spec.configs, key=lambda config: config.tile_elements) if slow else spec.default


def findings_without(spec, instruction, rng):
    """Run the kernel with one instruction made a fence, which does nothing here."""
    dtype, out_type = types_of(spec)[0]
    m, n, k = shape_for(spec)
    a, b, out = random_matrix(rng, dtype, (m, k)), random_matrix(rng, dtype, (k, n)), poisoned(out_type, (m, n))
    problem = problem_of(a, b, out)
    config = config_of(spec)
    artifact = artifact_for(spec, config, spec.signature(problem, config), virtual_arch())
    lines = artifact.ptx.split("\n")
    if instruction is not None:
        lines[instruction.line - 1] = "membar.cta;"
    recipe = spec.launch(problem, config)
    try:
        launch("\n".join(lines), recipe, {"a": a, "b": b, "d": out}, options=Options(checks=True))
    except VirtualGpuError as error:
        return error.findings
    return ()


def artifact_of(spec):
    dtype, out_type = types_of(spec)[0]
    m, n, k = shape_for(spec)
    problem = problem_of(
        *(np.zeros(shape, dtype.numpy()) for shape in ((m, k), (k, n))), np.zeros((m, n), out_type.numpy())
    )
    config = config_of(spec)
    return artifact_for(spec, config, spec.signature(problem, config), virtual_arch())


#: Those with the most instructions to remove take most of the time; g04 and g05 have the barriers of g03,
#: complex64_gemm those of simt_gemm and complex128_gemm; g07 waits for copies as these do, and g06 has one barrier a
#: slice where g03 has two.
LONG = (
    "mma_sync_gemm",
    "float64_gemm",
    "d02_b_in_registers",
    "g04_register_tile",
    "g05_conflict_free",
    "complex64_gemm",
    "g06_double_buffer",
    "g07_cp_async",
)
CASES = [pytest.param(spec, id=spec.name, marks=[pytest.mark.slow] if spec.name in LONG else []) for spec in GEMMS]


@pytest.mark.parametrize("spec", CASES)
def test_every_synchronisation_instruction_is_missed(spec, rng):
    kernel = parse(artifact_of(spec).ptx)
    assert findings_without(spec, None, rng) == ()
    removed = list(synchronisation(kernel))
    if not removed:
        pytest.skip("the kernel has nothing to synchronise")
    unseen = [x for x in removed if not findings_without(spec, x, rng)]
    missed = [x for x in unseen if (spec.name, x.text) not in UNSEEN]
    assert not missed, "\n".join(map(str, missed))
    # A reason that no longer holds is no reason.
    assert {(spec.name, x.text) for x in unseen} == {entry for entry in UNSEEN if entry[0] == spec.name}
