"""``gemmule info``: what is here, and the cache of compiled kernels."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from .json_output import echo_json, json_option

if TYPE_CHECKING:
    from ..compiler.cache import CacheContent


@click.command(
    "info", short_help="Show the GPUs, the executors, the kernels and the cache.", epilog="Example: gemmule info --json"
)
@click.option("--clear-cache", is_flag=True, help="Remove the compiled kernels from the disk.")
@json_option
def info_command(*, clear_cache: bool, as_json: bool) -> None:
    """Show the GPUs, the executors, the kernels and the cache of compiled kernels."""
    from ..compiler import cache

    cleared = cache.clear_cache() if clear_cache else None
    found = _found(cache.cache_content())
    if as_json:
        echo_json(found | ({"cleared": _cache(cleared)} if cleared else {}))
        return
    if cleared:
        click.echo(f"removed {cleared.kernels} compiled kernels, {cleared.bytes} bytes, from {cleared.folder}")
    _print(found)


def _cache(content: CacheContent) -> dict[str, Any]:
    return {"folder": str(content.folder), "kernels": content.kernels, "bytes": content.bytes}


def _tuned() -> dict[str, Any]:
    """Return where tuned configurations are, and how many."""
    from ..core.errors import FileFormatError
    from ..dispatch.tuned_file import read_tuned
    from ..dispatch.tuned_table import shipped_files, user_file

    user = user_file()
    shipped = {path.stem: len(read_tuned(path)) for path in shipped_files()}
    try:
        return {"file": str(user), "products": len(read_tuned(user)), "shipped": shipped}
    except (FileNotFoundError, NotADirectoryError):
        return {"file": str(user), "products": 0, "shipped": shipped}
    except (FileFormatError, OSError) as error:
        # It is shown, and nothing is done about it.
        return {"file": str(user), "products": 0, "unreadable": str(error), "shipped": shipped}


def _rates(devices: list[dict[str, Any]]) -> dict[str, Any]:
    """Return where rates are, of how many GPUs, and whose rates predict times on each GPU here."""
    from ..core.errors import FileFormatError
    from ..dispatch.rates_file import read_rates
    from ..dispatch.rates_table import known_rates, rates_file

    file = rates_file()
    count, unreadable = 0, {}
    try:
        count = len(read_rates(file))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (FileFormatError, OSError) as error:
        # It is shown, and nothing is done about it.
        unreadable = {"unreadable": str(error)}
    taken = {str(one["ordinal"]): known_rates(one["name"], one["multiprocessors"]).source for one in devices}
    return {"file": str(file), "gpus": count, **unreadable, "devices": taken}


def _virtual() -> str:
    """Name the virtual GPU, and what computes for it."""
    from ..core.errors import ArgumentError
    from ..vgpu.arch import device_name
    from ..vgpu.numeric.compiled import loops

    try:
        name = device_name()
    except ArgumentError as error:
        return str(error)
    by = "Numba" if loops() else "NumPy"
    return f"{name}: the GPU's kernels on the CPU, for tests and analysis; fused multiply-adds by {by}"


def _found(content: CacheContent) -> dict[str, Any]:
    import importlib.util

    from .. import __version__
    from ..compiler.toolchain import toolchain
    from ..core.errors import UnsupportedError
    from ..dispatch.registry import REGISTRY
    from ..host.tiles import HostTileExecutor
    from ..runtime.device import device_count, get_device

    devices = []
    for device in map(get_device, range(device_count())):
        try:
            arch = str(device.arch)
        except UnsupportedError as error:
            arch = str(error)
        devices.append(dataclasses.asdict(device) | {"arch": arch})
    compiler = toolchain() if importlib.util.find_spec("cutlass") else None
    return {
        "gemmule": __version__,
        "devices": devices,
        "executors": {
            **({"gpu": devices[0]["name"]} if devices else {}),
            "cpu": HostTileExecutor().describe(),
            "vgpu": _virtual(),
        },
        "compiler": compiler,
        "kernels": [
            {
                "name": spec.name,
                "operation": spec.operation,
                "summary": spec.summary,
                "architectures": [str(arch) for arch in spec.archs],
                "configs": len(spec.configs),
            }
            for spec in REGISTRY
        ],
        "cache": _cache(content),
        "tuned": _tuned(),
        "rates": _rates(devices),
    }


def _print(found: dict[str, Any]) -> None:
    click.echo(f"gemmule {found['gemmule']}")
    click.echo("GPUs:" if found["devices"] else "GPUs: none")
    for device in found["devices"]:
        major, minor = device["capability"]
        click.echo(
            f"  {device['ordinal']}: {device['name']}, compute capability {major}.{minor} ({device['arch']}), "
            f"{device['multiprocessors']} SMs, {device['memory_bytes'] / 2**30:.1f} GiB"
        )
    click.echo("executors:")
    for name, text in found["executors"].items():
        click.echo(f"  {name}: {text}")
    click.echo(f"kernel compiler: {found['compiler'] or 'not installed; cached kernels still run'}")
    click.echo("kernels:")
    for kernel in found["kernels"]:
        click.echo(f"  {kernel['name']}: {kernel['summary']} ({', '.join(kernel['architectures'])})")
    cache = found["cache"]
    click.echo(f"compiled kernels: {cache['kernels']}, {cache['bytes'] / 2**20:.1f} MiB, in {cache['folder']}")
    tuned = found["tuned"]
    shipped = ", ".join(f"{count} products for {chip}" for chip, count in tuned["shipped"].items())
    unreadable = f" ({tuned['unreadable']})" if "unreadable" in tuned else ""
    click.echo(f"tuned: {tuned['products']} products in {tuned['file']}{unreadable}; shipped: {shipped or 'none'}")
    rates = found["rates"]
    unreadable = f" ({rates['unreadable']})" if "unreadable" in rates else ""
    click.echo(f"rates: {rates['gpus']} GPUs in {rates['file']}{unreadable}; shipped: H100 SXM, H200 SXM")
    for ordinal, source in rates["devices"].items():
        click.echo(f"  {ordinal}: {source}")
