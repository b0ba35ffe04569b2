"""Synchronisation instructions of Hopper's kernels, removed in turn: a check must find that each is missing.

What no check finds is listed here with the reason. With ``--record`` the shares found are recorded.
"""

from __future__ import annotations

import collections
import re

import pytest

from gemmule.compiler.cache import artifact_for
from gemmule.vgpu import Options, VirtualGpuError, launch
from gemmule.vgpu.arch import virtual_arch
from gemmule.vgpu.ptx.parser import parse
from support.oracle import assert_product, poisoned, random_matrix
from support.ptx.hopper import SCHEDULES
from support.vgpu.kernel_products import HOPPER, case_id, in_cluster, problem_of, smallest, types_of
from support.vgpu.mutations import first_finding_is_enough, synchronisation

__all__ = ["first_finding_is_enough"]

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

#: Eleven slices: the compiler's loops over four slices go round twice, and what is left over is three.
SHAPE = (64, 136, 696)
#: Of kernels whose warpgroups take tiles in turn: two tiles for each.
SHAPES = {"h08_pingpong": (64, 392, 696)}
_TURNS = r"bar\.sync %r\d+, 256"
_TILES = r"bar\.warp\.sync", "a tile is one block of rows; between tiles the lanes meet where warpgroups take turns"
_FENCE = r"wgmma\.fence", "nothing uses the sums between two slices: the fence of the first of them is enough"
_BOXES_OF_C = r"mbarrier\.init", "mbarriers for boxes of C, of which this product has none, or fewer"
_TOGETHER = "a group of products is the warpgroup's: who awaits it knows that all four warps are done with the stage"
_BARRIER = r"bar\.sync 0", _TOGETHER
_LAST_SLICES = "of the slices left over, the last: no slice follows that needs their stages, and a wait for all follows"
#: For each kernel what no check misses, and why.
UNSEEN = {
    "h02_wgmma_tma": dict([_FENCE, _BARRIER]),
    "h03_stages": dict([_FENCE, _BARRIER]),
    "h04_warp_specialised": dict(
        [_FENCE, (r"wgmma\.wait_group\S* 1", _LAST_SLICES), (r"mbarrier\.arrive\.shared", _LAST_SLICES)]
    ),
    "h05_persistent": dict([_FENCE]),
    "h06_cluster_multicast": dict([_FENCE]),
    "h07_tma_store": dict([_FENCE, _BOXES_OF_C]),
    "h08_pingpong": dict([_FENCE, _BOXES_OF_C]),
    "hopper_gemm": dict(
        [
            _FENCE,
            _BOXES_OF_C,
            (_TURNS, "warpgroups take turns to be fast: what they write does not depend on it"),
        ]
    ),
    "hopper_gemm_unaligned": dict([_FENCE, _BOXES_OF_C, _TILES]),
}
#: How many of a kernel's removals are to be found; one with a redundant barrier and one slice at a time has fewer.
SHARE, SHARES = 0.85, {"h02_wgmma_tma": 0.7}


class Subject:
    """A kernel of one CTA, or one cluster, for several tiles, and a run of it without one instruction."""

    def __init__(self, spec, rng, shape=None, wanted=None):
        dtype, out = types_of(spec)[0]
        m, n, k = shape or SHAPES.get(spec.name, SHAPE)
        self.a, self.b = random_matrix(rng, dtype, (m, k)), random_matrix(rng, dtype, (k, n))
        self.empty = poisoned(out, (m, n))
        problem = problem_of(self.a, self.b, self.empty)
        alone = smallest(spec, problem, wanted or (lambda config: not in_cluster(config)))
        config = alone or smallest(spec, problem)
        if hasattr(config, "ctas"):
            config = type(config)(**(config.as_dict() | {"ctas": config.cluster_size}))
        self.config, self.artifact = config, artifact_for(spec, config, spec.signature(problem, config), virtual_arch())
        self.ptx = self.artifact.ptx
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
        # What no check finds must be harmless.
        assert_product(arrays["d"], self.a, self.b)
        return ()


