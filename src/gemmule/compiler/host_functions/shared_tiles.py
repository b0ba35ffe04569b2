"""Names of what a ``@cute.jit`` function's kernels allocate in shared memory, as their authors wrote them.

PTX has one array of dynamic shared memory, without names. The DSL packs allocations in their order, each at its
alignment.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gemmule.core.dataclass import dataclass


@dataclass(frozen=True)
class SharedTile:
    """A named part of a CTA's shared memory.

    Attributes
    ----------
    name : str
        The variable that it was assigned to, with the field of a struct.
    start, size : int
        Its first byte, from the first of the dynamic shared memory, and its bytes.
    """

    name: str
    start: int
    size: int


@dataclass(frozen=True)
class _Allocation:
    """One call of the allocator: bytes, alignment, and the named parts by their offsets."""

    size: int
    alignment: int
    parts: tuple[SharedTile, ...]


class SharedTiles:
    """Allocations of shared memory while kernels were traced, by their symbols."""

    def __init__(self) -> None:
        self._allocations: dict[str, list[_Allocation]] = {}
        self._calls: dict[tuple[str, str, int], int] = {}

    def of(self, kernel: str, shared_bytes: int) -> tuple[SharedTile, ...]:
        """Return the parts of a kernel's dynamic shared memory; none where they do not add up to its bytes."""
        end, found = 0, []
        for one in self._allocations.get(kernel, ()):
            start = -(-end // one.alignment) * one.alignment
            found += [SharedTile(part.name, start + part.start, part.size) for part in one.parts if part.name]
            end = start + one.size
        return tuple(found) if end <= shared_bytes else ()

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the calls of the DSL's allocator inside the block; it does as before."""
        try:
            from cutlass.memory import SmemAllocator
        except ImportError:
            # A version of the DSL that has it elsewhere: parts have no names.
            yield
            return
        allocate = SmemAllocator.allocate

        @functools.wraps(allocate)
        def recording(allocator: Any, size_or_type: Any, byte_alignment: int = 1, **rest: Any) -> Any:
            self._record(size_or_type, byte_alignment, sys._getframe(1))
            return allocate(allocator, size_or_type, byte_alignment, **rest)

        SmemAllocator.allocate = recording
        try:
            yield
        finally:
            SmemAllocator.allocate = allocate

    def _record(self, what: Any, alignment: int, frame: Any) -> None:
        from cutlass import cute

        size, fields = what, {"": 0}
        if isinstance(what, cute.struct):
            size, alignment = what.__sizeof__(), max(alignment, what.__alignof__())
            fields = dict(what._offsets)
        if not isinstance(size, int):
            # A type: the allocator recurses with its size.
            return
        kernel = _kernel()
        name = self._name(kernel, frame)
        ends = [*list(fields.values())[1:], size]
        parts = tuple(
            SharedTile(f"{name}.{field}" if name and field else name, start, end - start)
            for (field, start), end in zip(fields.items(), ends, strict=True)
        )
        self._allocations.setdefault(kernel, []).append(_Allocation(size, alignment, parts))

    def _name(self, kernel: str, frame: Any) -> str:
        """Return the name that the kernel's author gives to the result of a call."""
        import cutlass

        theirs = str(Path(cutlass.__file__).parent)
        while frame is not None and frame.f_code.co_filename.startswith(theirs):
            frame = frame.f_back
        if frame is None:
            return ""
        place = (kernel, frame.f_code.co_filename, frame.f_lineno)
        number = self._calls[place] = self._calls.get(place, -1) + 1
        names = _targets(*place[1:])
        return names[number % len(names)] if names else ""


def _kernel() -> str:
    """Return the symbol of the kernel that is being traced."""
    from cutlass._mlir import ir

    op = ir.InsertionPoint.current.block.owner
    while op is not None and "sym_name" not in op.attributes:
        op = op.parent
    return "" if op is None else str(op.attributes["sym_name"].value)


@functools.lru_cache(maxsize=1024)
def _targets(file: str, line: int) -> Sequence[str]:
    """Return the names that assignments at a line of a file give to allocations, in their order."""
    found: list[str] = []
    for node in ast.walk(_tree(file)):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        if node.lineno <= line <= (node.end_lineno or line) and "alloc" in ast.unparse(node.value):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found += map(ast.unparse, target.elts if isinstance(target, ast.Tuple) else [target])
    return found


@functools.lru_cache(maxsize=64)
def _tree(file: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(file)), file)
    except (SyntaxError, ValueError):
        return ast.Module([], [])
