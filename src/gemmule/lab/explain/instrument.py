"""What counts a compiled kernel, as this package sees it: the virtual GPU has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from gemmule.core.arch import Arch
from gemmule.core.chips import Chip
from gemmule.core.launch import Launch
from gemmule.core.spec import Config, KernelSpec, Signature

Buffers = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


class Row(Protocol):
    """What one instruction did; the names are those of the virtual GPU's counts."""

    @property
    def source(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def warps(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def sectors(self) -> int: ...
    @property
    def ideal_sectors(self) -> int: ...
    @property
    def lines(self) -> int: ...
    @property
    def wavefronts(self) -> int: ...
    @property
    def ideal_wavefronts(self) -> int: ...


class Run(Protocol):
    """What was counted in one launch."""

    @property
    def instructions(self) -> Sequence[Row]: ...
    @property
    def operands(self) -> Sequence[str]: ...
    @property
    def flop_by_class(self) -> Mapping[str, int]: ...
    @property
    def l2_bytes(self) -> int: ...
    @property
    def rounds(self) -> Sequence[int]: ...


class Counted(Protocol):
    """A compiled kernel that can be counted."""

    @property
    def registers(self) -> int: ...
    @property
    def spill_bytes(self) -> int: ...
    @property
    def static_shared_bytes(self) -> int: ...
    @property
    def toolchain(self) -> str: ...

    def run(self, recipe: Launch, buffers: Buffers, chip: Chip) -> Run:
        """Run a whole launch, and count it."""
        ...

    def shared_bytes(self, recipe: Launch, buffers: Buffers, ctas: range) -> Mapping[int, int]:
        """Run some CTAs; return the bytes that they read by the number of CTAs that read them."""
        ...


#: Compiles a kernel for an architecture, so that it can be counted.
Compile = Callable[[KernelSpec, Config, Signature, Arch], Counted]
