"""What C, epilogues and other outputs cost over the plain product, in the configs that calls choose.

For layers of models, random products and batches of a seed, the plain product, each form of `FORMS`, and PyTorch's way
to the same result are timed interleaved, in CUDA graphs over rotating buffers. Each form is timed in the config that
the cost model chooses for it and in that of the plain product, and the plain product in the former, which tells what
the kernel costs from what the choice costs. Results are held against float64 on some rows. Needs an NVIDIA GPU,
PyTorch and the compiler.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from epilogue_products import BATCHES, FORMS, PLAIN, Form, Shape, shape_of, shapes

from gemmule.compiler.pool import compile_all, jobs_of
from gemmule.core.errors import CompileError, WrongResultError
from gemmule.core.layout import StridedMatrix
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Choice
from gemmule.dispatch.rates_table import rates_for
from gemmule.dispatch.select import choose
from gemmule.lab import protocol
from gemmule.lab.experiment import experiment
from gemmule.lab.gemm_operation import named
from gemmule.lab.records import RecordFile
from gemmule.runtime.bench import BenchGpu, bench_gpu
from gemmule.runtime.device import get_device
from gemmule.runtime.memory import clear
from gemmule.runtime.rotation import Rotation
from gemmule.runtime.workspaces import Workspaces

#: Bytes of the pools of inputs and of outputs, alignment of matrices, seconds of a sample, rounds there and back, and
#: sizes of the L2 cache that all buffer sets together have, most sets.
_INPUTS, _OUTPUTS, _ALIGNED, _SAMPLE, _ROUNDS, _CACHES, _SETS = 8 << 30, 6 << 30, 256, 0.6e-3, 5, 2, 128
_CHECKED_ROWS = 16


class Operands:
    """Buffer sets of all forms of a product: the same A, B, C and bias, and outputs."""

    def __init__(self, problem: GemmProblem, sets: int, pools: Pools, workspaces: Workspaces) -> None:
        count = math.prod(problem.batch)
        sizes = {
            "a": problem.m * problem.k * count, "b": problem.k * problem.n * count,
            "c": problem.m * problem.n * count, "e0": problem.n, "d": problem.m * problem.n * count,
        }  # fmt: skip
        item = {"a": 2, "b": 2, "c": 2, "e0": 2, "d": 4}
        self._bytes = {name: -(-sizes[name] * item[name] // _ALIGNED) * _ALIGNED for name in sizes}
        self._set_bytes = sum(self._bytes.values()) - self._bytes["d"]
        most = min(_INPUTS // self._set_bytes, _OUTPUTS // self._bytes["d"])
        self.sets, self.workspaces, self._pools = max(1, min(sets, most)), workspaces, pools
        self._half = problem.k * problem.n // 2 * count * 2

    def addresses(self, index: int) -> dict[str, int]:
        """Return the operands' addresses in a set; `u` is the second half of B."""
        address, found = self._pools.inputs.data_ptr() + index * self._set_bytes, {}
        for name in ("a", "b", "c", "e0"):
            found[name] = address
            address += self._bytes[name]
        d = self._pools.outputs.data_ptr() + index * self._bytes["d"]
        return found | {"u": found["b"] + self._half, "d": d, "absmax": self._pools.largest.data_ptr()}


