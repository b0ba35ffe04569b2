"""A kernel bound to slots: for each block the steps of its instructions."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from gemmule.vgpu.ptx.flow import JUMPS, Block, Flow, flow_of
from gemmule.vgpu.ptx.module import Kernel, Register
from gemmule.vgpu.ptx.parser import parse
from gemmule.vgpu.ptx.polling import polling_blocks

from . import load_definitions
from .binder import Binder
from .define import DEFINITIONS, Build, Definition, Gate, Step, Teller
from .lanes import Lanes
from .registers import Frame, Uses
from .types import Array

if TYPE_CHECKING:
    from .batch import Batch


@dataclasses.dataclass(frozen=True)
class BoundBlock:
    """A block whose instructions have become steps.

    Attributes
    ----------
    block : Block
        The instructions.
    steps : tuple of callable
        What they do.
    uses : Uses
        Registers that they need.
    gate : callable or None
        Says which lanes can begin, where the instruction may have to wait for others.
    waits_for : callable or None
        Says what lanes wait for that the gate keeps back.
    next : int or None
        Where lanes go on; None where the last step sends them.
    """

    block: Block
    steps: tuple[Step, ...]
    uses: Uses
    gate: Gate | None
    waits_for: Teller | None
    next: int | None

    def admit(self, batch: Batch, lanes: Lanes) -> Lanes | None:
        """Return the lanes that can begin, and park the others."""
        if self.gate is None:
            return lanes
        frame = batch.file.frame(lanes, self.uses)
        ready = self.gate(frame, None)
        if ready is None or ready.all():
            return lanes
        batch.scheduler.park(self.block.index, lanes.where(~ready))
        return lanes.where(ready) if ready.any() else None

    def run(self, batch: Batch, lanes: Lanes) -> None:
        """Run the instructions for those lanes, and send them on."""
        frame = batch.file.frame(lanes, self.uses)
        for step in self.steps:
            step(frame)
        frame.store(self.uses)
        if self.next is not None:
            batch.scheduler.go(self.next, lanes)


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
        If it has an instruction that is not known; the message has the instruction's text and line.
    """

    def __init__(self, kernel: Kernel, ptx: str = "") -> None:
        load_definitions()
        self.ptx = ptx
        self.kernel = kernel
        self.flow: Flow = flow_of(kernel)
        self.polling = polling_blocks(self.flow)
        self.binder = Binder(kernel)
        drafts = [self._draft(block) for block in self.flow.blocks]
        # Slots are known once all blocks are bound: then each says what it uses.
        self.blocks = [
            BoundBlock(block, steps, self.binder.uses(reads, writes), gate, waits_for, following)
            for block, steps, reads, writes, gate, waits_for, following in drafts
        ]

    def _draft(
        self, block: Block
    ) -> tuple[Block, tuple[Step, ...], set[Register], set[Register], Gate | None, Teller | None, int | None]:
        steps: list[Step] = []
        reads: set[Register] = set()
        writes: set[Register] = set()
        gate: Gate | None = None
        waits_for: Teller | None = None
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
                observer.passed_over(frame.batch, instruction, frame.lanes, mask)
            if sends:
                frame.batch.scheduler.go(following, frame.lanes.where(~mask))
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
    """Return what defines an instruction.

    Raises
    ------
    PtxError
        If nothing does.
    """
    name = build.instruction.name
    group = "float" if any(part in FLOAT_TYPES for part in build.instruction.modifiers) else "integer"
    definition = DEFINITIONS.get(name) or DEFINITIONS.get(f"{name}.{group}")
    if definition is None:
        raise build.error("the virtual GPU does not know this instruction")
    return definition


FLOAT_TYPES = frozenset({"f16", "f16x2", "bf16", "bf16x2", "f32", "f64"})


@functools.lru_cache(maxsize=256)
def program_of(ptx: str) -> Program:
    """Return a PTX text's kernel ready to run."""
    return Program(parse(ptx), ptx)
