"""Programs: a kernel bound to slots, for each block the steps of its instructions."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from gemmule.vgpu.dataflow.control_flow import JUMPS, Block, Flow, flow_of
from gemmule.vgpu.ptx.module import Kernel, Register
from gemmule.vgpu.ptx.parser import parse
from gemmule.vgpu.types import Array

from .batch import LaunchState
from .binder import Binder
from .definition import DEFINITIONS, Build, Definition, Gate, Step, WaitText
from .execution import BoundBlock, execute
from .isa import UNITS
from .observer import Observer
from .running_batch import Frame, RunningBatch


class Program:
    """A kernel ready to run with any parameters.

    Parameters
    ----------
    kernel : Kernel
        The parsed kernel.
    ptx : str
        Its text, for other processes.

    Raises
    ------
    PtxError
        If it has an instruction that is not modelled; the message has the instruction's text and line.
    """

    def __init__(self, kernel: Kernel, ptx: str = "") -> None:
        self.ptx = ptx
        self.kernel = kernel
        self.flow: Flow = flow_of(kernel)
        self.binder = Binder(kernel)
        drafts = [self._draft(block) for block in self.flow.blocks]
        # Slots are complete once all blocks are bound: only then are the uses of each.
        self.blocks = [
            BoundBlock(block, steps, self.binder.uses(reads, writes), gate, waits_for, following)
            for block, steps, reads, writes, gate, waits_for, following in drafts
        ]

    def run(self, launch_state: LaunchState, ctas: Sequence[int], observers: tuple[Observer, ...] = ()) -> None:
        """Run CTAs of a launch at once, by their positions in the grid: whole clusters."""
        execute(RunningBatch(launch_state, ctas, UNITS, observers), self.blocks)

    def _draft(
        self, block: Block
    ) -> tuple[Block, tuple[Step, ...], set[Register], set[Register], Gate | None, WaitText | None, int | None]:
        steps: list[Step] = []
        reads: set[Register] = set()
        writes: set[Register] = set()
        gate: Gate | None = None
        waits_for: WaitText | None = None
        following: int | None = block.index + 1
        for instruction in block.instructions:
            build = Build(instruction, self.binder, self.flow, block.index + 1)
            step = definition_of(build)(build)
            if build.sends:
                following = None
            if instruction.guard is not None and instruction.name not in JUMPS:
                step = self._guarded(build, step)
            gate, waits_for = build.gate, build.waits_for
            steps.append(step)
            reads |= build.reads
            writes |= build.writes
        if not block.instructions:
            # Behind the last instruction: the thread ends.
            steps.append(lambda frame: frame.batch.end(None, frame.lanes))
            following = None
        return block, tuple(steps), reads, writes, gate, waits_for, following

    @staticmethod
    def _guarded(build: Build, step: Step) -> Step:
        """Return the step for those lanes only whose guard holds."""
        assert build.instruction.guard is not None
        reads, writes = tuple(build.read_slots), tuple(build.write_slots)
        slot, negated = build.predicate(build.instruction.guard)
        following, sends, gate, instruction = build.next_block, build.sends, build.gate, build.instruction

        def guarded(frame: Frame) -> None:
            mask = ~frame[slot] if negated else frame[slot]
            if mask.all():
                step(frame)
                return
            for observer in frame.batch.observers:
                observer.predicated_off(frame.batch, instruction, frame.lanes, mask)
            if sends:
                frame.batch.scheduler.enqueue(following, frame.lanes.where(~mask))
            if mask.any():
                part = frame.part(mask, (*reads, *writes))
                step(part)
                for written in writes:
                    frame[written][mask] = part[written]

        if gate is not None:

            def guarded_gate(frame: Frame, taking_part: Array | None) -> Array | None:
                del taking_part
                mask = ~frame[slot] if negated else frame[slot]
                ready = gate(frame, mask)
                return None if ready is None else ready | ~mask

            build.gate = guarded_gate
        return guarded


def definition_of(build: Build) -> Definition:
    """Return the definition of an instruction.

    Raises
    ------
    PtxError
        If nothing does.
    """
    name = build.instruction.name
    group = "float" if any(part in FLOAT_TYPES for part in build.instruction.modifiers) else "integer"
    definition = DEFINITIONS.get(name) or DEFINITIONS.get(f"{name}.{group}")
    if definition is None:
        raise build.error("the virtual GPU does not model this instruction")
    return definition


FLOAT_TYPES = frozenset({"f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64"})


@functools.lru_cache(maxsize=256)
def program_of(ptx: str, entry: str | None = None) -> Program:
    """Return a PTX text's kernel, the one of that name where it holds several, ready to run."""
    return Program(parse(ptx, entry), ptx)
