"""A .npy file as the place of a result, before it is opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ....files.temporary_file import check_own
from ...journal.temporary_files import check_folder, check_output, hidden_path
from ..matrix import AnyDType, MatrixSource
from .npy_sink import NpySink


class NpyTarget:
    """A .npy file that a product will be written to; a `Target`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self.block_shape = (1, 1)
        self.scratch_bytes = 0
        final = os.path.realpath(self.name)
        self.journal = hidden_path(final, ".journal")
        self.temporary = hidden_path(final, ".partial")
        self._final = final

    def check(self, force: bool, inputs: Sequence[MatrixSource]) -> None:
        """Refuse a file that may not be written."""
        check_output(self.name, force=force, inputs=inputs)
        check_folder(self._final, self.name)

    def describe(self) -> dict[str, Any]:
        return {"kind": "npy"}

    def check_temporary(self) -> None:
        """Refuse a temporary file that is not ours."""
        if os.path.lexists(self.temporary) and not self._has_two_names():
            check_own(self.temporary)

    def unfinished(self) -> bool:
        self.check_temporary()
        if self._has_two_names():
            os.unlink(self.temporary)
        return os.path.lexists(self.temporary)

    def _has_two_names(self) -> bool:
        """Return whether a run was killed between the two names of a finished file: it must not be written to."""
        try:
            return os.path.samestat(os.lstat(self.temporary), os.stat(self._final))
        except OSError:
            return False

    def open(
        self, shape: tuple[int, int], dtype: AnyDType, *, force: bool, inputs: Sequence[MatrixSource], again: bool
    ) -> NpySink:
        """Open the file, with what a run before has left if `again`, else without."""
        if not again and self.unfinished():
            os.unlink(self.temporary)
        return NpySink(self.name, shape, dtype, force=force, inputs=inputs, partial=self.temporary, again=again)

    def join(self, shape: tuple[int, int], dtype: AnyDType) -> NpySink:
        return NpySink(self.name, shape, dtype, force=True, partial=self.temporary, again=True)