def unseen_among(subject, instructions, schedule):
    return [x for x in instructions if not subject.findings(x, schedule)]


def reason(spec, instruction):
    return next((why for pattern, why in UNSEEN[spec.name].items() if re.match(pattern, instruction.text)), None)


@pytest.fixture(scope="module")
def shares(request):
    """Takes the records of what was found."""
    records = []
    request.config.extra_records.append(lambda: records)
    return records


@pytest.mark.parametrize("spec", [spec for spec in HOPPER if spec.name == "hopper_gemm"], ids=case_id)
def test_some_are_missed(spec, rng):
    """One of thirty, whichever: the others, and the other kernels, take longer and are for test-all."""
    subject = Subject(spec, rng)
    removed = list(synchronisation(parse(subject.ptx)))
    assert subject.findings(None, "late") == ()
    some = [removed[i] for i in rng.permutation(len(removed))[: len(removed) // 30]]
    missed = [x for x in unseen_among(subject, some, "late") if reason(spec, x) is None]
    assert not missed, "\n".join(map(str, missed))


def test_every_wait_of_the_drain_is_missed(rng):
    """The producer of a cluster stays until all its stages are released by the other CTAs.

    A warpgroup releases stages in order, so that its last release tells of all. In ping-pong the newest stage is one
    warpgroup's; the last that the other released is as many k-tiles older as a tile has, so that each wait is needed
    for another K. Where both warpgroups release every stage, only the wait for the newest is needed.
    """
    spec = next(spec for spec in HOPPER if spec.name == "hopper_gemm")
    for k_tiles in (1, 2, 3):
        subject = Subject(
            spec, rng, (512, 384, 64 * k_tiles),
            lambda config: config.pingpong and config.cluster_m == config.stages == 4 and not config.swap_ab,
        )  # fmt: skip
        # The drain's loop is unrolled: one wait for each stage, all of one source line.
        by_line = collections.defaultdict(list)
        for instruction in parse(subject.ptx).instructions:
            if "try_wait" in instruction.modifiers:
                by_line[instruction.source].append(instruction)
        (waits,) = [alike for alike in by_line.values() if len(alike) == subject.config.stages]
        assert subject.findings(None, "late") == ()
        for wait in (waits[-1], waits[-1 - k_tiles])[k_tiles > 1 :]:
            assert [finding.kind for finding in subject.findings(wait, "late")] == ["unfinished"], wait


@pytest.mark.slow
@pytest.mark.parametrize("spec", HOPPER, ids=case_id)
def test_every_synchronisation_instruction_is_missed(spec, shares, rng):
    """What one schedule does not show is tried under the next."""
    subject = Subject(spec, rng)
    removed = list(synchronisation(parse(subject.ptx)))
    false_alarms = [finding for schedule in SCHEDULES for finding in subject.findings(None, schedule)]
    unseen, left = removed, {}
    for schedule in SCHEDULES:
        unseen = unseen_among(subject, unseen, schedule)
        left[schedule] = len(unseen)
    why = [reason(spec, x) for x in unseen]
    shares.append(
        {"record": "removals", "kernel": spec.name, "removed": len(removed), "left_after": left}
        | {"false_alarms": len(false_alarms)}
        | {"unseen": [{"line": x.line, "text": x.text, "reason": said} for x, said in zip(unseen, why, strict=True)]}
    )
    assert not false_alarms
    assert None not in why, [str(x) for x in unseen if reason(spec, x) is None]
    # A reason is one for some of such instructions, not for all of them.
    for pattern in set(UNSEEN[spec.name]) - {_TURNS}:
        alike = {x.index for x in removed if re.match(pattern, x.text)}
        assert not alike or not alike <= {x.index for x in unseen}, f"nothing misses {pattern}"
    assert 1 - len(unseen) / len(removed) >= SHARES.get(spec.name, SHARE)
