"""The same calls of two versions of gemmule, in turns on one GPU: whether a refactor or a new choice made any slower.

python benchmarks/experiments/compare_commits.py BEFORE/src src --commits BEFORE AFTER --record FOLDER

Each version runs in a process of its own, through its public functions, as a user calls them: tuned tables included.
Both have the same inputs, in buffers that rotate beyond the L2 cache, and their samples alternate, A B B A. The first
calls, which compile, are made beforehand by several processes of each. Writes a `commits` record for each product:
times of both, their ratio (before over after: more than 1 is faster now), and whether the results have the same bits.
Needs an NVIDIA GPU, PyTorch and the compiler.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Bytes of the L2 cache that all buffer sets together exceed, and most sets.
_L2, _CACHES, _SETS = 64 << 20, 2, 64
#: Microseconds of a sample, rounds A B B A of a product, and processes of each version that compile beforehand.
_SAMPLE_US, _ROUNDS, _COMPILERS = 4000.0, 12, 5
#: Precisions whose name was another one before.
_FORMER = {"ozaki-15": "int8x15"}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A product, or where `k` is 0 a transpose.

    Attributes
    ----------
    dtype, precision : str
        Element type of the inputs; precision of the product, or "".
    m, n, k : int
        Extents.
    layout : str
        How A and B lie in memory, n in rows and t in columns.
    out_dtype : str
        Element type of the result, or "" for that which follows from the inputs.
    """

    dtype: str
    m: int
    n: int
    k: int
    layout: str = "nn"
    precision: str = ""
    out_dtype: str = ""


CELLS = (
    *(Cell("bfloat16", size, size, size) for size in (512, 1024, 2048, 4096, 8192)),
    Cell("bfloat16", 4096, 4096, 4096, "nt"),
    Cell("bfloat16", 16, 4096, 14336, "nt"),
    *(Cell("float16", size, size, size) for size in (2048, 4096)),
    *(Cell("float32", size, size, size) for size in (1024, 4096)),
    Cell("float32", 4096, 4096, 4096, "nt", "tf32"),
    *(Cell("float64", size, size, size) for size in (1024, 4096)),
    Cell("int8", 4096, 4096, 4096, "nt", out_dtype="int32"),
    Cell("float8_e4m3fn", 4096, 4096, 4096, "nt", "float8", "bfloat16"),
    Cell("float32", 4096, 4096, 4096, "nn", "bf16x6"),
    Cell("float64", 4096, 4096, 4096, "nn", "ozaki-15"),
    *(Cell("bfloat16", size, size, size) for size in (127, 509, 1000, 2047, 4095, 4097)),
    *(Cell("bfloat16", m, n, k) for m, n, k in ((4095, 4096, 4096), (4096, 4095, 4096), (4096, 4096, 4095))),
    *(Cell("float16", size, size, size) for size in (127, 2047)),
    Cell("float32", 2047, 2047, 2047),
    Cell("float64", 2047, 2047, 2047),
    Cell("float32", 8192, 8192, 0),
    Cell("bfloat16", 8191, 8193, 0),
)


class Calls:
    """Repeated calls of one product by the version of gemmule that this process imports."""

    def __init__(self, cell: Cell, sets: int) -> None:
        import torch

        import gemmule as gm

        self.torch = torch
        torch.manual_seed(len(repr(cell)))
        if not cell.k:
            inputs = [self._matrix(cell.dtype, cell.m, cell.n) for _ in range(sets)]
            self.outs = [x.new_empty((cell.n, cell.m)) for x in inputs]
            self.calls = [lambda x=x, d=d: gm.transpose(x, out=d) for x, d in zip(inputs, self.outs, strict=True)]
        else:
            options = {"precision": self._precision(cell.precision)} if cell.precision else {}
            pairs = [self._pair(cell) for _ in range(sets)]
            out = getattr(torch, cell.out_dtype or cell.dtype)
            self.outs = [torch.empty((cell.m, cell.n), dtype=out, device="cuda") for _ in pairs]
            make = gm.gemm if cell.dtype == "int8" else gm.matmul
            self.calls = [
                lambda a=a, b=b, d=d: make(a, b, out=d, **options) for (a, b), d in zip(pairs, self.outs, strict=True)
            ]
        for out in self.outs:
            out.view(torch.uint8).fill_(255)
        for call in self.calls:
            call()
        self.per_call = self._us(1)
        self.repeat = max(1, round(_SAMPLE_US / (self.per_call * sets)))
        self.graph = None
        if self.per_call < 300:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                for _ in range(self.repeat):
                    for call in self.calls:
                        call()

    @staticmethod
    def _precision(name: str) -> str:
        import gemmule

        return name if hasattr(gemmule, "epilogue") else _FORMER.get(name, name)

    def _matrix(self, dtype: str, rows: int, cols: int) -> Any:
        torch = self.torch
        if dtype == "int8":
            return torch.randint(-128, 128, (rows, cols), dtype=torch.int8, device="cuda")
        wide = torch.float64 if dtype == "float64" else torch.float32
        return torch.randn((rows, cols), dtype=wide, device="cuda").to(getattr(torch, dtype))

    def _pair(self, cell: Cell) -> tuple[Any, Any]:
        shapes = (cell.m, cell.k), (cell.k, cell.n)
        return tuple(
            self._matrix(cell.dtype, *shape) if how == "n" else self._matrix(cell.dtype, *shape[::-1]).t()
            for shape, how in zip(shapes, cell.layout, strict=True)
        )

    def _us(self, repeat: int) -> float:
        torch = self.torch
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(repeat):
            for call in self.calls:
                call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / (repeat * len(self.calls))

    def sample(self) -> float:
        """Return the microseconds of a call, of about `_SAMPLE_US` of calls."""
        if self.graph is None:
            return self._us(self.repeat)
        torch = self.torch
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / (self.repeat * len(self.calls))

    def bits(self) -> str:
        """Return a fingerprint of the first result."""
        words = self.outs[0].contiguous().view(self.torch.uint8).to(self.torch.int64).flatten()
        places = self.torch.arange(len(words), device="cuda") % 65521 + 1
        return f"{int(words.sum())}:{int((words * places).sum())}"


