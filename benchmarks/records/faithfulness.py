"""The same kernels and inputs on an NVIDIA GPU and on the virtual one: results bit by bit, and counters through ncu.

python benchmarks/records/faithfulness.py --record benchmarks/results

Needs an NVIDIA GPU, ncu (Nsight Compute) and the right to read the GPU's counters. The cases are fixed, so that the
comparison can be repeated from the record, without a GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import dataclasses
import hashlib
import io
import itertools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gemmule.compiler.cache import artifact_for
from gemmule.core.arch import Arch
from gemmule.core.dtype import DTYPES, DType, Kind, Precision, accumulator, dtype_named, opaque_dtype
from gemmule.core.permutation import transpose_problem
from gemmule.core.problem import GemmProblem, TransposeProblem
from gemmule.core.spec import Choice, KernelSpec
from gemmule.dispatch.registry import REGISTRY
from gemmule.lab.products import gemm_problem
from gemmule.vgpu import Counter, Counts, Options, launch
from gemmule.vgpu.execute import run_kernel as run_virtually

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]

#: Whole tiles of every kernel, and a shape that divides none.
SHAPES = ((256, 384, 96), (250, 190, 70))
#: The same for kernels whose copy engine takes pitches of whole 16 bytes only, and each how many of their configs.
ALIGNED_SHAPES, SOME = ((256, 384, 96), (200, 136, 712)), 2
#: The same for kernels that pack operands which the copy engine does not take.
ODD_SHAPES = ((250, 190, 70), (201, 137, 713))
ARCH = Arch.parse("sm_90a")


def is_hopper(spec: KernelSpec) -> bool:
    """Say whether a kernel is for Hopper alone."""
    return all(arch.specific for arch in spec.archs)


@dataclasses.dataclass(frozen=True)
class Case:
    """One launch: a kernel on a shape with inputs that follow from its seed."""

    choice: Choice
    dtype: str
    out_dtype: str
    shape: tuple[int, ...]
    layout: str
    seed: int

    def problem(self) -> GemmProblem | TransposeProblem:
        """Return the problem: a product, or the transpose of a compact matrix."""
        if self.choice.spec.operation == "gemm":
            m, n, k = self.shape
            problem = gemm_problem(m, n, k, self.dtype, self.out_dtype, self.layout)
            if self.dtype == "float32" and is_hopper(self.choice.spec):
                problem = dataclasses.replace(problem, precision=Precision.TF32)
            return dataclasses.replace(problem, alpha=1.25) if self.seed % 2 and self.is_float() else problem
        rows, cols = self.shape
        return transpose_problem((cols, rows), (1, cols), (rows, 1), dtype_named(self.dtype).itemsize)

    def is_float(self) -> bool:
        """Say whether the elements are floating-point numbers."""
        return dtype_named(self.dtype).kind is Kind.FLOAT

    def arrays(self) -> Arrays:
        """Return the operands in memory; NumPy promises that these random numbers never change."""
        random = np.random.RandomState(self.seed)
        dtype = dtype_named(self.dtype)
        m, n, *k = self.shape
        if not k:
            kind = opaque_dtype(dtype.itemsize).numpy()
            values = random.randint(0, 256, (m, n * dtype.itemsize)).astype(np.uint8).view(kind)
            return {"a": values, "d": np.full((n, m * dtype.itemsize), 0xAA, np.uint8).view(kind)}
        found = {}
        for name, rows, cols, letter in (("a", m, k[0], self.layout[0]), ("b", k[0], n, self.layout[1])):
            stored = (rows, cols) if letter == "n" else (cols, rows)
            if self.is_float():
                found[name] = random.randn(*stored).astype(dtype.numpy())
            else:
                found[name] = random.randint(-128, 128, stored).astype(dtype.numpy())
            found[name] = found[name] if letter == "n" else found[name].T
        # What is not written stays visible.
        poison = np.full((m, n, dtype_named(self.out_dtype).itemsize), 0xFF, np.uint8)
        return found | {"d": poison.view(dtype_named(self.out_dtype).numpy())[..., 0]}

    def label(self) -> dict[str, Any]:
        """Return what tells the case from others, as fields of a record."""
        return {
            "kernel": self.choice.spec.name,
            "config": self.choice.config.as_dict(),
            "dtype": self.dtype,
            "out_dtype": self.out_dtype,
            "shape": list(self.shape),
            "layout": self.layout,
            "seed": self.seed,
        }


def outputs(dtype: DType) -> Iterator[DType]:
    """Yield the output types that a product of that type may have."""
    yield from dict.fromkeys((dtype, accumulator(dtype, dtype)))


def cases() -> list[Case]:
    """Return the launches: every kernel and config, on whole tiles and on others; every type of the references."""
    found = []
    seeds = itertools.count(1)
    for spec in REGISTRY:
        if is_hopper(spec):
            continue
        if spec.operation == "gemm":
            types = [(dtype.name, out.name) for dtype in DTYPES for out in outputs(dtype)]
            for (dtype, out), layout, shape, config in itertools.product(types, ("nn", "tn"), SHAPES, spec.configs):
                case = Case(Choice(spec, config), dtype, out, shape, layout, next(seeds))
                if spec.why_not(case.problem(), ARCH, config) is None:
                    found.append(case)
        else:
            for dtype, (m, n, _), config in itertools.product(("float32", "float16"), SHAPES, spec.configs):
                case = Case(Choice(spec, config), dtype, dtype, (m, n), "n", next(seeds))
                if spec.why_not(case.problem(), ARCH, config) is None:
                    found.append(case)
    return found


def aligned_cases() -> list[Case]:
    """Return the launches of kernels for Hopper alone: some configs in one type, and every type in one config."""
    found = []
    for spec in REGISTRY:
        if not is_hopper(spec):
            continue
        seeds = itertools.count(1)
        wanted = [("bfloat16", "bfloat16", "nn", config) for config in spec.configs[::SOME]]
        types = [(dtype.name, out.name) for dtype in DTYPES for out in outputs(dtype)]
        wanted += [(*pair, layout, spec.default) for pair in types for layout in ("nn", "tn", "nt")]
        shapes = ALIGNED_SHAPES if spec.next_kernel is None else ODD_SHAPES
        for (dtype, out, layout, config), shape in itertools.product(dict.fromkeys(wanted), shapes):
            case = Case(Choice(spec, config), dtype, out, shape, layout, next(seeds))
            if spec.why_not(case.problem(), ARCH, config) is None:
                found.append(case)
    return found


def digest(array: np.ndarray[Any, np.dtype[Any]]) -> str:
    """Return what tells results with different bits apart; all NaN are one."""
    kept = array.copy()
    if kept.dtype.kind in "fV" and (nan := np.isnan(kept.astype(np.float64))).any():
        kept[nan] = np.nan
    return hashlib.sha256(kept.tobytes()).hexdigest()


def virtual_result(case: Case, options: Options | None = None) -> Arrays:
    """Return the operands after a run on the virtual GPU."""
    arrays, options = case.arrays(), options or Options(mma="hopper")
    if case.choice.spec.next_kernel is None:
        run_virtually(case.problem(), case.choice, arrays, options)
        return arrays
    return _one_after_another(case, arrays, options)


def _one_after_another(case: Case, arrays: Arrays, options: Options) -> Arrays:
    """Run a kernel, and then the one that finishes what it prepared."""
    problem, spec, config = case.problem(), case.choice.spec, case.choice.config
    then = spec.next_kernel(problem, config, case.choice.gpu)
    itemsize = dtype_named(case.dtype).itemsize
    spaces = {name: np.zeros(size // itemsize, f"u{itemsize}") for name, size in then.workspaces.items()}
    every = arrays | spaces
    first = (spec, config, problem, every)
    for one, its, what, given in (first, (then.spec, then.config, then.problem, {
        name: every[source] for name, source in then.operands.items()
    })):  # fmt: skip
        artifact = artifact_for(one, its, one.signature(what, its), ARCH, with_ptx=True)
        launch(artifact, one.launch(what, its), given, options=options)
    return arrays


def virtual_counts(case: Case) -> Counts:
    """Return what the virtual GPU counts."""
    problem, spec, config = case.problem(), case.choice.spec, case.choice.config
    artifact = artifact_for(spec, config, spec.signature(problem, config), ARCH, with_ptx=True)
    counter = Counter(with_caches=True)
    launch(artifact, spec.launch(problem, config), case.arrays(), options=Options(), observers=(counter,))
    return counter.counts


def _requests(counts: Counts, *kinds: str) -> int:
    return counts.total("requests", *kinds)


def _conflicts(counts: Counts, *kinds: str) -> int:
    return counts.total("wavefronts", *kinds) - counts.total("ideal_wavefronts", *kinds)


# The hardware counts what cp.async reads among the loads.
_GLOBAL_LOADS = ("load global", "async copy")
#: Counter of the hardware, and what the virtual GPU has in its place.
COUNTERS = {
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": lambda c: c.total("threads", "fma f32"),
    "smsp__sass_thread_inst_executed_op_dfma_pred_on.sum": lambda c: c.total("threads", "fma f64"),
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": lambda c: c.total("requests", *_GLOBAL_LOADS),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": lambda c: c.total("sectors", *_GLOBAL_LOADS),
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": lambda c: c.total("requests", "store global"),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": lambda c: c.total("sectors", "store global"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": lambda c: c.total("wavefronts", "load shared"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": lambda c: c.total("wavefronts", "store shared"),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": lambda c: _conflicts(c, "load shared"),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": lambda c: _conflicts(c, "store shared"),
    "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum": lambda c: _conflicts(c, "async copy"),
    "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldsm.sum": lambda c: _conflicts(c, "matrix load"),
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldsm.sum": lambda c: c.total("wavefronts", "matrix load"),
    "lts__t_sectors_srcunit_tex_op_read.sum": lambda c: c.reads["l2"] // 32,
    "dram__bytes_read.sum": lambda c: c.reads["memory"],
}


def run_on_hardware(only: list[Case]) -> list[Arrays]:
    """Run the cases on the GPU, in order, one launch each, and return their operands."""
    from gemmule.runtime.execute import run_kernel
    from gemmule.runtime.memory import DeviceBuffer

    results = []
    for case in only:
        arrays = case.arrays()
        stored = {name: x if x.flags.c_contiguous else x.T for name, x in arrays.items()}
        buffers = {name: DeviceBuffer(x.nbytes, 0, 0) for name, x in stored.items()}
        for name, buffer in buffers.items():
            buffer.upload(stored[name])
        run_kernel(case.problem(), case.choice, {name: buffer.address for name, buffer in buffers.items()}, 0, 0)
        buffers["d"].download(stored["d"])
        for buffer in buffers.values():
            buffer.free()
        results.append(arrays)
    return results


def check_records(only: list[Case]) -> Iterator[dict[str, Any]]:
    """Yield a record for each case: elements whose bits are equal, and the digest of the hardware's result."""
    # Kernels are compiled on the way, and come from the cache when the GPU runs them.
    with concurrent.futures.ProcessPoolExecutor() as pool:
        found = list(pool.map(virtual_result, only))
    for case, virtual, hardware in zip(only, found, run_on_hardware(only), strict=True):
        size = hardware["d"].itemsize
        words = [x["d"].view(f"u{size}") for x in (hardware, virtual)]
        equal = int(np.count_nonzero(words[0] == words[1]))
        yield {
            "record": "check",
            "what": "virtual = hardware, bit for bit",
            **case.label(),
            "sha256": digest(hardware["d"]),
            "passed": equal,
            "failed": words[0].size - equal,
        }


