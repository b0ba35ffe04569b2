"""Synchronisation instructions of Hopper's production kernel, removed in turn: a check must find that each is missing.

What no check finds is listed here with the reason.
"""

from __future__ import annotations

import re

import pytest
from hopper_snippets import SCHEDULES
from oracle import poisoned, random_matrix
from test_hopper_kernels import smallest
from test_kernels import HOPPER, case_id, problem_of, types_of

from gemmule.compiler.cache import artifact_for
from gemmule.vgpu import Options, VirtualGpuError, launch
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.ptx.parser import parse

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: The kernels whose harmless instructions are known, below.
KERNELS = [spec for spec in HOPPER if spec.name == "h09_production"]
#: Eleven slices: the compiler's loops over four slices go round twice, and what is left over is three.
SHAPE = (64, 136, 696)
#: What no check misses, and why.
UNSEEN = {
    r"mbarrier\.init": "the kernel has more mbarriers for boxes of C than this config uses",
    r"wgmma\.fence": "nothing uses the sums between two slices: the fence of the first of them is enough",
    r"bar\.sync %r\d+, 256": "warpgroups take turns to be fast: what they write does not depend on it",
}


def synchronisation(kernel):
    """Barriers, mbarriers, fences, and the groups and waits of copies and products."""
    groups = {"commit_group", "wait_group", "wait_all"}
    for instruction in kernel.instructions:
        modifiers, name = set(instruction.modifiers), instruction.name
        of_products = name == "wgmma" and "mma_async" not in modifiers
        if name in ("bar", "barrier", "mbarrier", "fence") or of_products or (name == "cp" and groups & modifiers):
            yield instruction


class Subject:
    """A kernel of one CTA for several tiles, and a run of it without one instruction."""

    def __init__(self, spec, rng):
        dtype, out = types_of(spec)[0]
        m, n, k = SHAPE
        self.a, self.b = random_matrix(rng, dtype, (m, k)), random_matrix(rng, dtype, (k, n))
        self.empty = poisoned(out, (m, n))
        problem = problem_of(self.a, self.b, self.empty)
        config = smallest(spec, problem, lambda config: getattr(config, "cluster", 1) == 1)
        if hasattr(config, "ctas"):
            config = type(config)(**(config.as_dict() | {"ctas": 1}))
        self.ptx = artifact_for(spec, config, spec.signature(problem, config), virtual_arch()).ptx
        self.recipe = spec.launch(problem, config)

    def findings(self, instruction, schedule):
        lines = self.ptx.split("\n")
        if instruction is not None:
            target = str(instruction.operands[0]).split("#")[0] if instruction.operands else ""
            waits = "try_wait" in instruction.modifiers
            # A wait that is not there goes on at once.
            lines[instruction.line - 1] = f"setp.eq.u32 {target}, 0, 0;" if waits else "membar.cta;"
        arrays = {"a": self.a, "b": self.b, "d": self.empty.copy()}
        try:
            launch("\n".join(lines), self.recipe, arrays, options=Options(checks=True, schedule=schedule))
        except VirtualGpuError as error:
            return error.findings
        return ()


def unseen_among(subject, instructions, schedule):
    return [x for x in instructions if not subject.findings(x, schedule)]


def has_reason(instruction):
    return any(re.match(pattern, instruction.text) for pattern in UNSEEN)


@pytest.mark.parametrize("spec", KERNELS, ids=case_id)
def test_some_are_missed(spec, rng):
    """One of twenty, whichever: the others take longer and are for test-all."""
    subject = Subject(spec, rng)
    removed = list(synchronisation(parse(subject.ptx)))
    assert subject.findings(None, "late") == ()
    some = [removed[i] for i in rng.permutation(len(removed))[: len(removed) // 20]]
    missed = [x for x in unseen_among(subject, some, "late") if not has_reason(x)]
    assert not missed, "\n".join(map(str, missed))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("spec", KERNELS, ids=case_id)
def test_every_synchronisation_instruction_is_missed(spec, schedule, rng):
    subject = Subject(spec, rng)
    removed = list(synchronisation(parse(subject.ptx)))
    assert subject.findings(None, schedule) == ()
    unseen = unseen_among(subject, removed, schedule)
    assert not [str(x) for x in unseen if not has_reason(x)]
    assert len(unseen) <= 0.15 * len(removed)
