"""Where the time of ``gemmule matmul A.npy B.npy -o C.npy`` goes: a table, and `overhead` records.

``python benchmarks/records/command_parts.py RESULTS_FOLDER --size 20000 --runs 2 --times 5``. Every run is a process of
its own with the page cache warm, bytecode as after an installation, and no output of that name. The first has no stored
rates (and with ``--cold`` no compiled kernels); the later ones have them; then all begins anew, so many ``--times``.
Parts of the main thread add up to the whole; what other threads do meanwhile stands apart, as ``beside``.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: What is timed, by its module: a function or a method, and the part that it counts for.
PARTS = {
    "gemmule.runtime.driver": {"driver_module": "driver"},
    "gemmule.runtime.device": {"primary_context": "context"},
    "gemmule.runtime.link_probe": {
        "link_rates": "probe: links", "product_rate": "probe: kernels", "part_seconds": "probe: kernels",
    },
    "gemmule.runtime.streams": {"GpuStreams.pinned": "pinned memory", "GpuStreams._release": "give memory back"},
    "gemmule.outofcore.device.engine.staging_probe": {"staged_by": "probe: staging"},
    "gemmule.outofcore.device.planner.disk_probe": {
        "read_rate": "probe: disk reads", "write_rate": "probe: disk writes",
    },
    "gemmule.outofcore.device.planner.budgets": {"choose_within": "plan"},
    "gemmule.outofcore.device.engine.streaming": {"_Run._prepare": "load kernels", "_Run.run": "stream"},
    "gemmule.outofcore.journal.resumption": {"open_work": "open the result"},
    "gemmule.outofcore.calls.devices": {"measured_rates": "probes, the rest"},
    "gemmule.outofcore.calls.device_engine": {"DeviceEngine.run": "run, the rest"},
    "gemmule.outofcore.calls.session": {"StreamSession.conclude": "check and commit"},
}  # fmt: skip
#: Parts in the order of the table, with those that are not functions.
NAMES = [
    "start Python", "imports", "wait for the context",
    *dict.fromkeys(part for parts in PARTS.values() for part in parts.values()), "other", "exit",
]  # fmt: skip

#: Seconds of a run, those of its parts, and those of other threads.
Run = tuple[float, dict[str, float], dict[str, float]]


class Spans:
    """Seconds of nested parts: each counts without those within it in the main thread, as a whole in others."""

    def __init__(self) -> None:
        self.main: dict[str, float] = defaultdict(float)
        self.beside: dict[str, float] = defaultdict(float)
        self._within: list[float] = []

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Return a block that counts for a part."""
        begin = time.monotonic()
        if threading.current_thread() is not threading.main_thread():
            try:
                yield
            finally:
                self.beside[name] += time.monotonic() - begin
            return
        self._within.append(0.0)
        try:
            yield
        finally:
            whole = time.monotonic() - begin
            self.main[name] += whole - self._within.pop()
            if self._within:
                self._within[-1] += whole

    def timed(self, name: str, function: Any) -> Any:
        """Return a function that counts for a part."""

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            with self.part(name):
                return function(*arguments, **options)

        return call


