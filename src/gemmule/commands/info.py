"""``gemmule info``: GPUs, executors, kernels and files of this installation."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from .json_output import echo_json, json_option
from .tables import print_table

if TYPE_CHECKING:
    from ..compiler.cache import CacheContent

_NO_COMPILER = "not installed (pip install 'gemmule[compiler]'); only cached and packed kernels run"
_OPERATIONS = {"gemm": "products", "grouped": "grouped products", "transpose": "transposes"}


@click.command(
    "info",
    epilog="\b\nExamples: gemmule info\n          gemmule info --kernels",
)
@click.option("--kernels", is_flag=True, help="List all kernels, in the order of choice, with their limits.")
@click.option("--clear-cache", is_flag=True, help="Delete the compiled kernels from the disk.")
@json_option
@click.pass_obj
def info_command(
    importing: Callable[[], contextlib.AbstractContextManager[None]],
    *,
    kernels: bool,
    clear_cache: bool,
    as_json: bool,
) -> None:
    """Show GPUs, executors, compiler, cache and tuned files of this installation."""
    from ..compiler import cache

    cleared = cache.clear_cache() if clear_cache else None
    # Most of it is imports, and nothing is written; what was deleted is not called nothing.
    with contextlib.nullcontext() if clear_cache else importing():
        found = _found(cache.cache_content())
    if as_json:
        echo_json(found | ({"cleared": _cache(cleared)} if cleared else {}))
        return
    if cleared:
        click.echo(f"deleted {cleared.kernels} compiled kernels, {cleared.bytes} bytes, from {cleared.folder}")
    if kernels:
        _print_kernels(found["kernels"])
    else:
        _print(found)


def _cache(content: CacheContent) -> dict[str, Any]:
    return {"folder": str(content.folder), "kernels": content.kernels, "bytes": content.bytes}


def _packs() -> list[dict[str, Any]]:
    """Return the packs of compiled kernels: that of the environment variable, and installed ones."""
    from ..compiler.pack import PACKS, VARIABLE
    from ..core.errors import FileFormatError

    packs, unreadable = PACKS.installed(), []
    try:
        packs = [*filter(None, [PACKS.named()]), *packs]
    except FileFormatError as error:
        # Printed as part of the report, not an error of the command.
        unreadable = [{"file": os.environ[VARIABLE], "origin": "", "kernels": 0, "unreadable": str(error)}]
    found = [{"file": str(pack.path), "origin": pack.origin, "kernels": len(pack.kernels)} for pack in packs]
    return [*unreadable, *found]


def _tuned() -> dict[str, Any]:
    """Return the file of tuned configurations, and the number of products in it and in the shipped ones."""
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
        # Printed as part of the report, not an error of the command.
        return {"file": str(user), "products": 0, "unreadable": str(error), "shipped": shipped}


def _rates(devices: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the file of measured rates, the number of GPUs in it, and the source of the rates of each GPU."""
    from ..core.errors import FileFormatError
    from ..dispatch.rates_file import read_rates
    from ..dispatch.rates_table import known_rates, rates_file
    from ..kernels.hopper.gemm.spec import SPEC

    file = rates_file()
    count, unreadable = 0, {}
    try:
        count = len(read_rates(file))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (FileFormatError, OSError) as error:
        # Printed as part of the report, not an error of the command.
        unreadable = {"unreadable": str(error)}
    measurable = {arch.capability for arch in SPEC.archs}
    taken = {
        str(one["ordinal"]): known_rates(one["name"], one["multiprocessors"]).source
        if tuple(one["capability"]) in measurable
        else "those of an H200: a GPU before or after Hopper cannot be calibrated"
        for one in devices
    }
    return {"file": str(file), "gpus": count, **unreadable, "devices": taken}


def _executor() -> str | None:
    """Return what ``GEMMULE_EXECUTOR`` names, or what is wrong with it; None where it is not set."""
    from ..api.planning.choice import wanted_executor
    from ..core.errors import ArgumentError

    try:
        return wanted_executor(None)
    except ArgumentError as error:
        return str(error)


