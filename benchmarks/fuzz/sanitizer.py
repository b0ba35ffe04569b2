"""compute-sanitizer over kernels, with records: ``python benchmarks/fuzz/sanitizer.py --out results``.

Runs two small problems of each kernel, in the first config that takes them, under memcheck, racecheck, initcheck and
synccheck (`tests/gpu/memcheck.py`, whose buffers end where the arrays end), many processes at a time. All is compiled
before, in processes beside each other. A planted fault must be found, and a check that did not finish is recorded as
skipped. Needs an NVIDIA GPU, compute-sanitizer and the compiler.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gemmule.dispatch.registry import REGISTRY

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: Without a record of it so far.
KERNELS = (
    *("mma_sync_", "hopper_", "bf16x6_", "ozaki_", "simt_syrk", "float64_syrk"),
    *("transpose_in_registers", "transpose_gathered", "transpose_word_aligned", "transpose_skinny"),
)
#: What a tool prints at the end where it found nothing.
CLEAN = {"racecheck": "0 hazards displayed (0 errors, 0 warnings)"}
_REPORTED = 1500


@dataclasses.dataclass(frozen=True)
class Run:
    """A process that ran kernels; `code` is None where the time was over."""

    code: int | None
    text: str
    seconds: float

    @property
    def kernel_runs(self) -> int:
        """Kernel runs that were completed and right."""
        found = re.search(r"^(\d+) kernel runs$", self.text, re.MULTILINE)
        return int(found[1]) if found else 0


def run(command: list[str], arguments: list[str], seconds: float) -> Run:
    """Run tests/gpu/memcheck.py behind a command."""
    tests = ROOT / "tests"
    path = os.pathsep.join([str(tests), *sys.path])
    began = time.time()
    whole = [*command, sys.executable, str(tests / "gpu" / "memcheck.py"), *arguments]
    try:
        found = subprocess.run(
            whole, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            check=False, timeout=max(seconds, 1), text=True, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        text = output if isinstance(output, str) else output.decode(errors="replace")
        return Run(None, text, time.time() - began)
    return Run(found.returncode, found.stdout, time.time() - began)


def record_of(tool: str, kernel: str, found: Run) -> dict[str, Any]:
    """Return the record of a tool and a kernel."""
    clean = CLEAN.get(tool, "ERROR SUMMARY: 0 errors") in found.text
    passed = found.code == 0 and clean and found.kernel_runs > 0
    record: dict[str, Any] = {
        "record": "check", "what": f"{tool} {kernel}", "passed": int(passed),
        "failed": int(not passed and found.code is not None), "skipped": int(found.code is None),
        "kernel_runs": found.kernel_runs, "seconds": round(found.seconds, 1),
    }  # fmt: skip
    return record if passed else record | {"report": report_of(found)}


def report_of(found: Run) -> str:
    """Return the first report of a tool, and the end of what was printed."""
    first = found.text.find("=========", found.text.find("COMPUTE-SANITIZER") + 20)
    return found.text[max(first, 0) :][:_REPORTED] + "\n...\n" + found.text[-_REPORTED // 2 :]


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", default=KERNELS, help="what names of kernels begin with")
    parser.add_argument("--tools", nargs="+", default=TOOLS, choices=TOOLS)
    parser.add_argument("--runs", type=int, default=2, help="kernel runs of each kernel")
    parser.add_argument("--workers", type=int, default=14, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=150, help="time for all of it; checks that last longer end")
    parser.add_argument("--out", type=Path, help="folder for the record file")
    return parser.parse_args()


def main() -> None:
    """Run the tools, and write the records."""
    given, began = options(), time.time()
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        sys.exit("compute-sanitizer is not installed; install the CUDA toolkit, or put the tool on PATH")
    names = [spec.name for spec in REGISTRY if spec.name.startswith(tuple(given.kernels))]
    records = []
    with ThreadPoolExecutor(given.workers) as threads:

        def left() -> float:
            return given.seconds - (time.time() - began)

        def plain(name: str) -> Run:
            return run([], [name, "--runs", str(given.runs)], left())

        for name, found in zip(names, threads.map(plain, names), strict=True):
            if found.code != 0:
                print(f"without a tool: {name}: exit code {found.code}\n{found.text[-_REPORTED:]}", flush=True)
        print(f"{time.time() - began:.0f} s: {len(names)} kernels compiled and run without a tool", flush=True)

        def tooled(job: tuple[str, str]) -> dict[str, Any]:
            tool, name = job
            own = [name, "--runs", str(given.runs)] if name else ["g01", "--plant", "--runs", "1"]
            command = [sanitizer, "--tool", tool, "--error-exitcode", "9"]
            found = run(command, own, left())
            if name:
                return record_of(tool, name, found)
            seen = found.code not in (0, None) and "Invalid __global__" in found.text
            return {
                "record": "check", "what": "memcheck of a planted fault", "passed": int(seen), "failed": int(not seen),
                "skipped": 0, "seconds": round(found.seconds, 1),
            }  # fmt: skip

        # Racecheck takes longest.
        ordered = sorted(given.tools, key=lambda tool: tool != "racecheck")
        jobs = [("memcheck", ""), *((tool, name) for tool in ordered for name in names)]
        for record in threads.map(tooled, jobs):
            verdict = next(word for word in ("passed", "failed", "skipped") if record[word])
            print(f"{record['what']}: {verdict}, {record['seconds']} s", flush=True)
            if "report" in record:
                print(record["report"], flush=True)
            records.append(record)
    bad = sum(record["failed"] for record in records)
    print(f"{len(records)} checks in {time.time() - began:.0f} s, {bad} failed")
    if given.out is not None:
        from gemmule.lab.experiment import experiment
        from gemmule.lab.records import write_records
        from gemmule.runtime.device import get_device

        command = f"python benchmarks/fuzz/sanitizer.py {' '.join(given.kernels)} --runs {given.runs}"
        print(write_records(given.out, experiment(command, get_device().pci_bus_id), records))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
