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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

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

SEED = 275
#: Integers that PyTorch copies as it does floats of their size; 16 bytes are complex.
_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
# Bytes of the blocks of which the driver copies whole numbers fastest.
_BLOCK = 2 << 20
_POISON = 0x55


class Case(NamedTuple):
    """A transpose: the source's shape, the order of its axes, the bytes of an element, kernels with all configs.

    Source and target begin `offset` elements after an aligned address. Some have a name.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    itemsize: int
    also: tuple[str, ...] = ()
    offset: int = 0
    name: str = ""


_SKINNY = ("transpose_skinny",)
_BLOCKS = ("transpose_blocks",)
_LONG = 10_000_019


def matrices() -> Iterator[Case]:
    """Yield the matrices of the bar, and others with a short side."""
    for itemsize in (1, 2, 4, 8, 16):
        yield Case((3, _LONG), (1, 0), itemsize, _SKINNY)
        yield Case((_LONG, 3), (1, 0), itemsize, _SKINNY)
    for itemsize in (1, 2, 4, 8, 16):
        yield Case((100_000, 33), (1, 0), itemsize, _SKINNY)
        yield Case((33, 100_000), (1, 0), itemsize, _SKINNY)
    yield Case((1000, 1001), (1, 0), 16, ("transpose_tiled",))
    for short, itemsize in (
        *((short, 1) for short in (2, 4, 5, 7, 8, 12, 16, 64)),
        *((4, 4), (8, 2), (16, 2), (32, 4), (16, 8), (8, 16)),
    ):
        yield Case((short, 16_000_003 // (short * itemsize)), (1, 0), itemsize, _SKINNY)
        yield Case((16_000_003 // (short * itemsize), short), (1, 0), itemsize, _SKINNY)


def misaligned() -> Iterator[Case]:
    """Yield matrices with a short side, and permutations, that begin one element after an aligned address."""
    for itemsize in (1, 2, 4, 8):
        for short in (3, 33):
            long = 16_000_003 // (short * itemsize)
            yield Case((short, long), (1, 0), itemsize, offset=1)
            yield Case((long, short), (1, 0), itemsize, offset=1)
    yield Case((8, 2048, 32, 128), (0, 2, 1, 3), 2, offset=1)
    yield Case((16, 16, 16, 16, 16, 16), (5, 4, 3, 2, 1, 0), 2, offset=1)


def drawn(count: int) -> Iterator[Case]:
    """Yield matrices of a random short side, 2 to 64, and of 1 to 128 MiB."""
    rng = np.random.default_rng(SEED)
    for _ in range(count):
        itemsize = int(rng.choice((1, 2, 4, 8, 16)))
        short = round(2 ** rng.uniform(1, 6))
        long = round(2 ** rng.uniform(20, 27) / (short * itemsize))
        yield Case((short, long) if rng.integers(2) else (long, short), (1, 0), itemsize)


def permutations() -> Iterator[Case]:
    """Yield permutations of three axes and more, as models and images need them."""
    for shape, axes, itemsize in (
        ((8, 2048, 32, 128), (0, 2, 1, 3), 2),
        ((8, 2048, 32, 128), (0, 2, 3, 1), 2),
        ((8, 32, 2048, 128), (0, 2, 1, 3), 4),
        ((8, 1025, 12, 65), (0, 2, 1, 3), 2),
        ((32, 224, 224, 3), (0, 3, 1, 2), 1),
        ((32, 3, 224, 224), (0, 2, 3, 1), 1),
        ((32, 256, 56, 56), (0, 2, 3, 1), 2),
        ((32, 56, 56, 256), (0, 3, 1, 2), 4),
        ((400, 300, 200), (2, 1, 0), 4),
        ((301, 203, 403), (1, 0, 2), 4),
        ((301, 203, 403), (2, 0, 1), 8),
        ((24, 23, 22, 21, 20), (4, 2, 0, 3, 1), 4),
        ((16, 16, 16, 16, 16, 16), (5, 4, 3, 2, 1, 0), 2),
        ((100_000, 8, 12), (0, 2, 1), 2),
        ((3, 100_000, 40), (1, 0, 2), 4),
        ((1000, 33, 3, 17), (3, 1, 0, 2), 4),
        ((64, 8, 8, 8, 96), (0, 3, 2, 1, 4), 1),
        ((4096, 16, 5), (1, 2, 0), 8),
        ((25, 24, 23, 22, 8), (3, 0, 4, 1, 2), 16),
        ((16, 3, 512, 513), (0, 2, 3, 1), 4),
    ):
        yield Case(shape, axes, itemsize, _BLOCKS)
    for itemsize, axes in itertools.product((1, 2, 4, 8, 16), ((0, 2, 1), (2, 1, 0), (1, 0, 2))):
        yield Case((256, 320, 6400 // (4 * itemsize)), axes, itemsize)


def named() -> Iterator[Case]:
    """Yield permutations of models, images and tensors by their names."""
    for name, shape, axes, itemsize in (
        ("attention heads, bfloat16", (8, 2048, 32, 128), (0, 2, 1, 3), 2),
        ("attention heads, 577 patches, float16", (16, 577, 16, 80), (0, 2, 1, 3), 2),
        ("attention heads of 8, bfloat16", (8, 4096, 16, 8), (0, 2, 1, 3), 2),
        ("keys transposed, bfloat16", (8, 1500, 20, 64), (0, 2, 3, 1), 2),
        ("Q, K and V, 197 patches, float32", (64, 197, 3, 12, 64), (2, 0, 3, 1, 4), 4),
        ("Q, K and V, heads of 65, bfloat16", (8, 1025, 3, 12, 65), (2, 0, 3, 1, 4), 2),
        ("NHWC to NCHW, 3 channels, uint8", (64, 224, 224, 3), (0, 3, 1, 2), 1),
        ("NHWC to NCHW, 3 channels, odd, float32", (64, 255, 257, 3), (0, 3, 1, 2), 4),
        ("NCHW to NHWC, 3 channels, odd, float16", (64, 3, 299, 299), (0, 2, 3, 1), 2),
        ("NCHW to NHWC, 4 channels, odd, uint8", (64, 4, 333, 335), (0, 2, 3, 1), 1),
        ("NCHW to NHWC, 17 channels, odd, float32", (32, 17, 255, 257), (0, 2, 3, 1), 4),
        ("NHWC to NCHW, 17 channels, odd, float16", (32, 255, 257, 17), (0, 3, 1, 2), 2),
        ("NCHW to NHWC, 7 x 7, float16", (128, 512, 7, 7), (0, 2, 3, 1), 2),
        ("NHWC to NCHW, 14 x 14, float16", (64, 14, 14, 256), (0, 3, 1, 2), 2),
        ("video, channels first, uint8", (16, 65, 112, 113, 3), (0, 4, 1, 2, 3), 1),
        ("windows of 7 x 7, 96 channels, float16", (64, 8, 7, 8, 7, 96), (0, 1, 3, 2, 4, 5), 2),
        ("windows of 7 x 7, 1 channel, float32", (256, 32, 7, 32, 7), (0, 1, 3, 2, 4), 4),
        ("windows of 7 x 7, 3 channels, uint8", (64, 32, 7, 32, 7, 3), (0, 1, 3, 2, 4, 5), 1),
        ("patches of 14 x 14, float16", (64, 3, 16, 14, 16, 14), (0, 2, 4, 1, 3, 5), 2),
        ("patches of 14 x 14, channels last, float16", (64, 3, 16, 14, 16, 14), (0, 2, 4, 3, 5, 1), 2),
        ("patches of 16 x 16, channels last, float32", (64, 3, 14, 16, 14, 16), (0, 2, 4, 3, 5, 1), 4),
        ("images of patches of 16 x 16, float32", (64, 14, 14, 16, 16, 3), (0, 5, 1, 3, 2, 4), 4),
        ("pixel shuffle by 2, float32", (16, 64, 2, 2, 128, 128), (0, 1, 4, 2, 5, 3), 4),
        ("pixel shuffle by 3, odd, float32", (16, 16, 3, 3, 127, 129), (0, 1, 4, 2, 5, 3), 4),
        ("pixel unshuffle by 3, float16", (16, 3, 128, 3, 128, 3), (0, 1, 3, 5, 2, 4), 2),
        ("sequences first, 255 features, float32", (1001, 64, 255), (1, 0, 2), 4),
        ("tensor of 5, 7, 9, float32", (1001, 5, 7, 9, 13), (4, 2, 0, 1, 3), 4),
        ("tensor of 5, 7, 9, float64", (1001, 5, 7, 9, 13), (3, 1, 4, 2, 0), 8),
        ("tensor of 5, 7, 9, bfloat16", (1001, 5, 7, 9, 13), (4, 2, 0, 1, 3), 2),
        ("tensor of seven 9, float32", (9,) * 7, (6, 5, 4, 3, 2, 1, 0), 4),
        ("tensor of 15 and 25, float32", (15, 25, 15, 25, 15, 25), (5, 3, 1, 4, 2, 0), 4),
        ("matrices of 11 x 13, complex64", (20_000, 11, 13), (0, 2, 1), 8),
        ("tensor of 7, 9, 11, complex128", (3000, 7, 9, 11), (3, 2, 0, 1), 16),
        ("tensor of 7, 9, 11, int8", (20_000, 7, 9, 11), (0, 3, 2, 1), 1),
        ("six qubits reversed, complex64", (2, 2, 2, 2, 2, 2, 1 << 18), (6, 5, 4, 3, 2, 1, 0), 8),
    ):
        yield Case(shape, axes, itemsize, name=name)


def drawn_permutations(count: int) -> Iterator[Case]:
    """Yield permutations of 3 to 6 random axes, of 4 to 64 MiB."""
    rng = np.random.default_rng(SEED + 1)
    for _ in range(count):
        itemsize, rank = int(rng.choice((1, 2, 4, 8, 16))), int(rng.integers(3, 7))
        size = 2 ** rng.uniform(22, 26) / itemsize
        shape = tuple(max(2, round(size**share)) for share in rng.dirichlet([3.0] * rank))
        axes = tuple(map(int, rng.permutation(rank)))
        if axes != tuple(range(rank)):
            yield Case(shape, axes, itemsize)


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
        record |= {"shape": list(case.shape), "axes": list(case.axes), "seed": SEED, "offset": case.offset}
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
            inner = inner_problem(problem, choice.spec.batch_dims)
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
    parser.add_argument("--chosen", action="store_true", help="run only what a call chooses, and the next span")
    given = parser.parse_args(arguments)
    from gemmule.commands.gpu import known_chip

    torch.manual_seed(SEED)
    with bench_gpu() as gpu:
        chip = known_chip(gpu.name)
        block = experiment("python benchmarks/records/transpose_shapes.py", gpu.pci_bus_id)
        warm_up(gpu)
        with RecordFile(given.record, block) as file:
            cases = (*named(), *drawn_permutations(given.drawn))
            if not given.named:
                cases = (*matrices(), *permutations(), *misaligned(), *drawn(given.drawn), *cases)
            compile_kernels(cases, gpu, not given.chosen)
            for case in cases:
                for record in measured(case, gpu, chip, given.seconds, not given.chosen):
                    file.write(record)
                    print(line(record), flush=True)


if __name__ == "__main__":
    main()
