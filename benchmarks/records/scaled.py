"""Scaled products beside torch._scaled_mm: ``python benchmarks/records/scaled.py FOLDER [--sweep | --quantize M,K …]``.

float8_e4m3fn, bfloat16 results, weights (n, k) as a layer has them; scales of everything (``tensor``), of rows and
columns (``row``), of 1 x 128 by 128 x 128 (``block``) and of 1 x 128 by 1 x 128 (``block1``). Timed in CUDA graphs over
operands of more than the L2 cache, the two by turns, forwards and backwards; medians. ``settled`` times are of products
behind as many of their own: at the limit of power the clock follows what ran before. Every product is first held
against float64 on a few rows. Then quantisation of bfloat16 (``quantize_row`` and the like, of M x K), beside a copy of
as many bytes; ``--quantize`` times quantisation alone, ``--kinds`` products of these kinds alone. ``compile`` instead
of a folder compiles what will run; ``--sweep`` times configs instead, `scaled_config` records.
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
from gemmule.core.block_scales import BLOCK, BlockScales
from gemmule.core.dtype import BFLOAT16, FLOAT8_E4M3, FLOAT8_SEEN, FLOAT32, Precision
from gemmule.core.epilogue import ACC, Epilogue, Expression
from gemmule.core.errors import ArgumentError
from gemmule.core.layout import StridedMatrix, contiguous
from gemmule.core.problem import GemmProblem
from gemmule.core.quantize_problem import BY
from gemmule.core.spec import Choice
from gemmule.dispatch.quantize import choose_quantize
from gemmule.dispatch.select import choose
from gemmule.kernels.hopper.gemm.config import HopperGemmConfig
from gemmule.kernels.hopper.gemm.spec import SPEC

#: M, N and K: layers of a large model, and few tokens.
LARGE = ((4096, 14336, 4096), (4096, 4096, 14336), (8192, 8192, 8192))
FEW = tuple((m, 14336, 4096) for m in (1, 16, 64, 128))
KINDS = ("tensor", "row", "block", "block1")
#: M and K of matrices to be quantised.
QUANTIZED = ((8192, 8192), (4096, 14336), (16384, 4096))
#: Lines of A's and B's blocks.
_LINES = {"block": (1, BLOCK), "block1": (1, 1)}
#: Bytes of the operands of all sets, seconds of a graph about, rounds, operations a second that are reckoned with.
_BEYOND_L2, _GRAPH_S, _ROUNDS, _RATE = 200e6, 0.02, 11, 12e14
#: Rounds of settled times.
_SETTLED_ROUNDS = 3
_CHECKED_ROWS = 16
HOPPER = Arch.parse("sm_90a")
CHIPS = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A product with scales of a kind."""

    kind: str
    m: int
    n: int
    k: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operands in launch recipes."""
        return ("a", "b", *(("scale_a", "scale_b") if self.kind in _LINES else ("e0", "e1")), "d")

    def problem(self) -> GemmProblem:
        """Return the problem of a new, contiguous output."""
        m, n, k = self.m, self.n, self.k
        a, b = contiguous(FLOAT8_E4M3, m, k, (), 256), contiguous(FLOAT8_E4M3, n, k, (), 256).transposed()
        if self.kind in _LINES:
            lines_a, lines_b = _LINES[self.kind]
            k_blocks, n_blocks = -(-k // BLOCK), -(-n // lines_b)
            of_a = StridedMatrix(FLOAT32, m, k_blocks, 1, m, (), 256)
            of_b = StridedMatrix(FLOAT32, k_blocks, n_blocks, *((1, k_blocks) if lines_b > 1 else (n, 1)), (), 256)
            epilogue = Epilogue(Expression((ACC,)), scales=BlockScales(of_a, of_b, lines_a, lines_b))
        else:
            expression, _ = Scaling(None, True, False, False).traced
            strides = ((0, 0), (0, 0)) if self.kind == "tensor" else ((1, 0), (0, 1))
            epilogue = Epilogue(expression, tuple(StridedMatrix(FLOAT32, m, n, *x, (), 256) for x in strides))
        d = contiguous(BFLOAT16, m, n, (), 256)
        return GemmProblem(m, n, k, (), a, b, None, d, precision=Precision.FLOAT8, epilogue=epilogue)


def cells(kinds: Sequence[str] = KINDS) -> Iterator[Cell]:
    """Yield the cells of these kinds."""
    for kind, size in itertools.product(kinds, (*LARGE, *FEW)):
        yield Cell(kind, *size)


def operands_of(cell: Cell) -> list[tuple[Any, Any, Any, Any]]:
    """Return sets of A, B and their scales."""
    import torch

    def normal(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn)

    def scales(*shape: int) -> Any:
        return torch.rand(shape, device="cuda") + 0.5

    m, n, k = cell.m, cell.n, cell.k
    k_blocks = -(-k // BLOCK)
    found = []
    for _ in range(max(2, min(16, int(_BEYOND_L2 / ((m + n) * k)) + 1))):
        if cell.kind == "tensor":
            of = scales(1), scales(1)
        elif cell.kind == "row":
            of = scales(m, 1), scales(1, n)
        else:
            of = scales(k_blocks, m).T, scales(n // BLOCK, k_blocks).T if cell.kind == "block" else scales(k_blocks, n)
        found.append((normal(m, k), normal(n, k).T, *of))
    return found


def _whole(scale: Any, shape: tuple[int, int]) -> Any:
    """Return a scale of each element."""
    import torch

    scale = scale.double().reshape(scale.shape if scale.ndim == 2 else (1, 1))
    for dim, extent in enumerate(shape):
        if 1 < scale.shape[dim] < extent:
            scale = torch.repeat_interleave(scale, BLOCK, dim).narrow(dim, 0, extent)
    return scale


def largest_error(operands: tuple[Any, ...], d: Any) -> float:
    """Return the largest error of a few rows, in parts of what sums of 13 bits and rounding to bfloat16 may come to."""
    import torch

    a, b, scale_a, scale_b = operands
    rows = torch.linspace(0, a.shape[0] - 1, min(_CHECKED_ROWS, a.shape[0]), device="cuda").long()
    left = (a.double() * _whole(scale_a, a.shape))[rows]
    right = b.double() * _whole(scale_b, b.shape)
    exact, size = left @ right, left.abs() @ right.abs()
    error = (d[rows].double() - exact).abs() / (exact.abs() * 2**-8 + size * FLOAT8_SEEN)
    # NaN counts as infinite.
    return float(error.nan_to_num(nan=float("inf")).max())


def others_of(sets: list[tuple[Any, Any, Any, Any]]) -> tuple[list[tuple[Any, ...]], float | None]:
    """Return the sets with scales in strides that torch._scaled_mm takes, and its error; nothing if it takes none."""
    for order in (lambda x: x, lambda x: x.contiguous(), lambda x: x.T.contiguous().T):
        found = [(a, b, scale_a, order(scale_b)) for a, b, scale_a, scale_b in sets]
        try:
            return found, largest_error(sets[0], torch_product(*found[0]))
        except (RuntimeError, ValueError) as failure:
            print(str(failure).splitlines()[0][:200], flush=True)
    return [], None


def torch_product(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    """Return what PyTorch computes."""
    import torch

    return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)


def measured(cell: Cell) -> dict[str, Any]:
    """Return the record of one product."""
    import torch

    import gemmule as gm

    sets = operands_of(cell)
    plan = gm.scaled_gemm.plan(*sets[0])
    error = largest_error(sets[0], plan.execute())
    flop = 2 * cell.m * cell.n * cell.k
    calls = max(len(sets), 2, min(100, int(_GRAPH_S * _RATE / flop)))
    ways: dict[str, Callable[[int], Any]] = {"": lambda number: gm.scaled_gemm(*sets[number % len(sets)])}
    others, other_error = others_of(sets)
    if others:
        ways["other_"] = lambda number: torch_product(*others[number % len(others)])
    times = timed(ways, calls, settled=cell.m > BLOCK)
    record = {"error": round(error, 4), "tflops": round(flop / times["us"] / 1e6, 1)}
    if other_error is not None:
        record |= {"other": f"torch._scaled_mm {torch.__version__}", "other_error": round(other_error, 4)}
    return {
        "record": "scaled", **dataclasses.asdict(cell), "dtype": "float8_e4m3fn",
        **times, **record,
        "kernel": plan.kernel, "config": dict(plan.config),
    }  # fmt: skip


def quantized(by: str, m: int, k: int) -> dict[str, Any]:
    """Return the record of a quantisation."""
    import torch

    import gemmule as gm

    sets = [torch.randn((m, k), device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    plan = gm.quantize.plan(sets[0], by=by)
    (values, scales), whole = plan.execute(), sets[0].float()
    parts = whole if by != "block" else whole.reshape(m, -1, BLOCK)
    most = parts.abs().amax() if by == "tensor" else parts.abs().amax(-1)
    error = float(((scales * 448).reshape(most.shape) / most - 1).abs().max())
    of_each = _whole(scales, (m, k))
    rounding = (values.float() * of_each - whole).abs() / (whole.abs() * 2**-4 + of_each * 2**-10)
    assert error < 2**-20, f"the scales are {error:.3g} off"
    assert float(rounding.max()) < 1.01, f"values are {float(rounding.max()):.3g} of their rounding off"
    nbytes = plan.problem.bytes_min
    copies = [torch.empty(nbytes // 2, device="cuda", dtype=torch.uint8) for _ in range(3)]
    del parts, rounding
    times = timed(
        {
            "": lambda number: gm.quantize(sets[number % 2], by=by),
            "other_": lambda number: copies[number % 3].copy_(copies[(number + 1) % 3]),
        },
        50,
    )
    return {
        "record": "scaled", "kind": f"quantize_{by}", "m": m, "n": 0, "k": k, "dtype": "bfloat16",
        "other": f"a copy of {nbytes} bytes in all", **times, "tbytes": round(nbytes / times["us"] / 1e6, 3),
        "kernel": plan.kernel, "config": dict(plan.config),
    }  # fmt: skip


def timed(ways: dict[str, Callable[[int], Any]], calls: int, *, settled: bool = False) -> dict[str, Any]:
    """Return medians and samples of two ways, interleaved, and their ratio; settled ones too, if wanted."""
    replays = {name: graph_of(work, calls) for name, work in ways.items()}
    samples = interleaved(replays, _ROUNDS, warm_up=1)
    times = {name: statistics.median(of) for name, of in samples.items()}
    found: dict[str, Any] = {f"{name}us": round(time, 3) for name, time in times.items()}
    if "other_" in times:
        found["ratio"] = round(times["other_"] / times[""], 4)
    if settled:
        found |= settled_times(replays)
    return found | {f"{name}samples_us": [round(time, 3) for time in of] for name, of in samples.items()}


def settled_times(replays: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Return the medians of ways that each ran for a while before, and their ratio."""
    samples: dict[str, list[float]] = {name: [] for name in replays}
    for turn in range(_SETTLED_ROUNDS):
        for name in list(replays) if turn % 2 else reversed(list(replays)):
            replays[name]()
            replays[name]()
            samples[name].append(replays[name]())
    times = {name: statistics.median(of) for name, of in samples.items()}
    found = {f"{name}settled_us": round(time, 3) for name, time in times.items()}
    return found | ({"settled_ratio": round(times["other_"] / times[""], 4)} if "other_" in times else {})


