"""The place of a result, before it is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..journal.journaled_sink import UnfinishedSink
from .matrix import AnyDType, MatrixSource


class Target(Protocol):
    """The place of a result, before it is opened."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def block_shape(self) -> tuple[int, int]:
        """Rows and columns that are written as a whole."""

    @property
    def scratch_bytes(self) -> int:
        """Most bytes of memory that one write takes besides the tile."""

    @property
    def journal(self) -> str:
        """File of the journal."""

    @property
    def temporary(self) -> str:
        """File or folder of the unfinished result."""

    def check(self, force: bool, inputs: Sequence[MatrixSource]) -> None:
        """Refuse a place that may not be written."""

    def describe(self) -> dict[str, Any]:
        """Return how the result is stored, in values that JSON has."""

    def check_temporary(self) -> None:
        """Refuse what has the name of the temporary file, or folder, and is not ours."""

    def unfinished(self) -> bool:
        """Return whether work of a run before is there."""

    def open(
        self, shape: tuple[int, int], dtype: AnyDType, *, force: bool, inputs: Sequence[MatrixSource], again: bool
    ) -> UnfinishedSink:
        """Open it, with what a run before has left if `again`, else without."""

    def join(self, shape: tuple[int, int], dtype: AnyDType) -> UnfinishedSink:
        """Open what another process has opened, to write other tiles of it; only that process commits."""
