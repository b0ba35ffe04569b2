"""The public function for packs of compiled kernels."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gemmule.core.errors import ArgumentError, CompileError, FileFormatError, shown

if TYPE_CHECKING:
    from gemmule.compiler.pack import Pack


#: Name of the table of tuned configurations in a pack.
TUNED = "tuned.json"


def load_pack(path: str | os.PathLike[str]) -> Pack:
    """Let this process take compiled kernels from a pack, so that they need no compiler, and its tuned configurations.

    Kernels are looked for in this process, in the user's cache, in packs, the one that was loaded last first, then in
    the pack that the environment variable ``GEMMULE_PACK`` names, and in installed ones. Only what is in none of them
    is compiled; without a compiler the best packed kernel runs instead. Tuned configurations are looked for in the
    user's table first, then in packs, then in what gemmule has of its own.

    Parameters
    ----------
    path : str or path
        A file that ``gemmule pack`` wrote.

    Returns
    -------
    Pack
        Its content: `kernels`, `tables` and the `toolchain` that wrote it.

    Raises
    ------
    ArgumentError
        If `path` is no path.
    FileFormatError
        If it is no pack, or a damaged one.
    FileAccessError
        If it cannot be opened: also a FileNotFoundError or PermissionError where it is one.

    Examples
    --------
    >>> import gemmule as gm
    >>> gm.load_pack("h100.pack")  # doctest: +SKIP
    Pack(path=PosixPath('/data/h100.pack'), toolchain='nvidia-cutlass-dsl 4.8.1', kernels=(...), tables=())
    """
    from gemmule.compiler.pack import PACKS, read_pack
    from gemmule.compiler.toolchain import compiler_installed
    from gemmule.dispatch.choices.choice_cache import clear_choices
    from gemmule.files.file_errors import errors_name

    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"path={shown(path)} is not a path; give the name of a file that `gemmule pack` wrote")
    with errors_name(os.fspath(path)):
        pack = read_pack(Path(path).absolute())
    _take_table(pack)
    PACKS.load(pack)
    if not compiler_installed():
        # The choice depends on what is packed.
        clear_choices()
    return pack


def take_table_of_named_pack() -> None:
    """Take the tuned configurations of the pack that ``GEMMULE_PACK`` names, once in a process.

    Raises
    ------
    FileFormatError
        If it names no pack, or the table is damaged.
    """
    if name := os.environ.get("GEMMULE_PACK"):
        _take_named(name)


@functools.cache
def _take_named(name: str) -> None:
    from gemmule.compiler.pack import PACKS

    del name
    named = PACKS.named()
    if named is not None:
        _take_table(named)


def _take_table(pack: Pack) -> None:
    from gemmule.dispatch.choices.choice_cache import clear_choices
    from gemmule.dispatch.tuned_file import tuned_entries
    from gemmule.dispatch.tuned_table import add_packed

    try:
        table = pack.table(TUNED)
    except CompileError as error:
        raise FileFormatError(str(error)) from error
    if table is not None:
        add_packed(f"the pack {pack.path}", tuned_entries(table, f"{TUNED} in the pack {pack.path}"))
        # Choices made before may differ now.
        clear_choices()
