"""Names of matrices on the command line: ``A.npy``, ``data.h5::/group/x``, ``store.zarr::x``."""

from __future__ import annotations

import os

from gemmule.core.dataclass import dataclass

from ...core.errors import ArgumentError

#: Between the file and the place of a matrix in it.
SEPARATOR = "::"
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HDF5_ENDINGS = (".h5", ".hdf5", ".hdf", ".he5", ".nc", ".nc4")
_ZARR_ENDING = ".zarr"
_ZARR_METADATA = ("zarr.json", ".zarray", ".zgroup")


@dataclass(frozen=True)
class MatrixUri:
    """A file or folder, and the place of a matrix in it."""

    path: str  #: File or folder.
    inner: str | None  #: Place in it, without slashes around it; None where none is named.

    @classmethod
    def parse(cls, text: str) -> MatrixUri:
        """Split a name at its last ``::``, unless it is that of a file.

        Raises
        ------
        ArgumentError
            If a side of the ``::`` is empty.
        """
        path, separator, inner = text.rpartition(SEPARATOR)
        if not separator or os.path.exists(text):
            return cls(text, None)
        inner = inner.strip("/")
        if not path or not inner:
            raise ArgumentError(
                f"{text}: names no matrix in a file; write the file, {SEPARATOR} and the place in it, as in "
                f"data.h5{SEPARATOR}/group/x or store.zarr{SEPARATOR}x"
            )
        return cls(path, inner)

    def __str__(self) -> str:
        return self.path if self.inner is None else f"{self.path}{SEPARATOR}{self.inner}"

    def kind(self) -> str:
        """Return ``zarr``, ``hdf5`` or ``npy``: by what is there, or by the ending where nothing is."""
        if os.path.isdir(self.path):
            is_zarr = self.path.rstrip(os.sep).endswith(_ZARR_ENDING) or any(
                os.path.exists(os.path.join(self.path, name)) for name in _ZARR_METADATA
            )
            return "zarr" if is_zarr else "npy"
        if os.path.isfile(self.path):
            return "hdf5" if _has_hdf5_signature(self.path) else "npy"
        if self.path.rstrip(os.sep).endswith(_ZARR_ENDING):
            return "zarr"
        return "hdf5" if self.path.lower().endswith(_HDF5_ENDINGS) else "npy"


def _has_hdf5_signature(path: str) -> bool:
    """Return whether a file is HDF5: its signature stands at its start, or after a block of the user's."""
    with open(path, "rb") as file:
        offset = 0
        while raw := file.read(len(_HDF5_SIGNATURE)):
            if raw == _HDF5_SIGNATURE:
                return True
            offset = offset * 2 or 512
            file.seek(offset)
    return False
