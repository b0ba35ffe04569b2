"""The GPU that a command measures on, and cuBLASLt as its baseline."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..core.chip import Chip
from ..core.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from ..lab.device import Baseline
    from ..runtime.bench import BenchGpu

# Environment variables that silently change cuBLAS's arithmetic, to TF32 or to fewer bits.
_OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_", "CUBLAS_EMULATION_")
# Commands that run without a GPU.
_WITHOUT = "`gemmule bench show FILE` prints recorded figures, and `gemmule compare M N K` times the CPU"


@contextlib.contextmanager
def open_gpu(
    *, baseline: bool, required: bool = True, without: str = _WITHOUT
) -> Iterator[tuple[BenchGpu, Baseline | None]]:
    """Open the first GPU, and cuBLASLt on it where it is wanted.

    Parameters
    ----------
    baseline : bool
        Whether cuBLASLt is wanted.
    required : bool
        Whether a missing cuBLASLt is an error; else a line on stderr.
    without : str
        Command that the user can run without a GPU.

    Raises
    ------
    UnsupportedError
        If no GPU is found, or no cuBLASLt though it is required, or if a variable changes how cuBLAS computes.
    """
    from ..runtime.bench import bench_gpu

    check_gpu(without)
    if baseline:
        refuse_overrides(os.environ)
    with contextlib.ExitStack() as stack:
        gpu = stack.enter_context(bench_gpu())
        library = None
        if baseline:
            try:
                library = stack.enter_context(gpu.cublaslt())
            except UnsupportedError as error:
                if required:
                    raise
                click.echo(str(error), err=True)
        yield gpu, library


def check_gpu(without: str) -> None:
    """Raise UnsupportedError if there is no GPU; `without` is what the user can run on this machine."""
    from ..runtime.device import device_count

    if device_count() == 0:
        raise UnsupportedError(f"no NVIDIA GPU found; without one, {without}")


def refuse_overrides(environment: Mapping[str, str]) -> None:
    """Raise UnsupportedError if a variable changes how cuBLAS computes: it would be no baseline."""
    if found := sorted(name for name in environment if name.startswith(_OVERRIDES)):
        raise UnsupportedError(
            f"{', '.join(found)} may change how cuBLAS computes, so it is no baseline; unset the variable, or "
            "measure without cuBLAS: --no-baseline"
        )


def failure_of(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the message on kernels that are wrong or do not run; None if all are right."""
    wrong = [one for one in records if one["record"] == "check"]
    failed = [one for one in records if one["record"] == "failed"]
    if not wrong and not failed:
        return None
    first = (wrong or failed)[0]
    how = "is wrong and was not timed" if wrong else "failed and was not timed"
    more = []
    for others, adjective in ((wrong, "wrong"), (failed, "failed")):
        if count := sum(one is not first for one in others):
            verb = ("is " if count == 1 else "are ") if adjective == "wrong" else ""
            more.append(f"; {count} more {verb}{adjective}")
    return f"{first['what']} {how}: {first['reason']}{''.join(more)}"


def known_chip(name: str) -> Chip | None:
    """Return the facts of the chip of that name; None where the table lacks it."""
    from ..core.chips import chip_named

    try:
        return chip_named(name)
    except ArgumentError:
        return None
