"""Transposes of extreme shapes and permutations of several axes, compared with a copy, PyTorch and CuPy.

Every shape runs what a call chooses, and, where asked, every config of other kernels; results are compared with
PyTorch's bit by bit in memory that was poisoned before. Writes records of kind ``transpose``. Needs an NVIDIA GPU and
PyTorch.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transpose_cases import (
    SEED,
    Case,
    bar,
    drawn,
    drawn_layouts,
    drawn_permutations,
    matrices,
    misaligned,
    named,
    odd,
    permutations,
)

from gemmule.compiler.pool import Job, compile_all, jobs_of
from gemmule.core.chip import Chip
from gemmule.core.errors import CompileError, NoKernelError
from gemmule.core.layout import compact_strides
from gemmule.core.permutation import transpose_problem
from gemmule.core.problem import TransposeProblem, inner_problem, split_batch
from gemmule.core.spec import Choice
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.lab import protocol
from gemmule.lab.bench_records import all_us, ratio_fields, timed, times, us
from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.lab.timing import load, measure
from gemmule.lab.transpose_operation import TRANSPOSE, effective_gbps
from gemmule.runtime.arrays.cupy_arrays import external_stream
from gemmule.runtime.bench import BenchGpu, bench_gpu
from gemmule.runtime.device import current
from gemmule.runtime.driver import call
from gemmule.runtime.rotation import Rotation
from gemmule.runtime.workspaces import Workspaces

#: Integers that PyTorch copies as it does floats of their size; 16 bytes are complex.
_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
# Bytes of the blocks of which the driver copies whole numbers fastest.
_BLOCK = 2 << 20
_POISON = 0x55
_SKINNY = ("transpose_skinny",)


def problem_of(case: Case) -> TransposeProblem:
    """Return what a call makes of a case, in memory of its own."""
    shape, strides = tuple(case.shape[axis] for axis in case.axes), compact_strides(case.shape)
    source = tuple(strides[axis] for axis in case.axes)
    # As calls say it of PyTorch's memory.
    alignment = math.gcd(256, case.offset * case.itemsize)
    return transpose_problem(shape, source, compact_strides(shape), case.itemsize, (alignment, alignment))


def choices_of(case: Case, problem: TransposeProblem, gpu: BenchGpu, every: bool) -> list[tuple[Choice, str]]:
    """Return what a call runs, and the configs of the other kernels that take the problem."""
    chosen = choose(problem, gpu.arch, multiprocessors=gpu.multiprocessors, chip=gpu.name)
    found = [(chosen, "dispatch")]
    if not every and chosen.spec.name in _SKINNY:
        others = tuple(config for config in chosen.spec.configs if config != chosen.config)
        second = dataclasses.replace(chosen.spec, configs=others)
        second = choose(problem, gpu.arch, [second], multiprocessors=gpu.multiprocessors)
        return [*found, (Choice(chosen.spec, second.config), "rung")]
    if every and chosen.spec.name in _SKINNY:
        # What a call would run without the kernel.
        others = [spec for spec in REGISTRY if spec is not chosen.spec]
        found += [(choose(problem, gpu.arch, others, multiprocessors=gpu.multiprocessors), "rung")]
    for spec in REGISTRY if every else ():
        if spec.name in case.also:
            inner = split_batch(problem, spec.batch_dims)[0]
            found += [
                (Choice(spec, config), "rung")
                for config in spec.configs
                if (spec, config) != (chosen.spec, chosen.config) and spec.why_not(inner, gpu.arch, config) is None
            ]
    return found


class Buffers:
    """Sources and targets of a case in the GPU's memory, as many as exceed its L2 cache."""

    def __init__(self, case: Case, problem: TransposeProblem, gpu: BenchGpu) -> None:
        self.case, self.sets = case, protocol.buffer_sets(problem.bytes_min, gpu.l2_bytes)
        count, item = case.offset + math.prod(case.shape), case.itemsize
        raw = torch.randint(0, 256, (count * item,), dtype=torch.uint8, device="cuda")
        # The bits of floats, which PyTorch would not copy for what they are, are never compared as such.
        self.sources = [raw.clone().view(_TYPES[item])[case.offset :].view(case.shape) for _ in range(self.sets)]
        shape, memory = tuple(case.shape[axis] for axis in case.axes), (count,)
        empty = [torch.empty(memory, dtype=_TYPES[item], device="cuda") for _ in range(self.sets)]
        self.targets = [one[case.offset :].view(shape) for one in empty]
        torch.cuda.synchronize()

    def poison(self) -> None:
        """Fill every target."""
        for target in self.targets:
            target.view(torch.uint8).fill_(_POISON)
        torch.cuda.synchronize()

    def is_right(self) -> bool:
        """Return whether the first and the last target are their sources' transposes."""
        return all(
            torch.equal(
                self.targets[index].view(torch.uint8),
                self.sources[index].permute(self.case.axes).contiguous().view(torch.uint8),
            )
            for index in {0, self.sets - 1}
        )