def swept_configs(cell: Cell) -> list[HopperGemmConfig]:
    """Return configs for a sweep, with as many stages as there is memory for."""
    if cell.m > BLOCK:
        tiles = [
            (128, n, 0, swap) for n in (128, 160, 192) for swap in ((0, 1) if cell.kind in ("tensor", "row") else (0,))
        ]
        clusters = [(1, 1, 1), (2, 1, 1), (1, 2, 1)]
    else:
        n = next(n for n in (8, 16, 32, 64, 128) if n >= cell.m)
        tiles = [(m, n, pingpong, 1) for m, pingpong in ((64, 1), (128, 0))]
        clusters = [(1, 1, 1), (1, 1, 2), (1, 1, 4)]
    found = []
    problem = cell.problem()
    for (tile_m, tile_n, pingpong, swap), (m, n, k) in itertools.product(tiles, clusters):
        for stages in range(16, 2, -1):
            try:
                one = HopperGemmConfig(tile_m=tile_m, tile_n=tile_n, stages=stages, pingpong=pingpong, cluster_m=m,
                                       cluster_n=n, cluster_k=k, swap_ab=swap)  # fmt: skip
            except ArgumentError:
                continue
            if SPEC.why_not(problem, HOPPER, one) is None:
                found.append(one)
                break
    return found