class Pools:
    """Memory of PyTorch with random values of one type."""

    def __init__(self) -> None:
        import torch

        self.torch, self._filled = torch, ""
        self.inputs = torch.empty(_INPUTS, dtype=torch.uint8, device="cuda")
        self.outputs = torch.empty(_OUTPUTS, dtype=torch.uint8, device="cuda")
        self.largest = torch.zeros(1, device="cuda")

    def fill(self, dtype: str, *, zeros: bool = False) -> None:
        """Fill the inputs with random values of a type, or zeros, for which power is no limit."""
        if dtype != self._filled:
            self._filled = dtype
            for one in self.inputs.view(getattr(self.torch, dtype)).split(1 << 28):
                one.zero_() if zeros else one.normal_()
            self.torch.cuda.synchronize()

    def view(self, name: str, address: int, matrix: StridedMatrix, batch: tuple[int, ...]) -> Any:
        """Return an operand as PyTorch has it, matrices of a batch first."""
        typed = (self.outputs if name == "d" else self.inputs).view(getattr(self.torch, matrix.dtype.name))
        first = (address - typed.data_ptr()) // matrix.dtype.itemsize
        strides = (*matrix.batch_strides, matrix.row_stride, matrix.col_stride)
        return typed.as_strided((*batch, matrix.rows, matrix.cols), strides, first)

    def views(self, problem: GemmProblem, at: dict[str, int]) -> dict[str, Any]:
        """Return the operands of a problem as PyTorch has them."""
        return {
            name: self.view(name, at[name], matrix, problem.batch)
            for name, matrix in problem.operands().items()
            if name != "absmax"
        }

    def reference(self, form: Form, problem: GemmProblem, at: dict[str, int], rows: Any) -> Any:
        """Return some rows of the result in float64."""
        views, torch = self.views(problem, at), self.torch
        some = views["a"][..., rows, :].double()
        found = some @ views["b"].double()
        if form.gated:
            return torch.nn.functional.silu(found) * (some @ views["u"].double())
        if form.bias:
            found = found + views["e0"][..., rows, :].double()
        if form.function in ("gelu", "relu"):
            return getattr(torch.nn.functional, form.function)(found)
        return found + views["c"][..., rows, :].double() if form.c else found

    def check(self, form: Form, problem: GemmProblem, at: dict[str, int], work: Callable[[], None], gpu: Any) -> None:
        """Run into poisoned memory and compare some rows with float64."""
        torch = self.torch
        self.largest.fill_(float("nan"))
        self.outputs[: problem.m * problem.n * math.prod(problem.batch) * problem.d.dtype.itemsize].fill_(0xFF)
        torch.cuda.synchronize()
        work()
        gpu.wait()
        if form.absmax:
            largest = float(self.views(problem, at)["d"].abs().amax())
            if not abs(float(self.largest) - largest) <= 2 * problem.d.dtype.unit_roundoff * largest:
                raise WrongResultError(f"{problem} {form.name}: the maximum is {float(self.largest)}, not {largest}")
        rows = torch.unique(torch.linspace(0, problem.m - 1, _CHECKED_ROWS, device="cuda").long())
        exact = self.reference(form, problem, at, rows)
        got = self.views(problem, at)["d"][..., rows, :].double()
        unit = 2.0**-4 if form.out.startswith("float8") else problem.d.dtype.unit_roundoff
        if form.out.startswith("float8"):
            exact = exact.clamp(-448, 448)
        bound = 1.02 * unit * exact.abs() + 2e-4 * math.sqrt(problem.k) * (1 + exact.abs().amax() / 64)
        if not bool(((got - exact).abs() <= bound).all()):
            raise WrongResultError(f"{problem} {form.name}: off by {float(((got - exact).abs() / bound).max())} bounds")

    def baseline(self, form: Form, problem: GemmProblem, at: dict[str, int], plain: GemmProblem) -> Any:
        """Return PyTorch's ways to the same result, by name."""
        torch, views, all_b = self.torch, self.views(problem, at), self.views(plain, at)["b"]
        ops, a, b, d = torch.ops.aten, views["a"], views["b"], views["d"]
        multiply, add = (ops.bmm, ops.baddbmm) if problem.batch else (ops.mm, ops.addmm)
        gelu, bias = torch.nn.functional.gelu, None
        if form.bias:
            bias = views["e0"][..., :1, :] if problem.batch else views["e0"][0]
        ways: dict[str, Callable[[], Any]] = {}
        if form.name == "plain":
            ways["mm"] = lambda: multiply.out(a, b, out=d)
        elif form.name == "beta_c":
            ways["addmm"] = lambda: add.out(views["c"], a, b, out=d)
        elif form.name == "bias":
            ways["addmm"] = lambda: add.out(bias, a, b, out=d)
        elif form.name == "bias_gelu":
            ways["addmm, gelu"] = lambda: gelu(add(bias, a, b))
            if not problem.batch:
                ways["_addmm_activation"] = lambda: ops._addmm_activation(bias, a, b, use_gelu=True)
        elif form.name == "bias_residual":
            ways["addmm, add"] = lambda: add(bias, a, b).add_(views["c"])
        elif form.gated:

            def gated() -> Any:
                gate, up = multiply(a, all_b).chunk(2, -1)
                return torch.nn.functional.silu(gate) * up

            ways["mm, silu, mul"] = gated
        elif form.absmax:
            ways["addmm, relu, amax"] = lambda: add(bias, a, b).relu_().amax()
        elif form.out == "float32" and not problem.batch:
            ways["mm"] = lambda: torch.mm(a, b, out_dtype=torch.float32)
        return ways


