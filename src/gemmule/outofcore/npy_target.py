"""A .npy file as the place of a result, before it is opened."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

from .hidden import check_folder, check_output, hidden_path
from .matrix import AnyDType, MatrixSource
from .npy_sink import NpySink


class NpyTarget:
    """A .npy file that a product will be written to; a `Target`.

    Parameters
    ----------
    path : str or path
        Its final name.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self.grain = (1, 1)
        self.scratch_bytes = 0
        final = os.path.realpath(self.name)
        self.journal = hidden_path(final, ".journal")
        self._partial = hidden_path(final, ".partial")
        self._final = final

    def check(self, force: bool, inputs: Sequence[MatrixSource]) -> None:
        """Refuse a file that may not be written."""
        check_output(self.name, force=force, inputs=inputs)
        check_folder(self._final, self.name)

    def describe(self) -> dict[str, Any]:
        """Return how the result is stored."""
        return {"kind": "npy"}

    def unfinished(self) -> bool:
        """Return whether work of a run before is there."""
        if not os.path.exists(self._partial):
            return False
        if os.path.exists(self._final) and os.path.samefile(self._partial, self._final):
            # Killed between the two names of a finished file: it is the result, and must not be written to.
            os.unlink(self._partial)
            return False
        return True

    def open(
        self, shape: tuple[int, int], dtype: AnyDType, *, force: bool, inputs: Sequence[MatrixSource], again: bool
    ) -> NpySink:
        """Open the file, with what a run before has left if `again`, else without."""
        if not again:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._partial)
        return NpySink(self.name, shape, dtype, force=force, inputs=inputs, partial=self._partial, again=again)

    def join(self, shape: tuple[int, int], dtype: AnyDType) -> NpySink:
        """Open what another process has opened, to write other tiles of it; only that process commits."""
        return NpySink(self.name, shape, dtype, force=True, partial=self._partial, again=True)