def swept(cell: Cell) -> Iterator[dict[str, Any]]:
    """Yield a record for each config, by turns with PyTorch's product, for the choice."""
    import torch

    from gemmule.runtime.repeated import repeated

    sets, problem = operands_of(cell), cell.problem()
    d = torch.empty((cell.m, cell.n), device="cuda", dtype=torch.bfloat16)
    calls = max(len(sets), 2, min(30, int(_GRAPH_S / 3 * _RATE / problem.flop)))
    places = [tuple(x.data_ptr() for x in (*one, d)) for one in sets]
    ways: dict[Any, Callable[[], float]] = {}
    for config in swept_configs(cell):
        queue = repeated(problem, Choice(SPEC, config), cell.names, places[0], 0)
        assert queue is not None

        def work(number: int, queue: Any = queue) -> None:
            queue(places[number % len(places)], torch.cuda.current_stream().cuda_stream)

        ways[config] = graph_of(work, calls)
    others, _ = others_of(sets)
    if others:
        ways[None] = graph_of(lambda number: torch_product(*others[number % len(others)]), calls)
    samples: dict[Any, list[float]] = {config: [] for config in ways}
    for turn in range(_ROUNDS):
        for config in list(ways) if turn % 2 else reversed(list(ways)):
            samples[config].append(ways[config]())
    times = {config: statistics.median(of) for config, of in samples.items()}
    for config, us in times.items():
        if config is not None:
            other = {"other_us": round(times[None], 3), "ratio": round(times[None] / us, 4)} if None in times else {}
            yield {"record": "scaled_config", **dataclasses.asdict(cell), "us": round(us, 3), **other,
                   "tflops": round(problem.flop / us / 1e6, 1), "config": config.as_dict()}  # fmt: skip


