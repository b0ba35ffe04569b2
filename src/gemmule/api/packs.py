"""The public function for packs of compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gemmule.core.errors import FileFormatError

if TYPE_CHECKING:
    from gemmule.compiler.pack import Pack


def load_pack(path: str | os.PathLike[str]) -> Pack:
    """Let this process take compiled kernels from a pack, so that they need no compiler.

    Kernels are looked for in this process, in the user's cache, in packs, the one that was loaded last first, and then
    in the pack that the environment variable ``GEMMULE_PACK`` names. Only what is in none of them is compiled.

    Parameters
    ----------
    path : str or path
        A file that ``gemmule pack`` wrote.

    Returns
    -------
    Pack
        What it holds: `kernels`, `tables` and the `toolchain` that it was made with.

    Raises
    ------
    FileFormatError
        If it is no pack, a damaged one, or cannot be opened.

    Examples
    --------
    >>> import gemmule as gm
    >>> gm.load_pack("h100.pack")  # doctest: +SKIP
    Pack(path=PosixPath('/data/h100.pack'), toolchain='nvidia-cutlass-dsl 4.8.1', kernels=(...), tables=())
    """
    from gemmule.compiler.pack import PACKS, read_pack

    try:
        pack = read_pack(Path(path).absolute())
    except OSError as error:
        raise FileFormatError(f"the pack {os.fspath(path)!r} cannot be opened: {error.strerror}") from error
    PACKS.load(pack)
    return pack
