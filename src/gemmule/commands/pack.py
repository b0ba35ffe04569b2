"""``gemmule pack``: the compiled kernels of the cache, in one file."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("pack", epilog="Example: gemmule pack h100.pack --arch sm_90a --kernels h09_production")
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--arch", metavar="ARCH", help="Architecture, such as sm_90a; every one in the cache by default.")
@click.option("--kernels", metavar="NAMES", help="Kernels, with commas between; all in the cache by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def pack_command(*, out: Path, arch: str | None, kernels: str | None, as_json: bool) -> None:
    """Write the compiled kernels of the cache to OUT, for machines that have no compiler.

    There, GEMMULE_PACK=OUT or gemmule.load_pack("OUT") makes them known. Only what this version of gemmule would use is
    packed: run what is needed once, or gemmule tune, and pack then.
    """
    from ..compiler.cache import cache_folder
    from ..compiler.pack import cached_kernels, write_pack
    from ..core.arch import Arch
    from ..core.errors import ArgumentError
    from ..dispatch.registry import REGISTRY

    known = {spec.name: spec for spec in REGISTRY}
    names = list(known) if kernels is None else [name.strip() for name in kernels.split(",")]
    for name in names:
        if name not in known:
            raise ArgumentError(f"--kernels: kernel {name!r} does not exist; gemmule info lists them")
    folder = cache_folder()
    wanted = Arch.parse(arch) if arch is not None else None
    found = list(cached_kernels(folder, {name: known[name] for name in names}, wanted))
    if not found:
        raise ArgumentError(
            f"the cache {folder} holds no compiled kernel{f' for {arch}' if arch else ''} of those asked for; run them "
            "once, or set GEMMULE_CACHE to another folder"
        )
    pack = write_pack(out, found)
    size = out.stat().st_size
    if as_json:
        click.echo(json.dumps({"pack": str(out), "kernels": list(pack.kernels), "bytes": size}))
    else:
        click.echo(f"{out}: {len(pack.kernels)} compiled kernels, {size / 2**20:.1f} MiB")