Sizes = tuple[tuple[int, ...], ...]


def compile_first(kinds: Sequence[str], *, sweep: bool, quantize: Sizes) -> None:
    """Compile what will run, by several processes: one by one, within the measurement, it would take minutes."""
    import gemmule as gm

    jobs = []
    for by, (m, k) in itertools.product(BY, () if sweep else quantize):
        quantization = gm.quantize.plan(np.empty((m, k), BFLOAT16.numpy()), by=by, chip="h200").problem
        chosen = choose_quantize(quantization, HOPPER, multiprocessors=132, chip=CHIPS[-1])
        jobs.append(Job(chosen.spec, chosen.config, chosen.spec.signature(quantization, chosen.config), HOPPER))
    for cell in cells(kinds):
        problem = cell.problem()
        for chip in CHIPS:
            chosen = choose(problem, HOPPER, multiprocessors=132, chip=chip)
            jobs.append(Job(chosen.spec, chosen.config, chosen.spec.signature(problem, chosen.config), HOPPER))
        if sweep:
            jobs += [Job(SPEC, one, SPEC.signature(problem, one), HOPPER) for one in swept_configs(cell)]
    list(compile_all(list(dict.fromkeys(jobs))))


def main() -> None:
    """Compile, or measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--quantize", nargs="+", metavar="M,K", default=())
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=())
    given = parser.parse_args()
    sizes = tuple(tuple(map(int, size.split(","))) for size in given.quantize)
    kinds = () if sizes else given.kinds or KINDS
    sizes = sizes or (() if given.kinds else QUANTIZED)
    compile_first(kinds, sweep=given.sweep, quantize=sizes)
    if given.folder == "compile":
        return
    from gemmule.lab.experiment import experiment
    from gemmule.lab.records import RecordFile
    from gemmule.runtime.device import get_device

    with RecordFile(Path(given.folder), experiment(" ".join(sys.argv), get_device(0).pci_bus_id)) as file:
        for record in records(kinds, sweep=given.sweep, quantize=sizes):
            file.write(record)
            left_out = ("samples_us", "other_samples_us", "record", "dtype", "other", "kernel")
            print({name: value for name, value in record.items() if name not in left_out}, flush=True)


def records(kinds: Sequence[str], *, sweep: bool, quantize: Sizes) -> Iterator[dict[str, Any]]:
    """Yield the records of products and of quantisation, or of configs."""
    for cell in cells(kinds):
        if sweep and cell.kind != "tensor":
            yield from swept(cell)
        elif not sweep:
            yield measured(cell)
    for by, (m, k) in itertools.product(BY, () if sweep else quantize):
        yield quantized(by, m, k)


if __name__ == "__main__":
    main()
