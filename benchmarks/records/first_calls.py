"""The first call of a process, and the import: ``python benchmarks/records/first_calls.py RESULTS_FOLDER``.

Times both in fresh processes, one after another: with the kernel in the cache on disk, and with a pack where no
compiler is installed. The call follows a product of PyTorch's, so that the GPU is in use. Writes `overhead` records.

``python benchmarks/records/first_calls.py RESULTS_FOLDER COUNT SEED [AT_ONCE]`` times the first calls of random
products instead, each in a process of its own with an empty cache and no compiler, until the result is there, and the
import of gemmule before it. It needs gemmule-kernels-sm90. The processes are forked from one that has imported PyTorch
and nothing of gemmule. One runs after another; with AT_ONCE so many prepare and verify at once, which takes longer than
the call, but nothing else runs during an import and a call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from overhead import PROBLEMS, record

from gemmule.compiler.pack import PACKS
from gemmule.core.dtype import dtype_named
from gemmule.lab.draws import Draw
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

#: Prints the time of the first call of a process, that of the import before it, the kernel, and whether it ran instead
#: of the chosen one, for each problem; of the first problem twice, so that bytecode is kept. So many processes as the
#: second argument says prepare at once, then import and call in turn, then verify.
RANDOM = """
import json, multiprocessing, sys, time, warnings
sys.modules["cutlass"] = None
import torch

def first_call(problem):
    dtype, m, n, k, layout, precision = problem
    kind = getattr(torch, dtype)
    a, b = (
        torch.randint(-3, 4, (rows, cols) if letter == "n" else (cols, rows), device="cuda").to(kind)
        for rows, cols, letter in ((m, k, layout[0]), (k, n, layout[1]))
    )
    a, b = (one if letter == "n" else one.T for one, letter in zip((a, b), layout))
    torch.mm(torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda"))
    torch.cuda.synchronize()
    options = {"precision": precision} if precision != "ieee" else {}
    if dtype == "int8":
        options["out_dtype"] = "int32"
    together.wait(60)
    with turn, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        begin = time.perf_counter()
        import gemmule as gm
        start = time.perf_counter()
        c = gm.matmul(a, b, **options)
        torch.cuda.synchronize()
        first = time.perf_counter()
    together.wait(60)
    plan = gm.matmul.plan(a, b, **options)
    rows, columns = slice(m // 3, m // 3 + 8), slice(n // 3, n // 3 + 64)
    expected = a[rows].cpu().double() @ b[:, columns].cpu().double()
    assert torch.allclose(c[rows, columns].cpu().double(), expected, rtol=0.01, atol=1e-3), plan
    assert sys.modules.get("cutlass") is None
    fell_back = any(one.category.__name__ == "PackedKernelWarning" for one in told)
    return [1e6 * (first - start), 1e6 * (start - begin), plan.kernel, fell_back]

def first_calls(problems, at_once):
    global together
    together = fork.Barrier(at_once)
    with fork.Pool(at_once, maxtasksperchild=1) as children:
        return children.map(first_call, problems, chunksize=1)

problems, at_once = json.loads(sys.argv[1]), int(sys.argv[2])
assert not [name for name in sys.modules if name.startswith("gemmule")]
fork = multiprocessing.get_context("fork")
turn = fork.Lock()
first_calls(problems[:1], 1)
whole = -(-len(problems) // at_once) * at_once
print(json.dumps(first_calls((problems * at_once)[:whole], at_once)[: len(problems)]))
"""

#: Types of random products, and their precisions.
TYPES = (
    ("bfloat16", "ieee"), ("float16", "ieee"), ("float32", "ieee"), ("float32", "tf32"), ("float64", "ieee"),
    ("int8", "ieee"),
)  # fmt: skip
#: The limit that first calls are counted by.
SLOW_US = 300e3

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


def random_first_calls(count: int, seed: int, at_once: int = 1):
    """Yield records of first calls of random products, with the installed pack of kernels alone, and of the imports."""
    rng = np.random.default_rng(seed)
    calls = []
    for number in range(count):
        dtype, precision = TYPES[int(rng.integers(len(TYPES)))]
        (m, n, k), layout = Draw(number + 1, seed).products(dtype_named(dtype).itemsize)[number]
        calls.append([dtype, m, n, k, layout, precision])
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty"
        (text,) = printed(RANDOM, [[json.dumps(calls), str(at_once)]], {"GEMMULE_CACHE": str(empty)}, warm=False)
        found = json.loads(text)
        assert not empty.exists(), "a kernel was compiled"
    problems = [[*call, kernel, round(first, 3)] for call, (first, _, kernel, _) in zip(calls, found, strict=True)]
    for problem in problems:
        print(*problem)
    samples = [first for first, *_ in found]
    (pack,) = PACKS.installed()
    counts = {
        "pack": pack.origin,
        "pack_kernels": len(pack.kernels),
        "pack_bytes": pack.path.stat().st_size,
        "slower_than_300_ms": sum(one > SLOW_US for one in samples),
        "fallbacks": sum(fell_back for *_, fell_back in found),
        "at_once": at_once,
    }
    yield record("first_call_random", samples, seed=seed, **counts, problems=problems)
    yield record("import_after_torch", [importing for _, importing, *_ in found])


def in_fresh_processes(code: str, arguments: list[str], times: int, variables: dict[str, str] | None = None) -> list:
    """Return what a program prints, as JSON, in so many processes one after another."""
    return [json.loads(text) for text in printed(code, [arguments] * times, variables or {})]


def printed(code: str, calls: list[list[str]], variables: dict[str, str], *, warm: bool = True) -> list[str]:
    """Return what a program prints for each list of arguments, in processes one after another.

    One more goes before if `warm`, so that bytecode is kept, as it is after an installation.
    """

    def run(arguments: list[str]) -> str:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout

    with tempfile.TemporaryDirectory() as bytecode:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": bytecode} | variables
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return [run(arguments) for arguments in [*calls[: int(warm)], *calls]][int(warm) :]


def main() -> None:
    """Measure and write the record."""
    if draw := sys.argv[2:]:
        records = [*random_first_calls(*map(int, draw))]
    else:
        records = [*first_calls(*PROBLEMS[0]), record("import", in_fresh_processes(IMPORT, [], 9))]
    command = " ".join(["benchmarks/records/first_calls.py RESULTS_FOLDER", *draw])
    made = experiment(command, get_device(0).pci_bus_id)
    print(write_records(Path(sys.argv[1]), made, records))


if __name__ == "__main__":
    main()
