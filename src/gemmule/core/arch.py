"""GPU architectures, the targets of compilation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from .dtype import DType
from .errors import ArgumentError, UnsupportedError

_NAME = re.compile(r"sm_(\d+)(\d)(a?)")

#: Architectures that kernels are compiled for, oldest first.
COMPILED = (
    "sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_110a", "sm_120a", "sm_121a",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, order=True)
class Arch:
    """A GPU architecture."""

    #: major, minor: Compute capability.
    major: int
    minor: int
    specific: bool = False  #: Whether code is architecture-specific (the ``a`` of ``sm_90a``).

    @property
    def name(self) -> str:
        """Compiler's name, e.g. ``sm_90a``."""
        return f"sm_{self.major}{self.minor}{'a' if self.specific else ''}"

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability as (major, minor)."""
        return (self.major, self.minor)

    @property
    def shared_bytes_per_block(self) -> int:
        """Most bytes of shared memory of a CTA."""
        if self.capability in ((8, 0), (8, 7)):
            return 163 << 10
        return (99 << 10) if self.major in (8, 12) else (227 << 10)

    @property
    def has_float8(self) -> bool:
        """Whether it converts 8-bit floats."""
        return self.capability >= (8, 9)

    def why_not_float8(self, inputs: Iterable[DType], output: DType) -> str | None:
        """Say why inputs or an output cannot be 8-bit floats, or None."""
        for dtypes, remedy in ((inputs, "convert to float16 first"), ((output,), "give another out_dtype")):
            if not self.has_float8 and any(dtype.is_float8 for dtype in dtypes):
                return f"8-bit floats need compute capability 8.9 or newer, not {self}; {remedy}"
        return None

    @property
    def has_dependent_launches(self) -> bool:
        """Whether a grid may begin before its predecessor ends (PDL); before Hopper, launches follow one another."""
        return self.major >= 9

    @classmethod
    def parse(cls, name: str) -> Arch:
        """Return the architecture of a name such as ``sm_80`` or ``sm_90a``.

        Raises
        ------
        ArgumentError
            If the name has another form.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            raise ArgumentError(f"architecture {name!r} is unknown; give a name such as sm_80, sm_89 or sm_90a")
        return cls(int(match[1]), int(match[2]), match[3] == "a")

    @classmethod
    def for_device(cls, major: int, minor: int) -> Arch:
        """Return the architecture to compile for on a GPU of a compute capability.

        Raises
        ------
        UnsupportedError
            If there is none.
        """
        same_major = [arch for arch in map(cls.parse, COMPILED) if arch.major == major and arch.minor <= minor]
        # Architecture-specific code runs on its own minor version only.
        usable = [arch for arch in same_major if not arch.specific or arch.minor == minor]
        if not usable:
            raise UnsupportedError(
                f"a GPU of compute capability {major}.{minor} is not supported; kernels are compiled for "
                f"{', '.join(COMPILED)}; pass executor='cpu' with NumPy arrays"
            )
        return max(usable)

    def __str__(self) -> str:
        return self.name
