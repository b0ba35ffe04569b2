"""Counted runs of a compiled kernel, on matrices of which only the memory's extent is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from gemmule.compiler.artifact import Artifact
from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.core.chip import Chip
from gemmule.core.config import Config
from gemmule.core.launch import Launch
from gemmule.core.spec import KernelSpec, Signature

from .counts import Counter, InstructionCounts
from .counts.classes import class_of, flop_of_lane
from .counts.footprint import Footprint
from .counts.pipeline import Pipeline, PipelineEvent
from .counts.waits import Waits
from .engine.binder import SHARED_START
from .engine.program import program_of
from .launcher import Options, launch

Buffers = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


@dataclasses.dataclass(frozen=True)
class CountedRun:
    """Counts of one launch."""

    instructions: tuple[InstructionCounts, ...]  #: One row for each instruction, in the order of the code.
    operands: tuple[str, ...]  #: The operand that each instruction accesses in global memory; nothing for all others.
    flop_by_class: dict[str, int]  #: Floating-point operations by class of instructions.
    l2_bytes: int  #: Bytes that the L2 cache read and wrote, by the model of the L1 caches.
    #: For each round in which the first warp waits for global memory, the instructions that hide the latency.
    rounds: tuple[int, ...]


class CountedKernel:
    """A kernel, compiled for an architecture, that the virtual GPU counts.

    Parameters
    ----------
    spec, config, signature, arch
        Compiled kernel, or one from the cache.
    """

    def __init__(self, spec: KernelSpec, config: Config, signature: Signature, arch: Arch) -> None:
        self._artifact: Artifact = artifact_for(spec, config, signature, arch, with_ptx=True)
        self._program = program_of(self._artifact.ptx)

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return self._artifact.resources.registers

    @property
    def spill_bytes(self) -> int:
        """Bytes of local memory, of a thread, for registers that did not fit."""
        return self._artifact.resources.spill_bytes

    @property
    def static_shared_bytes(self) -> int:
        """Shared memory of a CTA that the kernel itself declares."""
        return self._program.binder.static_shared_end - SHARED_START

    @property
    def toolchain(self) -> str:
        """Compiler and version."""
        return self._artifact.toolchain

    def run(self, recipe: Launch, buffers: Buffers, chip: Chip) -> CountedRun:
        """Run a whole launch, and count it.

        Parameters
        ----------
        recipe : Launch
            The launch.
        buffers : mapping of str to ndarray
            For each operand its memory: what the recipe's extents and strides span.
        chip : Chip
            The chip whose L1 caches are modelled.
        """
        counter, footprint, waits = Counter(with_caches=True, chip=chip), Footprint(), Waits()
        launch(self._artifact, recipe, buffers, options=Options(), observers=(counter, footprint, waits))
        counts, code = counter.counts, self._program.kernel.instructions
        flop: dict[str, int] = {}
        for instruction, row in zip(code, counts.instructions, strict=True):
            if (done := round(row.threads * flop_of_lane(instruction))) > 0:
                flop[class_of(instruction)] = flop.get(class_of(instruction), 0) + done
        operands = tuple("/".join(sorted(footprint.operands.get(item.index, ()))) for item in code)
        return CountedRun(tuple(counts.instructions), operands, flop, counts.bytes_by_level["l2"], tuple(waits.rounds))

    def shared_bytes(self, recipe: Launch, buffers: Buffers, ctas: range) -> dict[int, int]:
        """Run some CTAs of a launch; return the bytes that they read by the number of CTAs that read them."""
        footprint = Footprint()
        launch(self._artifact, recipe, buffers, options=Options(), observers=(footprint,), ctas=ctas)
        return footprint.shared_bytes()

    def events(self, recipe: Launch, buffers: Buffers) -> list[PipelineEvent]:
        """Run a whole launch of few CTAs; return the events of each warp in order, with what they waited for."""
        pipeline = Pipeline()
        launch(self._artifact, recipe, buffers, options=Options(), observers=(pipeline,))
        return pipeline.events