def _virtual() -> str:
    """Return the name of the virtual GPU, and the library that computes its arithmetic."""
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
    from .. import __version__
    from ..compiler.toolchain import compiler_installed, toolchain
    from ..core.errors import UnsupportedError
    from ..dispatch.registry import EVERY_KERNEL
    from ..host.tiles import HostTileExecutor
    from ..runtime.device import device_count, get_device

    devices = []
    for device in map(get_device, range(device_count())):
        try:
            arch = str(device.arch)
        except UnsupportedError as error:
            arch = str(error)
        devices.append(dataclasses.asdict(device) | {"arch": arch})
    compiler = toolchain() if compiler_installed() else None
    return {
        "gemmule": __version__,
        "devices": devices,
        "executor": _executor(),
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
                "config_list": [config.as_dict() for config in spec.configs],
            }
            for spec in EVERY_KERNEL
        ],
        "cache": _cache(content),
        "packs": _packs(),
        "tuned": _tuned(),
        "rates": _rates(devices),
    }


def _print(found: dict[str, Any]) -> None:
    """Print a line on each part, first the executor of a large product."""
    executors, rates, tuned, cache = found["executors"], found["rates"], found["tuned"], found["cache"]
    click.echo(f"gemmule {found['gemmule']}: {_verdict(found['devices'], executors, found['executor'])}")
    for text, ordinals in _gpus(found["devices"], rates["devices"]).items():
        click.echo(f"GPU {', '.join(ordinals)}: {text}")
    click.echo(f"cpu: {executors['cpu']}")
    click.echo(f"vgpu: {executors['vgpu']}")
    click.echo(f"compiler: {found['compiler'] or _NO_COMPILER}")
    counts = {name: sum(one["operation"] == name for one in found["kernels"]) for name in _OPERATIONS}
    click.echo(
        "kernels: "
        + ", ".join(f"{count} for {_OPERATIONS[name]}" for name, count in counts.items())
        + "; `gemmule info --kernels` lists them"
    )
    packs = "".join(f"; {_pack(one)}" for one in found["packs"])
    click.echo(
        f"cache: {cache['kernels']} compiled kernels, {cache['bytes'] / 2**20:.1f} MiB, in {cache['folder']}{packs}"
    )
    shipped = ", ".join(f"{count} products for {chip}" for chip, count in tuned["shipped"].items())
    click.echo(f"tuned: {tuned['products']} products in {_file(tuned)}; shipped: {shipped or 'none'}")
    click.echo(f"rates: {rates['gpus']} GPUs in {_file(rates)}; shipped: H100 SXM, H200 SXM")


def _pack(found: dict[str, Any]) -> str:
    """Return the number of a pack's kernels and its source, or why it cannot be read."""
    return str(found.get("unreadable") or f"{found['kernels']} in {found['origin'] or found['file']}")


def _file(found: dict[str, Any]) -> str:
    """Return the name of a file, followed by the error of one that cannot be read."""
    error = f" ({found['unreadable']})" if "unreadable" in found else ""
    return f"{found['file']}{error}"


def _verdict(devices: list[dict[str, Any]], executors: dict[str, str], executor: str | None) -> str:
    """Return where large products run: by GEMMULE_EXECUTOR, which may name no executor, or on what there is."""
    if executor is not None:
        if executor not in executors:
            return "no NVIDIA GPU found, and GEMMULE_EXECUTOR='gpu' is set" if executor == "gpu" else executor
        return f"GEMMULE_EXECUTOR={executor!r} is set; products run on {executors[executor]}"
    if not devices:
        return "no NVIDIA GPU found; products run on the CPU"
    count = f"{len(devices)} GPUs" if len(devices) > 1 else "one GPU"
    return f"{count}; products run on {executors['gpu']}"


def _gpus(devices: list[dict[str, Any]], rates: dict[str, str]) -> dict[str, list[str]]:
    """Return the ordinals of GPUs by their description: those of one kind share a line."""
    found: dict[str, list[str]] = {}
    for device in devices:
        major, minor = device["capability"]
        text = (
            f"{device['name']}, compute capability {major}.{minor} ({device['arch']}), {device['multiprocessors']} "
            f"SMs, {device['memory_bytes'] / 2**30:.1f} GiB; rates: {rates[str(device['ordinal'])]}"
        )
        found.setdefault(text, []).append(str(device["ordinal"]))
    return found


def _print_kernels(kernels: list[dict[str, Any]]) -> None:
    """Print a table of the kernels of each operation."""
    for operation, noun in _OPERATIONS.items():
        # Architectures lose their common prefix, which would widen the table by nine columns.
        rows = [
            [one["name"], ", ".join(one["architectures"]).replace("sm_", ""), one["summary"], str(one["configs"])]
            for one in kernels
            if one["operation"] == operation
        ]
        print_table(f"{len(rows)} kernels for {noun}", ["kernel", "sm_", "problems: method", "configs"], rows, texts=3)
