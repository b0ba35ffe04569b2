"""The first call of a process, and the import: ``python benchmarks/records/first_calls.py RESULTS_FOLDER``.

Times both in fresh processes, one after another: with the kernel in the cache on disk, and with a pack where no
compiler is installed. The call follows a product of PyTorch's, so that the GPU is in use. Writes `overhead` records.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from overhead import PROBLEMS, record

from gemmule.lab.experiment import experiment
from gemmule.lab.records import write_records
from gemmule.runtime.device import get_device

FIRST = """
import json, sys, time
if "without a compiler" in sys.argv:
    sys.modules["cutlass"] = None
import torch
dtype, m, n, k = sys.argv[1], *map(int, sys.argv[2:5])
a, b, out = (torch.ones(s, device="cuda", dtype=getattr(torch, dtype)) for s in ((m, k), (k, n), (m, n)))
torch.mm(a, b)
torch.cuda.synchronize()
import gemmule as gm
start = time.perf_counter()
gm.matmul(a, b, out=out)
first = time.perf_counter()
gm.matmul(a, b, out=out)
second = time.perf_counter()
torch.cuda.synchronize()
assert (out == k).all()
assert sys.modules.get("cutlass") is None
print(json.dumps([1e6 * (first - start), 1e6 * (second - first)]))
"""

IMPORT = """
import sys, time
start = time.perf_counter()
import gemmule
print(1e6 * (time.perf_counter() - start))
assert not {"cutlass", "torch", "cupy", "jax"} & set(sys.modules)
"""


def first_calls(dtype: str, m: int, n: int, k: int):
    """Yield the records of a process's first and second call: kernel in the cache, then in a pack."""
    facts = {"dtype": dtype, "m": m, "n": n, "k": k}
    arguments = [dtype, *map(str, (m, n, k))]
    pairs = in_fresh_processes(FIRST, arguments, 3)
    yield record("first_call", [first for first, _ in pairs], **facts)
    yield record("second_call", [second for _, second in pairs], **facts)
    with tempfile.TemporaryDirectory() as folder:
        pack, empty = Path(folder) / "kernels.pack", Path(folder) / "empty"
        subprocess.run([sys.executable, "-m", "gemmule", "pack", str(pack)], check=True, capture_output=True)
        packed = {"GEMMULE_PACK": str(pack), "GEMMULE_CACHE": str(empty)}
        pairs = in_fresh_processes(FIRST, [*arguments, "without a compiler"], 3, packed)
        yield record("first_call_pack", [first for first, _ in pairs], **facts, pack_bytes=pack.stat().st_size)
        yield record("import_pack", in_fresh_processes(IMPORT, [], 9, packed))


def in_fresh_processes(code: str, arguments: list[str], times: int, variables: dict[str, str] | None = None) -> list:
    """Return what a program prints, as JSON, in so many processes one after another.

    One more goes before, so that bytecode is kept, as it is after an installation.
    """
    with tempfile.TemporaryDirectory() as bytecode:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": bytecode} | (variables or {})
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-c", code, *arguments]
        printed = [
            subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
            for _ in range(times + 1)
        ]
    return [json.loads(text) for text in printed[1:]]


def main() -> None:
    """Measure and write the record."""
    records = [*first_calls(*PROBLEMS[0]), record("import", in_fresh_processes(IMPORT, [], 9))]
    made = experiment("benchmarks/records/first_calls.py RESULTS_FOLDER", get_device(0).pci_bus_id)
    print(write_records(Path(sys.argv[1]), made, records))


if __name__ == "__main__":
    main()