class Session:
    """One run."""

    def __init__(self, gpu: BenchGpu, arch: Any, failing: set[str], *, zeros: bool = False) -> None:
        self.gpu, self.arch, self.failing, self.pools, self.zeros = gpu, arch, failing, Pools(), zeros

    def measured(self, shape: Shape, choices: dict[str, list[Choice]], forms: Sequence[Form]) -> Iterator[Any]:
        """Measure a shape in all forms."""
        plain = shape.problem(PLAIN)
        self.pools.fill(shape.dtype, zeros=self.zeros)
        with self.gpu.workspaces() as workspaces:
            sets = math.ceil(_CACHES * self.gpu.l2_bytes / plain.bytes_min)
            operands = Operands(plain, min(sets, _SETS), self.pools, workspaces)
            works: dict[tuple[str, str], Callable[[], None]] = {}
            for form in (PLAIN, *forms):
                problem = shape.problem(form)
                for choice in choices[form.name]:
                    if not self.failing.intersection(str(job) for job in jobs_of(choice, problem, self.arch)):
                        try:
                            works[form.name, str(choice.config)] = self._ours(form, problem, choice, operands)
                        except WrongResultError as error:
                            print(f"wrong: {choice.config} {error}", flush=True)
                            continue
                        if form.absmax and not choice.clears_absmax(problem):
                            works[form.name, "not cleared"] = self.gpu.kernel(problem, choice, operands)  # type: ignore[arg-type]
                if not self.zeros:
                    works |= self._theirs(form, problem, plain, operands)
            names = list(works)
            times = dict(zip(names, self._times([works[name] for name in names], operands.sets), strict=True))
            self.gpu.wait()
        for form in (PLAIN, *forms):
            here = [(str(one.config), one) for one in choices[form.name]]
            yield {
                "record": "epilogue_costs", **named(plain), "form": form.name, "sets": operands.sets,
                "kernel": here[0][1].spec.name, "config": here[0][0], "plain_config": str(choices["plain"][0].config),
                "us": {key: value for (name, key), value in times.items() if name == form.name},
                "plain_us": {key: value for (name, key), value in times.items() if name == "plain"},
                "torch_us": {key: value for (name, key), value in times.items() if name == f"torch {form.name}"},
                "bytes": shape.problem(form).bytes_min, "zeros": self.zeros,
            }  # fmt: skip

    def _ours(self, form: Form, problem: GemmProblem, choice: Choice, operands: Any) -> Callable[[], None]:
        work = self.gpu.kernel(problem, choice, operands)
        stream = self.gpu._stream

        def cleared() -> None:
            clear(self.pools.largest.data_ptr(), 4, 0, stream)
            work()

        found = cleared if form.absmax and not choice.clears_absmax(problem) else work
        self.pools.check(form, problem, operands.addresses(0), found, self.gpu)
        return found

    def _theirs(
        self, form: Form, problem: GemmProblem, plain: GemmProblem, operands: Any
    ) -> dict[tuple[str, str], Callable[[], None]]:
        torch = self.pools.torch
        found: dict[tuple[str, str], Callable[[], None]] = {}
        stream = torch.cuda.ExternalStream(self.gpu._stream)
        ways = [self.pools.baseline(form, problem, operands.addresses(x), plain) for x in range(operands.sets)]

        def on_stream(call: Callable[[], Any]) -> Callable[[], None]:
            def queue() -> None:
                with torch.cuda.stream(stream):
                    call()

            return queue

        for name in ways[0]:
            work = Rotation([on_stream(one[name]) for one in ways])
            try:
                work()
                self.gpu.wait()
            except (RuntimeError, NotImplementedError) as error:
                print(f"{form.name} {name}: {str(error)[:100]}", flush=True)
                continue
            found[f"torch {form.name}", name] = work
        return found

    def _times(self, works: Sequence[Callable[[], None]], sets: int) -> list[float]:
        """Return the median microseconds of a call of each work, interleaved."""
        samples: list[list[float]] = [[] for _ in works]
        with contextlib.ExitStack() as stack:
            watches = []
            for work in works:
                with self.gpu.stopwatch(work, 2, graph=False) as watch:
                    one = max(min(watch.queue()() for _ in range(2)), 4e-6)
                calls = max(1, round(_SAMPLE / one / sets)) * sets
                watches.append(stack.enter_context(self.gpu.stopwatch(work, calls, graph=True)))
            for _ in range(_ROUNDS):
                queued = [(index, watches[index].queue()) for index in protocol.turns(len(works))]
                for index, seconds_of in queued:
                    samples[index].append(seconds_of() * 1e6)
        return [round(statistics.median(one), 3) for one in samples]


