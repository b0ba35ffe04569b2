"""What a call costs on the host: ``python benchmarks/records/overhead.py RESULTS_FOLDER``.

Times the queueing of warm products of PyTorch's (and, where it is installed, CuPy's) arrays on a GPU beside torch.mm
and cupy.matmul, interleaved, and writes `overhead` records: ``path`` and ``host_us``, the median of the samples.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import torch

import gemmule as gm
from gemmule.lab.experiment import experiment
from gemmule.lab.records import write_records
from gemmule.runtime.device import get_device

#: Calls in a sample: fewer than the launches that a stream takes before it makes the host wait.
CALLS = 250
SAMPLES = 40
#: Problems: dtype, m, n, k. The last is one of odd sizes.
PROBLEMS = (
    ("bfloat16", 128, 128, 128),
    ("float16", 512, 512, 512),
    ("float32", 64, 64, 64),
    ("float64", 64, 64, 64),
    ("bfloat16", 131, 77, 99),
)


def rectified(acc):
    """Be traced at every call."""
    return gm.epilogue.maximum(acc, 0.0)


def sample(call) -> float:
    """Return the microseconds that a call takes to be queued."""
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    taken = time.perf_counter_ns() - start
    torch.cuda.synchronize()
    return taken / CALLS / 1e3


def in_turns(calls: dict) -> dict[str, list[float]]:
    """Return samples of calls that were made in turns, to and fro."""
    for call in calls.values():
        sample(call)
    samples = {path: [] for path in calls}
    order = list(calls)
    for _ in range(SAMPLES):
        for path in order:
            samples[path].append(sample(calls[path]))
        order.reverse()
    return samples


def record(path: str, samples: list[float], **facts) -> dict:
    """Return a record of samples."""
    made = {"record": "overhead", "path": path, **facts, "host_us": round(statistics.median(samples), 3)}
    print({name: value for name, value in made.items() if name != "record"}, flush=True)
    return made | {"samples_us": [round(value, 3) for value in samples]}


def warm_calls(dtype: str, m: int, n: int, k: int):
    """Yield the records of calls that are repeated."""
    kind = getattr(torch, dtype)
    a, b = torch.randn(m, k, device="cuda").to(kind), torch.randn(k, n, device="cuda").to(kind)
    out, theirs = torch.empty(m, n, device="cuda", dtype=kind), torch.empty(m, n, device="cuda", dtype=kind)
    bias = torch.randn(n, device="cuda").to(kind)
    turned, stream = torch.empty(k, m, device="cuda", dtype=kind), torch.cuda.current_stream()
    other, beside = torch.cuda.Stream(), torch.empty_like(out)
    calls = {
        "torch_mm_out": lambda: torch.mm(a, b, out=theirs),
        "matmul_out": lambda: gm.matmul(a, b, out=out),
        "torch_mm": lambda: torch.mm(a, b),
        "matmul": lambda: gm.matmul(a, b),
        # A tensor object that no call has seen, as each activation of a model; making it is measured by itself.
        "torch_detach": a.detach,
        "torch_mm_out_new": lambda: torch.mm(a.detach(), b, out=theirs),
        "matmul_out_new": lambda: gm.matmul(a.detach(), b, out=out),
        "torch_mm_new": lambda: torch.mm(a.detach(), b),
        "matmul_new": lambda: gm.matmul(a.detach(), b),
        "gemm_out": lambda: gm.gemm(a, b, alpha=2.0, out=out),
        "torch_addmm_relu": lambda: torch.relu_(torch.addmm(bias, a, b, out=theirs)),
        "gemm_relu": lambda: gm.gemm(a, b, bias=bias, epilogue="relu", out=out),
        "gemm_function": lambda: gm.gemm(a, b, bias=bias, epilogue=rectified, out=out),
        "matmul_stream": lambda: gm.matmul(a, b, out=out, stream=stream),
        "matmul_other_stream": lambda: gm.matmul(a, b, out=beside, stream=other),
        "matmul_new_other_stream": lambda: gm.matmul(a, b, stream=other),
        "torch_transpose": lambda: turned.copy_(a.t()),
        "transpose": lambda: gm.transpose(a, out=turned),
    }
    plan = gm.matmul.plan(a, b)
    config = " ".join(f"{name}={value}" for name, value in plan.config.items())
    kernel = f"{plan.kernel} [{config}]" + (f", {plan.next_kernel}" if plan.next_kernel else "")
    torch.testing.assert_close(gm.matmul(a, b, out=out), torch.mm(a, b), rtol=0.02, atol=0.1)
    for path, values in in_turns(calls).items():
        own = {"kernel": kernel} if "torch" not in path and path != "transpose" else {}
        yield record(path, values, dtype=dtype, m=m, n=n, k=k, **own)


def cupy_calls(m: int):
    """Yield the records of repeated calls with CuPy's arrays."""
    try:
        import cupy
    except ImportError:
        return
    a, b, out = (cupy.random.standard_normal((m, m), dtype=cupy.float32) for _ in range(3))
    theirs, beside, stream = cupy.empty_like(out), cupy.empty_like(out), cupy.cuda.Stream(non_blocking=True)
    calls = {
        "cupy_matmul_out": lambda: cupy.matmul(a, b, out=theirs),
        "matmul_out_cupy": lambda: gm.matmul(a, b, out=out),
        "matmul_cupy": lambda: gm.matmul(a, b),
        "matmul_other_stream_cupy": lambda: gm.matmul(a, b, out=beside, stream=stream),
    }
    for path, values in in_turns(calls).items():
        yield record(path, values, dtype="float32", m=m, n=m, k=m)


def main() -> None:
    """Measure and write the record."""
    records = [made for problem in PROBLEMS for made in warm_calls(*problem)]
    records += cupy_calls(64)
    print(
        write_records(
            Path(sys.argv[1]),
            experiment("benchmarks/records/overhead.py RESULTS_FOLDER", get_device(0).pci_bus_id),
            records,
        )
    )


if __name__ == "__main__":
    main()