@contextlib.contextmanager
def observed(spans: Spans, parts: dict[str, dict[str, str]] = PARTS) -> Iterator[None]:
    """Return a block in which imports are timed, and the parts as soon as their modules are imported."""
    pending, real, importing = dict(parts), builtins.__import__, threading.local()

    def patch() -> None:
        for name in list(pending):
            module = sys.modules.get(name)
            spec = getattr(module, "__spec__", None)
            if module is None or getattr(spec, "_initializing", False):
                continue
            for path, part in pending.pop(name, {}).items():
                owner, _, attribute = path.rpartition(".")
                place = getattr(module, owner) if owner else module
                setattr(place, attribute, spans.timed(part, getattr(place, attribute)))

    def imported(*arguments: Any, **options: Any) -> Any:
        if getattr(importing, "now", False):
            found = real(*arguments, **options)
            # Before `from module import name` takes the name.
            patch()
            return found
        importing.now = True
        try:
            with spans.part("imports"):
                found = real(*arguments, **options)
                patch()
                return found
        finally:
            importing.now = False

    builtins.__import__ = imported
    join = threading.Thread.join

    def joined(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name != "gemmule-context":
            return join(thread, timeout)
        with spans.part("wait for the context"):
            return join(thread, timeout)

    threading.Thread.join = joined  # type: ignore[method-assign]
    try:
        yield
    finally:
        builtins.__import__, threading.Thread.join = real, join  # type: ignore[method-assign]


def child(report: Path, words: list[str]) -> None:
    """Run the command in this process and write what its parts took."""
    begin = time.monotonic()
    spans = Spans()
    with observed(spans):
        from gemmule_command import script as command

        sys.argv = ["gemmule", "matmul", *words]
        with contextlib.suppress(SystemExit):
            command()
    end = time.monotonic()
    spans.main["other"] = end - begin - sum(spans.main.values())
    report.write_text(json.dumps({"begin": begin, "end": end, "main": spans.main, "beside": spans.beside}))


def run(words: list[str], environment: dict[str, str]) -> Run:
    """Run the command in a process; return its seconds, those of its parts, and those of other threads."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "parts.json"
        start = time.monotonic()
        command = [sys.executable, __file__, "--child", str(report), *words]
        subprocess.run(command, check=True, env=os.environ | environment, stdout=subprocess.DEVNULL)
        whole = time.monotonic() - start
        found = json.loads(report.read_text())
    main = found["main"] | {"start Python": found["begin"] - start, "exit": start + whole - found["end"]}
    return whole, main, found["beside"]


def matrices(folder: Path, size: int, dtype: str) -> list[str]:
    """Return the names of two matrices of random numbers, which are in the page cache."""
    import numpy as np

    names = []
    for number, letter in enumerate("AB"):
        path = folder / f"{letter}-{size}-{dtype}.npy"
        if not path.exists():
            # A block of them again and again, shifted: random ones take longer than the products.
            block = np.random.default_rng(number).standard_normal((min(1024, size), size), np.float32).astype(dtype)
            made = np.lib.format.open_memmap(path, "w+", dtype, (size, size))
            for row in range(0, size, 1024):
                made[row : row + 1024] = np.roll(block[: size - row], row // 1024, axis=1)
            made.flush()
        with path.open("rb") as file:
            while file.read(1 << 26):
                pass
        names.append(str(path))
    return names


def part_seconds(name: str, runs: list[Run]) -> list[float]:
    """Return the seconds of a part in each run."""
    part = name.removeprefix("beside: ")
    return [
        whole if name == "whole" else (main if part == name else beside).get(part, 0.0) for whole, main, beside in runs
    ]


def main() -> None:
    """Measure, print the table and write the records."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--size", type=int, default=20_000)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--runs", type=int, default=2, help="the first, and those with stored rates")
    parser.add_argument("--times", type=int, default=5, help="how often that is done")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the matrices lie")
    parser.add_argument("--cold", action="store_true", help="no compiled kernels in the first run")
    parser.add_argument("--options", default="", help='further options of the command, e.g. "--device-memory 8GiB"')
    options = parser.parse_args()
    a, b = matrices(options.folder, options.size, options.dtype)
    first: list[Run] = []
    later: list[Run] = []
    with tempfile.TemporaryDirectory() as stored, tempfile.TemporaryDirectory(dir=options.folder) as folder:
        output = Path(folder) / "C.npy"
        words = [a, b, "-o", str(output), *options.options.split()]
        # The first time compiles the bytecode, and is not counted.
        for number in range(1 + options.times):
            fresh = Path(stored) / str(number)
            environment = {
                "GEMMULE_PROBES": str(fresh), "PYTHONPYCACHEPREFIX": stored, "PYTHONDONTWRITEBYTECODE": "",
            }  # fmt: skip
            if options.cold:
                environment["GEMMULE_CACHE"] = str(fresh / "kernels")
            for place in range(options.runs if number else 1):
                output.unlink(missing_ok=True)
                found = run(words, environment)
                if number:
                    (later if place else first).append(found)
    from gemmule.lab.experiment import experiment
    from gemmule.lab.records import write_records
    from gemmule.runtime.device import device_count, get_device

    facts = {"dtype": options.dtype, **dict.fromkeys("mnk", options.size)}
    records = []
    print(f"{'seconds':32}{'first':>8}{'later':>8}")
    for name in ("whole", *NAMES, *(f"beside: {name}" for name in NAMES)):
        both = {which: part_seconds(name, runs) for which, runs in (("first", first), ("later", later))}
        if not any(map(any, both.values())):
            continue
        medians = [statistics.median(samples) if samples else float("nan") for samples in both.values()]
        print(f"{name:32}{medians[0]:8.3f}{medians[1]:8.3f}")
        for which, samples in both.items():
            if samples:
                us = [round(1e6 * one, 3) for one in samples]
                made = {"record": "overhead", "path": f"command_{which}: {name}", **facts}
                records.append(made | {"host_us": statistics.median(us), "samples_us": us})
    gpu = get_device(0).pci_bus_id if device_count() else None
    block = experiment("benchmarks/records/command_parts.py " + " ".join(sys.argv[1:]), gpu)
    print(write_records(options.results, block, records))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