def launches(problem: TransposeProblem, choice: Choice, buffers: Buffers, stream: int) -> Rotation:
    """Return a kernel on every buffer set in turn."""
    from gemmule.runtime.execute import prepared_launches

    workspaces = Workspaces(0, stream)

    def queued(index: int) -> Callable[[], None]:
        addresses = {"a": buffers.sources[index].data_ptr(), "d": buffers.targets[index].data_ptr()}
        steps = list(prepared_launches(problem, choice, addresses, 0, stream, workspaces))

        def queue() -> None:
            for step in steps:
                step()

        return queue

    return Rotation([queued(index) for index in range(buffers.sets)], workspaces)


def copies(buffers: Buffers, size: int, stream: int) -> Rotation:
    """Return the driver's copy of so many bytes on every buffer set in turn."""

    def queued(index: int) -> Callable[[], None]:
        target, source = buffers.targets[index].data_ptr(), buffers.sources[index].data_ptr()

        def queue() -> None:
            with current(0):
                call("cuMemcpyDtoDAsync", target, source, size, stream)

        return queue

    return Rotation([queued(index) for index in range(buffers.sets)])


def peers(buffers: Buffers, stream: int) -> dict[str, Rotation]:
    """Return the transposes of PyTorch, and of CuPy where it is installed, into the same memory."""
    ours, axes = torch.cuda.ExternalStream(stream), buffers.case.axes

    def by_torch(index: int) -> Callable[[], None]:
        source, target = buffers.sources[index].permute(axes), buffers.targets[index]

        def queue() -> None:
            with torch.cuda.stream(ours):
                target.copy_(source)

        return queue

    found = {"torch": Rotation([by_torch(index) for index in range(buffers.sets)])}
    try:
        import cupy
    except ImportError:
        return found
    theirs = external_stream(cupy, stream, 0)

    def by_cupy(index: int) -> Callable[[], None]:
        source, target = (cupy.asarray(x) for x in (buffers.sources[index], buffers.targets[index]))

        def queue() -> None:
            with theirs:
                cupy.copyto(target, source.transpose(axes))

        return queue

    return found | {"cupy": Rotation([by_cupy(index) for index in range(buffers.sets)])}


def measured(case: Case, gpu: BenchGpu, chip: Chip | None, seconds: float, every: bool) -> Iterator[dict[str, Any]]:
    """Yield the records of a case."""
    stream, problem = gpu.transposes().stream, problem_of(case)
    buffers = Buffers(case, problem, gpu)
    works: list[tuple[Choice, str, Rotation]] = []
    for choice, by in choices_of(case, problem, gpu, every):
        about = {"kernel": choice.spec.name, "config": choice.config.as_dict(), **TRANSPOSE.fields(problem)}
        try:
            work = launches(problem, choice, buffers, stream)
        except (CompileError, NoKernelError) as error:
            yield {"record": "failed", "what": choice.spec.name, **about, "reason": str(error)}
            continue
        buffers.poison()
        for _ in range(buffers.sets):
            work()
        gpu.wait()
        if buffers.is_right():
            works.append((choice, by, work))
        else:
            yield {"record": "check", "what": choice.spec.name, "passed": 0, "failed": 1, **about, "reason": "wrong"}
    size = problem.bytes_min // 2
    part = (size - 1) // _BLOCK * _BLOCK
    rows = [copies(buffers, size, stream), *([copies(buffers, part, stream)] if part else [])]
    others = peers(buffers, stream)
    every_work: list[Callable[[], None]] = [*(work for _, _, work in works), *rows, *others.values()]
    for one in every_work:
        one()
    gpu.wait()
    timing = measure(gpu, every_work, buffers.sets, seconds * len(every_work))
    ours, rest = timing.samples[: len(works)], timing.samples[len(works) :]
    copy_gbps = effective_gbps(problem, statistics.median(rest[0]))
    part_gbps = round(2 * part / statistics.median(rest[1]) / 1e9, 2) if part else 0.0
    theirs = dict(zip(others, rest[len(rows) :], strict=True))
    for (choice, by, _), samples in zip(works, ours, strict=True):
        median = statistics.median(samples)
        rate = TRANSPOSE.rate(problem, median, chip)
        record = timed(TRANSPOSE, problem, choice, by) | {"batch": list(problem.batch)}
        record |= {"shape": list(case.shape), "axes": list(case.axes), "seed": case.seed, "offset": case.offset}
        record |= {"name": case.name} if case.name else {}
        record |= times(samples, timing.method) | rate
        record |= {"copy_us": us(statistics.median(rest[0])), "copy_gbps": copy_gbps} | ratio_fields(samples, rest[0])
        if part:
            record |= {"part_copy_bytes": part, "part_copy_us": us(statistics.median(rest[1]))}
            record |= {"part_copy_gbps": part_gbps}
        record["faster_copy_ratio"] = round(rate["gbps"] / max(copy_gbps, part_gbps), 4)
        for name, values in theirs.items():
            record |= {f"{name}_us": us(statistics.median(values))}
            record |= {f"{name}_ratio": round(statistics.median(values) / median, 4)}
        yield record | {"buffer_sets": buffers.sets, **timing.readings, "samples_us": all_us(samples)}


