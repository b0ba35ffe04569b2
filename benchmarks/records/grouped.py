"""Grouped products beside torch._grouped_mm: ``python benchmarks/records/grouped.py RESULTS_FOLDER [--sweep]``.

bfloat16, weights (groups, n, k) as a layer has them, groups of random and of even sizes, forward and both gradients;
and ``scaled``, forward in float8_e4m3fn with scales of rows and columns, beside torch._scaled_grouped_mm. ``--float32``
times float32 beside a loop of torch.mm over the groups, whose sizes the host knows: PyTorch waits for them.
Timed in CUDA graphs over operands of more than the L2 cache, the two by turns, forwards and backwards; medians. Every
product is first held against float64 on a few rows. ``compile`` instead of a folder compiles what will run; ``--sweep``
times every config that a call may choose for groups instead, `grouped_config` records; ``--sweep all`` those of a
search. Less than 60 s of a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from graph_times import graph_of, interleaved

from gemmule.api.epilogues.scaling import Scaling
from gemmule.compiler.pool import Job, compile_all
from gemmule.core.arch import Arch
from gemmule.core.config import Config
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_SEEN, FLOAT32, Precision, dtype_named
from gemmule.core.epilogue import Epilogue
from gemmule.core.grouped_problem import GroupedProblem
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.spec import Choice, KernelSpec
from gemmule.dispatch.grouped import choose_grouped
from gemmule.kernels.hopper.grouped.spec import SPEC, extra_configs
from gemmule.kernels.simt.grouped.spec import SPEC as SIMT_SPEC

#: Groups, rows of all, columns and k: layers of mixtures of experts.
SIZES = ((8, 4096, 14336, 4096), (64, 8192, 2048, 7168), (128, 4096, 1536, 4096))
#: The same of the slots of one token: Mixtral's and a Qwen-MoE's.
ONE_TOKEN = ((8, 2, 28672, 4096), (8, 2, 4096, 14336), (128, 8, 1536, 2048), (128, 8, 2048, 768))
#: Bytes of the operands of all sets, seconds of a graph about, rounds, assumed operations a second.
_BEYOND_L2, _GRAPH_S, _ROUNDS, _RATE = 200e6, 0.02, 7, {BFLOAT16.name: 6e14, FLOAT32.name: 5e13}
HOPPER = Arch.parse("sm_90a")
#: Further configs of a sweep.
SWEPT = {"chosen": (), "all": extra_configs()}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A product: ``forward``, ``grad_input`` or ``grad_weight``, with random or even groups; ``rows`` name matrices."""

    kind: str
    even: bool
    groups: int
    rows: int
    n: int
    k: int
    dtype: str = "bfloat16"

    @property
    def spec(self) -> KernelSpec:
        """The kernel of the type."""
        return SIMT_SPEC if self.dtype == FLOAT32.name else SPEC

    def ends(self) -> list[int]:
        """Return the groups' ends, the same in every process; of rows that name matrices those of the first set."""
        if self.kind == "rows":
            return np.searchsorted(self.numbers(0), np.arange(self.groups), "right").tolist()
        if self.even:
            return [self.rows * (group + 1) // self.groups for group in range(self.groups)]
        rng = np.random.default_rng(self.groups)
        inner = np.sort(rng.integers(0, self.rows + 1, self.groups - 1))
        return [*map(int, inner), self.rows]

    def numbers(self, number: int) -> np.ndarray[Any, Any]:
        """Return the matrices that rows name, in order, of one of several sets."""
        return np.sort(np.random.default_rng(number).permutation(self.groups)[: self.rows])

    def problem(self) -> GroupedProblem:
        """Return the problem of a new, contiguous output."""
        rows, n, k, groups = self.rows, self.n, self.k, self.groups
        if self.kind == "scaled":
            expression, _ = Scaling(None, True, False, False).traced
            # Of columns, then of rows, as the expression names them.
            scales = StridedMatrix(FLOAT32, rows, n, 0, 1, (n,), 256), StridedMatrix(FLOAT32, rows, n, 1, 0, (0,), 256)
            a, b = contiguous(FLOAT8_E4M3, rows, k, (), 256), StridedMatrix(FLOAT8_E4M3, k, n, 1, k, (n * k,), 256)
            d = contiguous(BFLOAT16, rows, n)
            return GroupedProblem("m", rows, n, k, groups, a, b, d, Epilogue(expression, scales), Precision.FLOAT8)
        dtype = dtype_named(self.dtype)
        weights = StridedMatrix(dtype, k, n, 1, k, (n * k,), 256)
        tokens, grads = contiguous(dtype, rows, k, (), 256), contiguous(dtype, rows, n, (), 256)
        if self.kind in ("forward", "rows"):
            return GroupedProblem(
                "row" if self.kind == "rows" else "m", rows, n, k, groups, tokens, weights, contiguous(dtype, rows, n)
            )
        if self.kind == "grad_input":
            return GroupedProblem("m", rows, k, n, groups, grads, weights.transposed(), contiguous(dtype, rows, k))
        d = contiguous(dtype, n, k, (groups,))
        return GroupedProblem("k", n, k, rows, groups, grads.transposed(), tokens, d)


#: What is measured.
KINDS = ("forward", "grad_input", "grad_weight", "scaled", "rows")


def cells(kinds: Sequence[str] = KINDS, dtype: str = BFLOAT16.name) -> Iterator[Cell]:
    """Yield the cells of these kinds, those of the bars first; of float32 none that are scaled or name matrices."""
    for cell in _every_cell():
        if cell.kind in kinds and (dtype == cell.dtype or cell.kind not in ("scaled", "rows")):
            yield dataclasses.replace(cell, dtype=dtype)


def _every_cell() -> Iterator[Cell]:
    for even in (False, True):
        for size in SIZES:
            yield Cell("forward", even, *size)
    for even, size in itertools.product((False, True), SIZES[:2]):
        for kind in KINDS[1:3]:
            yield Cell(kind, even, *size)
    for size in SIZES:
        yield Cell("scaled", False, *size)
    for size in ONE_TOKEN:
        yield Cell("rows", False, *size)


def operands_of(cell: Cell) -> tuple[list[tuple[Any, ...]], Any]:
    """Return sets of operands, with the scales of rows and of columns if there are any, and the offsets."""
    import torch

    def normal(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=getattr(torch, cell.dtype))

    rows, n, k, groups = cell.rows, cell.n, cell.k, cell.groups
    if cell.kind == "rows":
        return rows_of(cell, normal(groups, n, k).mT, normal), None
    inputs = (rows * (n + k) if cell.kind == "grad_weight" else rows * max(n, k) + groups * n * k) * (
        dtype_named(cell.dtype).itemsize
    )
    found = []
    for _ in range(max(2, min(16, int(_BEYOND_L2 / inputs) + 1))):
        if cell.kind == "forward":
            found.append((normal(rows, k), normal(groups, n, k).mT))
        elif cell.kind == "grad_input":
            found.append((normal(rows, n), normal(groups, n, k)))
        elif cell.kind == "scaled":
            a, b = (normal(*shape).to(torch.float8_e4m3fn) for shape in ((rows, k), (groups, n, k)))
            scales = (torch.rand(shape, device="cuda") + 0.5 for shape in ((rows,), (groups, n)))
            found.append((a, b.mT, *scales))
        else:
            found.append((normal(rows, n).T, normal(rows, k)))
    return found, torch.tensor(cell.ends(), dtype=torch.int32, device="cuda")


def rows_of(cell: Cell, weights: Any, normal: Callable[..., Any]) -> list[tuple[Any, ...]]:
    """Return sets of rows, the weights, the matrices that rows name, and their ends among all matrices."""
    import torch

    found = []
    for number in range(max(2, min(16, int(_BEYOND_L2 / (2 * cell.rows * cell.n * cell.k)) + 1))):
        named = cell.numbers(number)
        ends = np.searchsorted(named, np.arange(cell.groups), "right")
        both = (torch.tensor(x, dtype=torch.int32, device="cuda") for x in (named, ends))
        found.append((normal(cell.rows, cell.k), weights, *both))
    return found


def largest_error(cell: Cell, operands: tuple[Any, ...], d: Any) -> float:
    """Return the largest error of a few rows of every group, in parts of what rounding and the sums may come to."""
    import torch

    a, b, *scales = operands
    if cell.kind == "rows":
        scales = []
    worst, start, sums = 0.0, 0, FLOAT8_SEEN if scales else 2**-20
    for group, end in enumerate(cell.ends()):
        if cell.kind == "grad_weight":
            exact, found = a[:4, start:end].double() @ b[start:end].double(), d[group, :4].double()
            size = a[:4, start:end].double().abs() @ b[start:end].double().abs()
        else:
            part = torch.tensor(sorted({start, end - 1, (start + end) // 2}) if end > start else [], device="cuda")
            part = part.long()
            left, right = a[part].double(), b[group].double()
            if scales:
                left, right = left * scales[0][part, None].double(), right * scales[1][group].double()
            exact, found, size = left @ right, d[part].double(), left.abs() @ right.abs()
        if exact.numel():
            rounding = dtype_named("bfloat16" if scales else cell.dtype).unit_roundoff
            error = (found - exact).abs() / (exact.abs() * rounding + size * sums + 1e-30)
            # NaN counts as infinite.
            worst = max(worst, float(error.nan_to_num(nan=float("inf")).max()))
        start = end
    return worst


def torch_product(cell: Cell, ends: Any, a: Any, b: Any, *scales: Any) -> Any:
    """Return what PyTorch computes."""
    import torch

    if cell.dtype == FLOAT32.name:
        return torch_loop(cell, a, b)
    if cell.kind == "rows":
        # The rows are sorted by their matrices.
        return torch._grouped_mm(a, b, offs=scales[1])
    if scales:
        return torch._scaled_grouped_mm(a, b, *scales, offs=ends, out_dtype=torch.bfloat16)
    return torch._grouped_mm(a, b, offs=ends)


def torch_loop(cell: Cell, a: Any, b: Any) -> Any:
    """Return the products of the groups one by one."""
    import torch

    axis, start = ("k" if cell.kind == "grad_weight" else "m"), 0
    d = a.new_empty((cell.groups, a.shape[0], b.shape[1]) if axis == "k" else (a.shape[0], b.shape[-1]))
    for group, end in enumerate(cell.ends()):
        part = slice(start, end)
        if axis == "k":
            torch.mm(a[:, part], b[part], out=d[group])
        else:
            torch.mm(a[part], b[group], out=d[part])
        start = end
    return d


def other_of(cell: Cell) -> str:
    """Return the name of PyTorch's product."""
    import torch

    name = "_scaled_grouped_mm" if cell.kind == "scaled" else "mm" if cell.dtype == FLOAT32.name else "_grouped_mm"
    return f"torch.{name} {torch.__version__}"


def measured(cell: Cell) -> dict[str, Any]:
    """Return the record of one product."""
    import gemmule as gm

    sets, ends = operands_of(cell)

    def ours(a: Any, b: Any, *scales: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if cell.kind == "rows":
            return (a, b), {"matrices": scales[0]}
        given = {"scale_a": scales[0][:, None], "scale_b": scales[1][:, None]} if scales else {}
        return (a, b, ends), given

    calls_of = [ours(*one) for one in sets]
    arrays, options = calls_of[0]
    plan = gm.grouped_gemm.plan(*arrays, **options)
    error = largest_error(cell, sets[0], plan.execute())
    flop = 2 * cell.rows * cell.n * cell.k
    calls = max(len(sets), 2, min(100, int(_GRAPH_S * _RATE[cell.dtype] / flop)))
    if cell.kind == "rows":
        # Memory limits them.
        calls = 5 * len(sets)
    ways = {
        "": lambda number: gm.grouped_gemm(*calls_of[number % len(sets)][0], **calls_of[number % len(sets)][1]),
        "other_": lambda number: torch_product(cell, ends, *sets[number % len(sets)]),
    }
    replays = {name: graph_of(work, calls) for name, work in ways.items()}
    samples = interleaved(replays, _ROUNDS, warm_up=1)
    us, other_us = (statistics.median(samples[name]) for name in ways)
    return {
        "record": "grouped", **dataclasses.asdict(cell), "dtype": str(arrays[0].dtype).removeprefix("torch."),
        "us": round(us, 3), "other": other_of(cell), "other_us": round(other_us, 3),
        "ratio": round(other_us / us, 4), "tflops": round(flop / us / 1e6, 1), "error": round(error, 4),
        "kernel": plan.kernel, "config": dict(plan.config),
        **{f"{name}samples_us": [round(time, 3) for time in samples[name]] for name in ways},
    }  # fmt: skip


def swept_configs(spec: KernelSpec, problem: GroupedProblem, configs: str) -> list[Config]:
    """Return the configs of a sweep that take a problem."""
    every = (*spec.configs, *(SWEPT[configs] if spec is SPEC else ()))
    return [one for one in every if spec.why_not(problem, HOPPER, one) is None]


def swept(cell: Cell, configs: str) -> Iterator[dict[str, Any]]:
    """Yield a record for each config, for the choice, and one of torch._grouped_mm."""
    import torch

    from gemmule.runtime.repeated import repeated

    sets, ends = operands_of(cell)
    problem = cell.problem()
    d = torch.empty((cell.groups, problem.m, problem.n) if problem.axis == "k" else (problem.m, problem.n),
                    device="cuda", dtype=sets[0][0].dtype if cell.kind != "scaled" else torch.bfloat16)  # fmt: skip
    # As the expression names them.
    names = ("a", "b", *(("e1", "e0") if cell.kind == "scaled" else ()), "offsets", "d")
    calls = max(len(sets), 2, min(30, int(_GRAPH_S / 2 * _RATE[cell.dtype] / problem.flop)))
    other = graph_of(lambda number: torch_product(cell, ends, *sets[number % len(sets)]), calls)
    other()
    yield {"record": "grouped_config", **dataclasses.asdict(cell), "other": other_of(cell),
           "us": round(min(other() for _ in range(3)), 3), "config": {}}  # fmt: skip
    for config in swept_configs(cell.spec, problem, configs):
        places = [tuple(x.data_ptr() for x in (*one, ends, d)) for one in sets]
        queue = repeated(problem, Choice(cell.spec, config), names, places[0], 0)
        assert queue is not None

        def work(number: int, queue: Any = queue, places: Any = places) -> None:
            queue(places[number % len(places)], torch.cuda.current_stream().cuda_stream)

        replay = graph_of(work, calls)
        replay()
        us = min(replay() for _ in range(3))
        yield {"record": "grouped_config", **dataclasses.asdict(cell), "us": round(us, 3),
               "tflops": round(problem.flop / us / 1e6, 1), "config": config.as_dict()}  # fmt: skip


def compile_first(sweep: str | None, wanted: Sequence[Cell]) -> None:
    """Compile what will run, by several processes: one by one, within the measurement, it would take minutes."""
    jobs = []
    for cell in wanted:
        problem = cell.problem()
        chips = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
        choices = [choose_grouped(problem, HOPPER, multiprocessors=132, chip=chip) for chip in chips]
        if sweep:
            choices = [Choice(cell.spec, config) for config in swept_configs(cell.spec, problem, sweep)]
        jobs += [Job(one.spec, one.config, one.signature(problem), HOPPER) for one in choices]
    list(compile_all(list(dict.fromkeys(jobs))))


def main() -> None:
    """Compile, or measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--sweep", nargs="?", const="chosen", choices=SWEPT)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--float32", action="store_true")
    given = parser.parse_args()
    kinds = [kind for kind in given.kinds if not (given.sweep and kind == "rows")]
    wanted = list(cells(kinds, FLOAT32.name if given.float32 else BFLOAT16.name))
    compile_first(given.sweep, wanted)
    if given.folder == "compile":
        return
    from gemmule.lab.experiment import experiment
    from gemmule.lab.records import RecordFile
    from gemmule.runtime.device import get_device

    with RecordFile(Path(given.folder), experiment(" ".join(sys.argv), get_device(0).pci_bus_id)) as file:
        for cell in wanted:
            for record in swept(cell, given.sweep) if given.sweep else (measured(cell),):
                file.write(record)
                shown = {
                    name: record[name] for name in ("us", "other_us", "ratio", "tflops", "error") if name in record
                }
                print(cell, shown, record["config"], flush=True)


if __name__ == "__main__":
    main()
