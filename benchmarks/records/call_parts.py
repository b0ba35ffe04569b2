"""What the parts of a repeated call cost on the host: ``python benchmarks/records/call_parts.py RESULTS_FOLDER``.

Times `gm.matmul` of the very same tensors beside torch.mm, and by itself each thing that such a call does: finding the
product by the tensors, PyTorch's guard, addresses, the stream, and the driver's launch; that as it is made, and the
other way round of `Launch.overlaps`. Writes `overhead` records.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import sys
from pathlib import Path

import torch
from overhead import PROBLEMS, in_turns, record

import gemmule as gm
from gemmule.api.calls.call_cache import CALLS
from gemmule.lab.experiment import experiment
from gemmule.lab.records import write_records
from gemmule.runtime.arrays.torch_guards import tensor_guards
from gemmule.runtime.device import get_device
from gemmule.runtime.driver import driver
from gemmule.runtime.execute import launches_of


def launching(plan, out, overlaps: bool):
    """Return what has the driver launch a product's kernel, what must live as long, and whether calls do just this."""
    pointers = {name: address for name, (_, address) in plan.places.items()} | {"d": out.data_ptr()}
    stream = torch.cuda.current_stream().cuda_stream
    (step,) = launches_of(plan.problem, plan.choice, 0, tuple(pointers)).steps()
    made = step.kernel.prepare(dataclasses.replace(step.launch, overlaps=overlaps), pointers, stream)
    parameters = ctypes.addressof(made._addresses)
    launch = functools.partial(driver().cuLaunchKernelEx, made._config, made._function, parameters, 0)
    return launch, made, step.launch.overlaps == overlaps


def parts(dtype: str, m: int, n: int, k: int):
    """Yield the records of a product's call and of its parts."""
    kind = getattr(torch, dtype)
    a, b = torch.randn(m, k, device="cuda").to(kind), torch.randn(k, n, device="cuda").to(kind)
    out, theirs = torch.empty(m, n, device="cuda", dtype=kind), torch.empty(m, n, device="cuda", dtype=kind)
    plan = gm.matmul.plan(a, b, out=out)
    for _ in range(3):
        gm.matmul(a, b, out=out)
    torch.testing.assert_close(out, torch.mm(a, b), rtol=0.02, atol=0.1)
    guard, again = tensor_guards(torch)(a, b, out), CALLS.by_identity.get((id(a), id(b), id(out)))
    stream = torch._C._cuda_getCurrentRawStream
    calls = {
        "torch_mm_out": lambda: torch.mm(a, b, out=theirs),
        "matmul_out": lambda: gm.matmul(a, b, out=out),
        "part_nothing": lambda: None,
        "part_found": lambda: again(a, b, out),
        "part_find": lambda: CALLS.by_identity.get((id(a), id(b), id(out))),
        "part_guard": lambda: guard(a, b, out),
        "part_addresses": lambda: (a.data_ptr(), b.data_ptr(), out.data_ptr()),
        "part_stream": lambda: stream(0),
    }
    alive = []
    for overlaps in (False, True):
        launch, prepared, as_made = launching(plan, out, overlaps)
        calls["part_launch" if as_made else "part_launch_otherwise"] = launch
        alive.append(prepared)
    for path, values in in_turns(calls).items():
        yield record(path, values, dtype=dtype, m=m, n=n, k=k, kernel=plan.kernel)


def main() -> None:
    """Measure and write the record."""
    records = [made for problem in PROBLEMS[:4] for made in parts(*problem)]
    made = experiment("benchmarks/records/call_parts.py RESULTS_FOLDER", get_device(0).pci_bus_id)
    print(write_records(Path(sys.argv[1]), made, records))


if __name__ == "__main__":
    main()