def line(record: dict[str, Any]) -> str:
    """Return a record in words."""
    about = f"{'x'.join(map(str, record.get('shape', ())))} {record.get('axes', '')} of {record['itemsize']}"
    about += f" from {record['offset']}" if record.get("offset") else ""
    about += f" ({record['name']})" if record.get("name") else ""
    what = f"{record['kernel']}[{' '.join(f'{k}={v}' for k, v in record['config'].items())}]"
    if record["record"] != "transpose":
        return f"{about}: {what} {record['record']}: {record['reason']}"
    others = ", ".join(f"{name} {record[f'{name}_ratio']:.2f}" for name in ("torch", "cupy") if f"{name}_us" in record)
    share = f"{record['faster_copy_ratio']:.3f} ({record['ratio']:.3f})"
    return f"{about}: {share} of a copy, {record['median_us']:.1f} us, x {others}; {record['chosen_by']} {what}"


def compile_kernels(cases: Sequence[Case], gpu: BenchGpu, every: bool) -> None:
    """Fill the cache of compiled kernels, by as many processes as there are CPUs."""
    jobs: dict[str, Job] = {}
    for case in cases:
        problem = problem_of(case)
        for choice, _ in choices_of(case, problem, gpu, every):
            inner = inner_problem(problem, choice.batch_dims)
            jobs |= {str(job): job for job in jobs_of(choice, inner, gpu.arch)}
    # What fails is recorded where it would run.
    collections.deque(compile_all(list(jobs.values())), maxlen=0)


def warm_up(gpu: BenchGpu) -> None:
    """Load the GPU for a second."""
    memory, stream = torch.empty(1 << 28, dtype=torch.uint8, device="cuda"), gpu.transposes().stream

    def fill() -> None:
        with current(0):
            call("cuMemsetD8Async", memory.data_ptr(), 0, memory.numel(), stream)

    load(gpu, [fill], 1.0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--seconds", type=float, default=0.03, help="of each kernel at each shape")
    parser.add_argument("--drawn", type=int, default=20, help="random matrices with a short side")
    parser.add_argument("--named", action="store_true", help="only permutations with a name, and random ones")
    parser.add_argument(
        "--layouts", type=int, default=0, help="only the bar, odd tensors, and so many random layouts and permutations"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of the random layouts")
    parser.add_argument("--until", type=float, default=math.inf, help="seconds after which no case begins")
    parser.add_argument("--chosen", action="store_true", help="run only what a call chooses, and the next span")
    given = parser.parse_args(arguments)
    from gemmule.commands.gpu import known_chip

    began = time.monotonic()
    torch.manual_seed(SEED)
    with bench_gpu() as gpu:
        chip = known_chip(gpu.name)
        block = experiment("python benchmarks/records/transpose_shapes.py", gpu.pci_bus_id)
        warm_up(gpu)
        with RecordFile(given.record, block) as file:
            cases = (*named(), *drawn_permutations(given.drawn))
            if given.layouts:
                layouts = drawn_layouts(given.layouts, given.seed)
                drawn_ones = zip(layouts, drawn_permutations(given.layouts * 2, given.seed), strict=False)
                cases = (*bar(), *odd(), *itertools.chain.from_iterable(drawn_ones))
            elif not given.named:
                cases = (*matrices(), *permutations(), *misaligned(), *drawn(given.drawn), *cases)
            compile_kernels(cases, gpu, not given.chosen)
            for case in cases:
                if time.monotonic() - began > given.until:
                    break
                for record in measured(case, gpu, chip, given.seconds, not given.chosen):
                    file.write(record)
                    print(line(record), flush=True)


if __name__ == "__main__":
    main()
