"""``gemmule pack``: the compiled kernels of the cache, in one file."""

from __future__ import annotations

from pathlib import Path

import click

from .json_output import echo_json, json_option


@click.command(
    "pack",
    epilog="Example: gemmule pack h100.pack --arch sm_90a --kernels hopper_gemm",
)
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--arch", metavar="ARCH", help="Architecture, e.g. sm_90a. Default: all in the cache.")
@click.option(
    "--kernels", metavar="NAMES",
    help="Kernel names separated by commas; an emulation's further kernels are added. Default: all in the cache.",
)  # fmt: skip
@click.option(
    "--table", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Tuned configs to pack. Default: the user's file, if it exists; `gemmule tune --where` prints its name.",
)  # fmt: skip
@json_option
def pack_command(*, out: Path, arch: str | None, kernels: str | None, table: Path | None, as_json: bool) -> None:
    """Pack the cached kernels and tuned configs into OUT, for machines without a compiler.

    GEMMULE_PACK=OUT or gemmule.load_pack("OUT") loads the pack there. It has only kernels that this version of gemmule
    uses: first run your products once, or run `gemmule tune`.
    """
    from ..compiler.cache import cache_folder, cached_kernels
    from ..compiler.pack import write_pack
    from ..core.arch import Arch
    from ..core.errors import ArgumentError
    from ..dispatch.compiled_kernels import COMPILED_KERNELS, with_followers
    from ..dispatch.kernel_names import unknown_kernel
    from ..files.regular_file import check_replaceable

    names = list(COMPILED_KERNELS) if kernels is None else [name.strip() for name in kernels.split(",")]
    for name in names:
        if name not in COMPILED_KERNELS:
            raise unknown_kernel(name, COMPILED_KERNELS)
    check_replaceable(out)
    folder = cache_folder()
    wanted = Arch.parse(arch) if arch is not None else None
    specs, followed = with_followers({name: COMPILED_KERNELS[name] for name in names})
    found = list(cached_kernels(folder, specs, wanted))
    if not found:
        # A key is the kernel's name, the architecture and a digest.
        others = sorted({key.split("-")[1] for key, _ in cached_kernels(folder, specs)}) if arch else ()
        remedy = (
            f"it has kernels for {' and '.join(others)}"
            if others
            else "run the kernels once, or set GEMMULE_CACHE to another folder"
        )
        raise ArgumentError(
            f"the cache {folder} has no compiled kernel{f' for {arch}' if arch else ''}"
            f"{f' of {kernels}' if kernels else ''}; {remedy}"
        )
    pack = write_pack(out, found, tables(table))
    size = out.stat().st_size
    if followed and all(COMPILED_KERNELS[name].next_kernel is not None for name in names):
        one = len(followed) == 1
        needs = "needs the kernels that its plan lists" if one else "need the kernels that their plans list"
        missing = f"{' and '.join(followed)} {needs} under `followed by:`; add them to --kernels, or leave it out"
        click.echo(f"gemmule: {missing}", err=True)
    if as_json:
        echo_json({"pack": str(out), "kernels": list(pack.kernels), "tables": list(pack.tables), "bytes": size})
    else:
        from ..outofcore.tiles.memory_budget import format_bytes

        tuned = ", tuned configurations" if pack.tables else ""
        kernels = f"{len(pack.kernels)} compiled kernel{'s' if len(pack.kernels) != 1 else ''}"
        click.echo(f"{out}: {kernels}{tuned}, {format_bytes(size)}")


def tables(table: Path | None) -> dict[str, bytes]:
    """Return the tuned configurations that go into a pack: of a file, or the user's, if there are any.

    Raises
    ------
    FileFormatError
        If the file holds no such thing.
    FileAccessError
        If it cannot be read.
    """
    from ..api.packs import TUNED
    from ..core.errors import FileFormatError
    from ..dispatch.tuned_file import tuned_entries
    from ..dispatch.tuned_table import user_file
    from ..files.file_errors import errors_name
    from ..files.regular_file import check_regular

    path = user_file() if table is None else table
    if table is None and not path.exists():
        return {}
    with errors_name(str(path)):
        check_regular(path, "a file of tuned configurations")
        content = path.read_bytes()
    try:
        tuned_entries(content, str(path))
    except FileFormatError as error:
        raise FileFormatError(f"{error}; name one that gemmule tune wrote") from error
    return {TUNED: content}