def chosen(
    shape: Shape, forms: Sequence[Form], device: Any, same: Sequence[str], leading: int = 0
) -> dict[str, list[Choice]]:
    """Return the configs of each form, the chosen one first.

    Of forms `same` that of the plain product too, and of all forms those that lead by predicted times.
    """
    facts: dict[str, Any] = {"multiprocessors": device.multiprocessors, "chip": device.name, "tuned": False}
    found = {form.name: [choose(shape.problem(form), device.arch, **facts)] for form in (PLAIN, *forms)}
    (plain,) = found["plain"]
    for form in forms:
        (own,) = found[form.name]
        if own.spec is plain.spec and own.config != plain.config and form.name in same:
            if plain.spec.why_not(shape.problem(form), device.arch, plain.config) is None:
                found[form.name].append(plain)
            if not form.gated and own not in found["plain"]:
                found["plain"].append(own)
    for form in (PLAIN, *forms):
        known = {one.config for one in found[form.name]}
        others = _leading(shape.problem(form), found[form.name][0], device, leading)
        found[form.name] += [one for one in others if one.config not in known]
    return found


def _leading(problem: GemmProblem, first: Choice, device: Any, count: int) -> list[Choice]:
    """Return so many configs of the chosen kernel, of least predicted time."""
    if not count or first.spec.costs is None:
        return []
    configs = [one for one in first.spec.configs if first.spec.why_not(problem, device.arch, one) is None]
    times = first.spec.costs(problem, configs, rates_for(device.name, device.multiprocessors))
    return [Choice(first.spec, configs[place]) for place in np.argsort(times)[:count]]


def main() -> None:
    """Compile, measure, and write a record file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--shapes", nargs="*", default=[], help="other products: MxNxKxLAYOUT")
    parser.add_argument("--batches", type=int, default=len(BATCHES))
    parser.add_argument("--forms", nargs="*", default=[form.name for form in FORMS])
    parser.add_argument(
        "--same",
        nargs="*",
        default=["beta_c", "bias_gelu", "float32", "float8"],
        help="forms in the config of the plain product too",
    )
    parser.add_argument("--leading", type=int, default=0, help="configs of each form that are timed too")
    parser.add_argument("--zeros", action="store_true", help="zeros as operands, and no baselines")
    parser.add_argument("--compiling", type=float, default=55, help="seconds after which no more kernels are compiled")
    parser.add_argument("--seconds", type=float, default=88, help="seconds of all")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    began, forms = time.time(), [form for form in FORMS if form.name in given.forms]
    device = get_device()
    found = [shape_of(one) for one in given.shapes]
    found += shapes(given.seed, given.layers, given.draws, given.batches)
    plans = [(shape, chosen(shape, forms, device, given.same, given.leading)) for shape in found]
    jobs: dict[str, Any] = {}
    needed: collections.Counter[str] = collections.Counter()
    for shape, choices in plans:
        for form in (PLAIN, *forms):
            for choice in choices[form.name]:
                for job in jobs_of(choice, shape.problem(form), device.arch):
                    jobs[str(job)] = job
                    needed[str(job)] += 1
    print(f"{len(plans)} shapes, {len(jobs)} kernels", flush=True)
    failing, left = set(jobs), [jobs[name] for name, _ in needed.most_common()]
    while left and time.time() - began < given.compiling:
        part, left = left[:64], left[64:]
        for job, result in compile_all(part):
            if isinstance(result, CompileError):
                print(f"left out: {job}: {str(result)[:200]}", flush=True)
                continue
            if result.resources.spill_bytes:
                print(f"spills {result.resources.spill_bytes}: {job}", flush=True)
            failing.discard(str(job))
    print(f"{time.time() - began:.0f} s: compiled all but {len(failing)}", flush=True)
    words = [word for word, before in zip(sys.argv[1:], sys.argv, strict=False) if "--record" not in (word, before)]
    block = experiment(" ".join(["python", "benchmarks/experiments/epilogue_costs.py", *words]), device.pci_bus_id)
    with RecordFile(given.record, block) as file, bench_gpu() as gpu:
        session = Session(gpu, device.arch, failing, zeros=given.zeros)
        for shape, choices in plans:
            if time.time() - began > given.seconds:
                print("the time is over", flush=True)
                break
            for record in session.measured(shape, choices, forms):
                file.write(record)
            print(f"{time.time() - began:.1f} s: {shape}", flush=True)


if __name__ == "__main__":
    main()
