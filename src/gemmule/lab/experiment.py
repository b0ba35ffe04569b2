"""The experiment block: on what, with what and by which command figures were measured."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

_PACKAGES = (
    "numpy",
    "ml_dtypes",
    "nvidia-cutlass-dsl",
    "cuda-bindings",
    "cuda-core",
    "nvmath-python",
    "nvidia-cublas",
    "torch",
    "cupy-cuda13x",
    "jax",
)
_GPU_FIELDS = {
    "gpu": "name",
    "driver": "driver_version",
    "power_limit_w": "power.limit",
    "sm_clock_mhz": "clocks.sm",
    "sm_clock_max_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
}


def experiment(command: str, gpu: str | None = None) -> dict[str, Any]:
    """Return the experiment block of a record file.

    Parameters
    ----------
    command : str
        Command that ran.
    gpu : str, optional
        PCI bus id of the GPU that it ran on.

    Returns
    -------
    dict
        ``record``, ``date`` (UTC), ``command``, ``commit``, machine and packages; what cannot be told is absent.
    """
    block: dict[str, Any] = {
        "record": "experiment",
        "date": dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S"),
        "command": command,
        "commit": _commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "packages": _packages(),
    }
    return {name: value for name, value in (block | (_gpu(gpu) if gpu else {})).items() if value is not None}


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """Return the source's commit: ``$GEMMULE_COMMIT`` where the sources travel without their history, else git's."""
    if commit := os.environ.get("GEMMULE_COMMIT"):
        return commit
    git = shutil.which("git")
    if git is None:
        return None

    def ask(*arguments: str) -> str:
        command = [git, "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    # An installed copy may be inside somebody else's repository.
    if not ask("ls-files", Path(__file__).name):
        return None
    return ask("describe", "--always", "--dirty", "--abbrev=10") or None


def _gpu(bus_id: str) -> dict[str, Any]:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return {}
    query = [smi, f"--id={bus_id}", f"--query-gpu={','.join(_GPU_FIELDS.values())}", "--format=csv,noheader,nounits"]
    found = subprocess.run(query, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return {}
    values = [value.strip() for value in found.stdout.strip().split(",")]
    return {
        name: float(value) if name not in ("gpu", "driver") else value
        for name, value in zip(_GPU_FIELDS, values, strict=True)
        if not value.startswith("[")
    }
