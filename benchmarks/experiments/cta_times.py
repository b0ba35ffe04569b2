"""When the CTAs of the ladder's kernels start and end: which of those that run at a time are at the same place of K.

python benchmarks/experiments/cta_times.py 4096 4096 4096 --record benchmarks/results

Needs an NVIDIA GPU. The PTX of each kernel is given three stores for the first thread of a CTA, and the driver compiles
it; its result is checked.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from gemmule.compiler.artifact import Artifact
from gemmule.compiler.cache import artifact_for
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import LADDER, REGISTRY
from gemmule.lab.experiment import experiment
from gemmule.lab.products import gemm_problem
from gemmule.lab.records import write_records
from gemmule.runtime.device import current, get_device
from gemmule.runtime.driver import call
from gemmule.runtime.launch import LoadedKernel
from gemmule.runtime.memory import DeviceBuffer

#: Parts into which a CTA's time is cut.
PARTS = 20
_STAMP = np.dtype([("start", np.uint64), ("end", np.uint64), ("multiprocessor", np.uint64)])
_START = """
	.reg .b64 %stamp<5>;
	.reg .b32 %word<6>;
	.reg .pred %other;
	mov.u32 %word0, %tid.x;
	setp.ne.u32 %other, %word0, 0;
	mov.u32 %word1, %ctaid.x;
	mov.u32 %word2, %ctaid.y;
	mov.u32 %word3, %nctaid.x;
	mad.lo.u32 %word1, %word2, %word3, %word1;
	mov.u64 %stamp0, stamps;
	mul.wide.u32 %stamp1, %word1, 24;
	add.u64 %stamp0, %stamp0, %stamp1;
	mov.u64 %stamp2, %globaltimer;
	mov.u32 %word4, %smid;
	cvt.u64.u32 %stamp3, %word4;
	@!%other st.global.u64 [%stamp0], %stamp2;
	@!%other st.global.u64 [%stamp0+16], %stamp3;
"""
_END = "	mov.u64 %stamp4, %globaltimer;\n	@!%other st.global.u64 [%stamp0+8], %stamp4;\n"


def stamped(artifact: Artifact, ctas: int) -> Artifact:
    """Return the kernel with stores of the times, as PTX that the driver compiles."""
    head, _, body = artifact.ptx.partition("\n{\n")
    entry = head.index(".visible .entry")
    lines = body.split("\n")
    declared = max(number for number, line in enumerate(lines) if re.match(r"\s*\.reg ", line))
    lines.insert(declared + 1, _START)
    body = re.sub(r"(?m)^\s*ret;", lambda found: _END + found.group(0), "\n".join(lines))
    # As many CTAs on a multiprocessor as without the stores.
    registers = f"\n.maxnreg {min(255, -(-artifact.resources.registers // 8) * 8)}"
    array = f".visible .global .align 8 .b8 stamps[{_STAMP.itemsize * ctas}];\n"
    # No instruction needs a newer version, and drivers that are older than the compiler know this one.
    head = re.sub(r"\.version [0-9.]+", ".version 8.6", head)
    entry = head.index(".visible .entry")
    ptx = head[:entry] + array + head[entry:] + registers + "\n{\n" + body
    return dataclasses.replace(artifact, cubin=ptx.encode() + b"\0")


def times(choice: Choice, dtype: str, m: int, n: int, k: int) -> dict[str, Any]:
    """Run a kernel twice, and return where the CTAs of the second run were when half of its time had passed."""
    problem = gemm_problem(m, n, k, dtype, dtype, "nn")
    launch = choice.spec.launch(problem, choice.config)
    ctas = int(np.prod(launch.grid))
    artifact = artifact_for(choice.spec, choice.config, choice.signature(problem), get_device().arch, with_ptx=True)
    rng = np.random.default_rng()
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    d, stamps = np.empty((m, n), dtype), np.empty(ctas, _STAMP)
    with (
        DeviceBuffer(a.nbytes, 0, 0) as on_a,
        DeviceBuffer(b.nbytes, 0, 0) as on_b,
        DeviceBuffer(d.nbytes, 0, 0) as on_d,
    ):
        on_a.upload(a)
        on_b.upload(b)
        kernel = LoadedKernel(stamped(artifact, ctas), 0)
        for _ in range(2):
            kernel.launch(launch, {"a": on_a.address, "b": on_b.address, "c": on_d.address, "d": on_d.address}, 0)
        on_d.download(d)
        with current(0):
            address, _ = call("cuModuleGetGlobal", kernel._module, b"stamps")
            call("cuMemcpyDtoH", stamps.ctypes.data, address, stamps.nbytes)
    some = rng.integers(0, m, 16)
    if not np.allclose(d[some], a[some].astype(np.float64) @ b.astype(np.float64), rtol=0, atol=1e-3 * k):
        sys.exit(f"{choice.spec.name} ({choice.config}) gave a wrong result with the stores of the times")
    start, end = (stamps[name].astype(np.int64) - int(stamps["start"].min()) for name in ("start", "end"))
    middle = int(end.max()) // 2
    running = (start <= middle) & (end > middle)
    passed = (middle - start[running]) / (end - start)[running]
    return {
        "ctas": ctas,
        "running": int(running.sum()),
        "kernel_us": int(end.max()) / 1e3,
        "median_cta_us": float(np.median(end - start)) / 1e3,
        "passed": np.histogram(passed, PARTS, (0, 1))[0].tolist(),
        # 1: all at the same place; 0: evenly spread, or in groups that are.
        "in_step": float(abs(np.exp(2j * np.pi * passed).mean())),
    }


def main() -> None:
    """Measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extents", nargs=3, type=int, metavar=("M", "N", "K"))
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    arch = get_device().arch
    found = []
    for name in LADDER:
        spec = next(spec for spec in REGISTRY if spec.name == name)
        for dtype in ("float32", "float64"):
            problem = gemm_problem(*options.extents, dtype, dtype, "nn")
            for config in spec.configs:
                if spec.why_not(problem, arch, config) is None:
                    told = {"kernel": name, "config": config.as_dict(), "dtype": dtype, "shape": options.extents}
                    found.append(
                        {"record": "cta_times", **told, **times(Choice(spec, config), dtype, *options.extents)}
                    )
    command = " ".join(["python", "benchmarks/experiments/cta_times.py", *map(str, options.extents)])
    print(write_records(options.record, experiment(command, get_device().pci_bus_id), found))


if __name__ == "__main__":
    main()