def count_records(only: list[Case]) -> Iterator[dict[str, Any]]:
    """Yield a record for each case and counter."""
    ncu = shutil.which("ncu")
    if ncu is None:
        sys.exit("ncu was not found; it comes with the CUDA toolkit and with Nsight Compute")
    command = [ncu, "--csv", "--page", "raw", "--metrics", ",".join(COUNTERS), sys.executable, __file__, "--run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"ncu failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    # The first row gives the units.
    _, *rows = csv.DictReader(io.StringIO("".join(x + "\n" for x in done.stdout.splitlines() if x.startswith('"'))))
    assert len(rows) == len(only), f"ncu saw {len(rows)} kernels of {len(only)}"
    for case, row in zip(only, rows, strict=True):
        counts = virtual_counts(case)
        for counter, virtual in COUNTERS.items():
            if row.get(counter):
                yield {
                    "record": "counts",
                    **case.label(),
                    "counter": counter,
                    "virtual": virtual(counts),
                    "hardware": float(row[counter].replace(",", "")),
                }


def counted_cases() -> list[Case]:
    """Return the cases whose counters are read: of each kernel's first type."""
    found = {}
    for case in cases():
        key = (case.choice, case.shape, case.layout)
        if "reference" not in case.choice.spec.name and case.layout[-1] == "n":
            found.setdefault(key, case)
    return list(found.values())


def main() -> None:
    """Compare, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--hopper", action="store_true", help="kernels for Hopper alone, without counters")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_on_hardware(counted_cases())
        return
    from gemmule.lab.experiment import experiment
    from gemmule.lab.records import write_records
    from gemmule.runtime.device import get_device

    if options.hopper:
        records = list(check_records(aligned_cases()))
    else:
        records = [*check_records(cases()), *count_records(counted_cases())]
    command = " ".join(["python", "benchmarks/records/faithfulness.py", *sys.argv[1:]])
    print(write_records(options.record, experiment(command, get_device().pci_bus_id), records))


if __name__ == "__main__":
    main()
