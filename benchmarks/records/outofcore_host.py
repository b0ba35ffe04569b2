"""Times a streamed product of files on the host against the product in memory, and writes a record.

Both sides read their inputs from warm files, multiply, write the result to a .npy file and wait until it is on the
disk; the two results are compared. ``ratio`` counts the whole command, the start of Python and its libraries included,
``run_ratio`` its own time from the first read on; the product in memory counts once its inputs are loaded. Run it with
the size, the limit and a folder for the record:
``python benchmarks/records/outofcore_host.py 20000 20000 2000 --memory 256MiB --results benchmarks/results``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gemmule.lab.experiment import experiment
from gemmule.lab.records import write_records

IN_MEMORY = """
import os, sys, time
import numpy as np
a, b = np.load(sys.argv[1]), np.load(sys.argv[2])
start = time.perf_counter()
c = np.matmul(a, b)
with open(sys.argv[3], "wb") as file:
    np.save(file, c)
    file.flush()
    os.fdatasync(file.fileno())
print(time.perf_counter() - start)
"""


def in_memory(a: Path, b: Path, out: Path) -> float:
    """Return the seconds of numpy.matmul and a synced numpy.save in a fresh process; loading is not counted."""
    return float(_output([sys.executable, "-c", IN_MEMORY, str(a), str(b), str(out)]))


def streamed(a: Path, b: Path, out: Path, memory: str) -> tuple[float, dict[str, object]]:
    """Return the seconds of the command, from its start to its end, and what it reports."""
    command = [sys.executable, "-m", "gemmule.cli", "matmul", str(a), str(b), "-o", str(out), "--memory", memory]
    command += ["--executor", "cpu"]
    start = time.perf_counter()
    record = json.loads(_output([*command, "--json", "--force"]))
    return time.perf_counter() - start, record


def peak_of(a: Path, b: Path, out: Path, memory: str) -> int:
    """Return the peak resident bytes of the command, measured in a process whose only child it is."""
    code = f"import sys; sys.argv = {sys.argv[:1]!r}; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    code += "import resource\nfrom pathlib import Path\nfrom outofcore_host import streamed\n"
    code += f"streamed(Path({str(a)!r}), Path({str(b)!r}), Path({str(out)!r}), {memory!r})\n"
    code += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    unit = 1 if sys.platform == "darwin" else 1024
    return int(_output([sys.executable, "-c", code])) * unit


def largest_difference(a: Path, b: Path, streamed_out: Path, in_memory_out: Path) -> float:
    """Return the largest difference of the two results, in units of u (|A| |B|) with the u of their type."""
    first, second, x, y = (np.load(path, mmap_mode="r") for path in (streamed_out, in_memory_out, a, b))
    largest = 0.0
    columns = np.abs(y).astype(np.float32)
    for row in range(0, first.shape[0], 500):
        band = slice(row, row + 500)
        unit = np.finfo(first.dtype).eps / 2 * (np.abs(x[band]).astype(np.float32) @ columns)
        difference = np.abs(first[band] - second[band]) / unit
        largest = max(largest, float(difference.max()) if np.isfinite(difference).all() else float("inf"))
    return largest


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("m", type=int)
    parser.add_argument("n", type=int)
    parser.add_argument("k", type=int)
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, help="folder for the record")
    parser.add_argument("--directory", default=None, help="where the files go; default: the system's place for them")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        a, b, out, kept = (Path(name) / f"{matrix}.npy" for matrix in "ABCD")
        np.save(a, rng.standard_normal((options.m, options.k)).astype(options.dtype))
        np.save(b, rng.standard_normal((options.k, options.n)).astype(options.dtype))
        walls, runs, incores = [], [], []
        record: dict[str, object] = {}
        for repeat in range(options.repeats):
            # Taking turns: A B, B A, ...
            for side in ("stream", "incore") if repeat % 2 == 0 else ("incore", "stream"):
                out.unlink(missing_ok=True)
                os.sync()
                if side == "incore":
                    incores.append(in_memory(a, b, out))
                    os.replace(out, kept)
                else:
                    wall, record = streamed(a, b, out, options.memory)
                    walls.append(wall)
                    runs.append(float(str(record["seconds"])))
        out.unlink(missing_ok=True)
        peak = peak_of(a, b, out, options.memory)
        difference = largest_difference(a, b, out, kept)
    wall, incore = statistics.median(walls), statistics.median(incores)
    line = {
        "record": "stream",
        "strategy": "c-stationary tiles, read ahead, write behind",
        "source": "npy",
        "dtype": options.dtype,
        "m": options.m,
        "n": options.n,
        "k": options.k,
        "budgets": {"memory": options.memory, "planned_bytes": record["memory_bytes"]},
        "tile": [record["tile_m"], record["tile_n"], record["tile_k"]],
        "device": record["device"],
        "wall_s": wall,
        "wall_samples_s": walls,
        "run_s": statistics.median(runs),
        "incore_s": incore,
        "incore_samples_s": incores,
        "ratio": wall / incore,
        "run_ratio": statistics.median(runs) / incore,
        "synced": "both",
        "peak_rss_bytes": peak,
        "largest_difference_u": difference,
        "bytes_read": record["bytes_read"],
        "bytes_written": record["bytes_written"],
    }
    print(json.dumps(line))
    if difference > 2 * options.k:
        sys.exit(f"the results differ by {difference} u (|A||B|), more than two sums over {options.k} terms may")
    if options.results:
        print(write_records(options.results, experiment(" ".join(sys.argv)), [line]))


if __name__ == "__main__":
    main()