def sets_of(cell: Cell) -> int:
    """Return how many sets of buffers exceed the L2 cache."""
    size = {"float64": 8, "float32": 4, "int8": 1, "float8_e4m3fn": 1}.get(cell.dtype, 2)
    each = size * (cell.m * cell.k + cell.k * cell.n + cell.m * cell.n if cell.k else 2 * cell.m * cell.n)
    return max(1, min(_SETS, -(-_CACHES * _L2 // each)))


def serve() -> None:
    """Answer requests on the standard input, a line of JSON each."""
    calls: Calls | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "cell" in asked:
                calls = None
                cell = Cell(**asked["cell"])
                calls = Calls(cell, sets_of(cell))
                answer: dict[str, Any] = {"ready": True}
            elif asked["do"] == "bits":
                assert calls is not None
                answer = {"bits": calls.bits()}
            else:
                assert calls is not None
                answer = {"us": calls.sample()}
        except (RuntimeError, ValueError, TypeError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


class Version:
    """A process of one version of gemmule."""

    def __init__(self, source: Path, cache: Path) -> None:
        path = os.pathsep.join([str(source.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = os.environ | {"PYTHONPATH": path, "GEMMULE_CACHE": str(cache)}
        self.process = self._start(subprocess.PIPE)

    def _start(self, stdin: int) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--serve"]
        return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, env=self.environment, text=True)

    def compile(self, cells: Sequence[Cell]) -> list[subprocess.Popen[str]]:
        """Start processes that call every product once."""
        started = []
        for number in range(_COMPILERS):
            process = self._start(subprocess.PIPE)
            assert process.stdin is not None
            for cell in cells[number::_COMPILERS]:
                process.stdin.write(json.dumps({"cell": dataclasses.asdict(cell)}) + "\n")
            process.stdin.close()
            # So that waiting for the process does not flush it.
            process.stdin = None
            started.append(process)
        return started

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer."""
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())


def compared(versions: Sequence[Version], cell: Cell) -> dict[str, Any]:
    """Return the record of a product."""
    record = {"record": "commits", **{name: value for name, value in dataclasses.asdict(cell).items() if value != ""}}
    answers = [version.ask(cell=dataclasses.asdict(cell)) for version in versions]
    if failed := [f"{name}: {one['error']}" for name, one in zip(("before", "after"), answers, strict=True)
                  if "error" in one]:  # fmt: skip
        return record | {"failure": "; ".join(failed)}
    bits = [version.ask(do="bits")["bits"] for version in versions]
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(_ROUNDS):
        for which in (0, 1, 1, 0) if turn % 2 == 0 else (1, 0, 0, 1):
            times[which].append(versions[which].ask(do="sample")["us"])
    before, after = (statistics.median(one) for one in times)
    ratios = sorted(a / b for a, b in zip(*times, strict=True))
    return record | {
        "before_us": round(before, 3),
        "after_us": round(after, 3),
        "ratio": round(before / after, 4),
        "ratio_low": round(ratios[len(ratios) // 10], 4),
        "ratio_high": round(ratios[-len(ratios) // 10], 4),
        "same_bits": bits[0] == bits[1],
    }


def main() -> None:
    """Measure, or with `--serve` answer requests."""
    if sys.argv[1:] == ["--serve"]:
        serve()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="folder src of the version before")
    parser.add_argument("after", type=Path, help="folder src of the version after")
    parser.add_argument("--commits", nargs=2, required=True, help="the commits of both")
    parser.add_argument("--record", type=Path, required=True, help="folder of the record")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="most seconds; products that are left then are not measured"
    )
    given = parser.parse_args()
    began = time.perf_counter()
    sys.path.insert(0, str(given.after.resolve()))
    from gemmule.lab.experiment import experiment
    from gemmule.lab.records import RecordFile
    from gemmule.runtime.device import get_device

    with tempfile.TemporaryDirectory() as scratch:
        versions = [Version(source, Path(scratch, name))
                    for name, source in (("before", given.before), ("after", given.after))]  # fmt: skip
        for process in [process for version in versions for process in version.compile(CELLS)]:
            process.communicate()
        print(f"{time.perf_counter() - began:.0f} s: compiled", flush=True)
        block = experiment("python " + " ".join(sys.argv), get_device(0).pci_bus_id) | {"commits": given.commits}
        with RecordFile(given.record, block) as file:
            for cell in CELLS:
                if time.perf_counter() - began > given.seconds:
                    break
                record = compared(versions, cell)
                file.write(record)
                print(json.dumps(record), flush=True)
        for version in versions:
            assert version.process.stdin is not None
            version.process.stdin.close()
            version.process.wait()


if __name__ == "__main__":
    main()
