"""One random problem: its arrays, the call, the result compared with the reference. Nothing waits for a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from arguments import arguments_of, called_by_torch
from expected import expected, groups_of, length_of, verdict
from layouts import Layout, itemsize_of
from operands import Placed, as_tensor, torch_dtype, values_for
from planning import Target, block_triangle_problem, strided
from problems import FuzzProblem
from quantized import quantized_verdict

import gemmule as gm


class Call:
    """A problem with its arrays.

    Parameters
    ----------
    problem : FuzzProblem
        What is to be computed.
    device : str
        PyTorch's name of the device.
    target : Target
        Where it runs.
    """

    def __init__(self, problem: FuzzProblem, device: str, target: Target) -> None:
        if target.executor is not None:
            problem = on_the_host(problem, target.executor)
        self.problem, self.device, self.target = problem, device, target
        self.kernel = ""
        # Arrays of NumPy and JAX are made of host memory.
        self._home = "cpu" if problem.library in ("numpy", "jax") else device
        self.placed = {
            name: Placed(shape, problem.dtypes[name], problem.layouts[name], self._home)
            for name, shape in problem.shapes.items()
        }
        self.absmax = Placed((1,), "float32", Layout((0,)), self._home) if problem.epilogue == "absmax" else None

    def fill(self) -> None:
        """Write fresh values; NaN where nothing is to be read."""
        problem = self.problem
        generator = torch.Generator(self._home).manual_seed(problem.seed * 1_000_003 + problem.index)
        for name, placed in self.placed.items():
            if name == "out":
                continue
            values = values_for(problem, name, generator, self._home)
            unread = name == "c" and problem.beta == 0 and problem.epilogue != "residual"
            unread = unread or (name in "ab" and problem.alpha == 0)
            if unread and (values.is_floating_point() or values.is_complex()):
                values = torch.full_like(values, complex(math.nan, math.nan) if values.is_complex() else math.nan)
            if problem.divided and values.is_floating_point():
                _spoil_unread(problem, name, values)
            placed.fill(values)

    def _given(self) -> dict[str, Any]:
        return {name: placed.given(self.problem.library) for name, placed in self.placed.items()}

    def _logical(self) -> dict[str, torch.Tensor]:
        """Return what the operands are, on the device."""
        found = {name: one.logical().to(self.device) for name, one in self.placed.items() if name != "out"}
        found |= {"b": found["a"].mT} if self.problem.gram else {}
        return found | {name: found[name].conj().resolve_conj() for name in self.problem.conjugated}

    def run(self, spoil: Callable[[Any], None] | None = None) -> torch.Tensor:
        """Call, and return wrong elements, the worst error in bounds, bytes written astray and inputs changed.

        Parameters
        ----------
        spoil : callable, optional
            Does something to the result before it is looked at: a check must see it.
        """
        problem = self.problem
        target = problem.target if problem.target in ("c", "x") else "out"
        arrays = self._logical()
        transposes, quantizes = "transpose" in problem.operation, problem.operation == "quantize"
        y: Any = None
        if transposes:
            y = _permuted(problem, arrays["x"]).clone()
        elif not quantizes:
            y, error = expected(problem, arrays)
        before = [one.checksum() for name, one in self.placed.items() if name != target]
        got = self._block_triangle() if problem.operation == "staircase" else self._called(target)
        result = got[0] if quantizes else got
        if spoil is not None:
            spoil(result)
        assert tuple(result.shape) == problem.result, f"the result has shape {tuple(result.shape)}"
        assert result.dtype == torch_dtype(problem.dtypes["out"]), f"the result is {result.dtype}"
        if quantizes:
            found = quantized_verdict(problem, arrays["x"], got)
        elif transposes:
            found = torch.stack((_differing(got, y).double(), torch.zeros((), dtype=torch.float64, device=got.device)))
        else:
            found = verdict(problem, got, y, error)
            if self.absmax is not None:
                found[0] += self._wrong_absmax(y, error)
        after = [one.checksum() for name, one in self.placed.items() if name != target]
        changed = sum((x != z).double() for x, z in zip(before, after, strict=True))
        strayed = self.placed[target].strayed().double() if problem.target != "new" else torch.zeros(())
        if self.absmax is not None:
            strayed = strayed + self.absmax.strayed().to(strayed.device)
        home = found.device
        rest = [torch.as_tensor(x, dtype=torch.float64).to(home) for x in (strayed, changed)]
        return torch.cat((found, torch.stack(rest)))

    def _called(self, target: str) -> torch.Tensor:
        problem = self.problem
        absmax = self.absmax.given(problem.library) if self.absmax is not None else None
        operation, positional, options = arguments_of(problem, self._given(), absmax)
        on_gpu = self.target.executor is None
        if not on_gpu or problem.library == "numpy":
            options["executor"] = self.target.executor or "gpu"
        self.kernel = getattr(gm, operation).plan(*positional, **options).kernel
        function = getattr(gm, operation)
        by_torch = self.target.executor != "vgpu" and problem.frontend == "torch"
        for _ in range(calls_before(problem)):
            called_by_torch(problem, positional, options) if by_torch else function(*positional, **options)
            if "out" in self.placed:
                # Poisoned anew.
                self.placed["out"].strayed()
        result = called_by_torch(problem, positional, options) if by_torch else function(*positional, **options)
        if problem.operation == "quantize":
            return result
        if problem.target == "new":
            return as_tensor(result, problem.library, problem.dtypes["out"], self.device)
        return self.placed[target].logical().to(self.device)

    def _block_triangle(self) -> torch.Tensor:
        """Compute what is needed of a product as streams do, by dispatch and launch alone."""
        problem = self.problem
        views = {name: one.view for name, one in self.placed.items()}
        matrices = {
            name: strided(x, problem.dtypes[name], x.data_ptr(), tuple(x.stride())) for name, x in views.items()
        }
        described = block_triangle_problem(problem, matrices)
        choice = self.target.choose(described)
        self.kernel = choice.spec.name
        names = {"a": "a", "b": "b", "d": "out"} | ({"c": "c"} if described.c is not None else {})
        if self.target.executor is None:
            from gemmule.runtime.execute import run_kernel

            pointers = {operand: views[name].data_ptr() for operand, name in names.items()}
            run_kernel(described, choice, pointers, 0, torch.cuda.current_stream().cuda_stream)
        elif self.target.executor == "vgpu":
            from gemmule.vgpu.execute import run_kernel as run_virtual

            run_virtual(described, choice, {operand: views[name].numpy() for operand, name in names.items()})
        else:
            kind = views["out"].dtype
            alpha, beta = (float(torch.tensor(x, dtype=kind)) for x in (problem.alpha, problem.beta))
            total = alpha * torch.matmul(views["a"].double(), views["b"].double()) if alpha else 0.0
            added = beta * views["c"].double() if beta else 0.0
            views["out"].copy_(torch.zeros_like(views["out"]) + total + added)
        return self.placed["out"].logical()

    def _wrong_absmax(self, y: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        assert self.absmax is not None
        got = self.absmax.view[0].double().to(y.device)
        if not y.numel():
            return (got != 0).double()
        largest = y.abs().max()
        near = (got - largest).abs() <= error.max() + 2.0**-23 * largest
        return (~(near | (got == largest) | (got.isnan() & largest.isnan()))).double()


def on_the_host(problem: FuzzProblem, executor: str) -> FuzzProblem:
    """Return a problem as the host takes it, which reads offsets: none beyond the end, no number of no matrix.

    BLAS multiplies an infinite part of a complex number by both parts of a real scalar.
    """
    if problem.divided:
        most = problem.extent - 1 if problem.divided == "row" else problem.extent
        numbers = tuple(max(min(number, most), 0) for number in problem.numbers)
        problem = dataclasses.replace(problem, numbers=numbers)
    if executor == "cpu" and problem.is_complex and problem.values == "special":
        problem = dataclasses.replace(problem, values="wide")
    return problem


def _spoil_unread(problem: FuzzProblem, name: str, values: torch.Tensor) -> None:
    """Write NaN where no group is: into what is beyond the last one, and matrices of groups that are empty."""
    of_groups = {"m": ("b", "bias", "scale_b"), "row": ("b",), "n": ("a",), "k": ()}[problem.divided]
    axis = {"m": {"a": 0, "scale_a": 0}, "row": {"a": 0}, "n": {"b": 1}, "k": {"a": 1, "b": 0}}[problem.divided].get(
        name
    )
    used = torch.zeros(values.shape[axis] if axis is not None else values.shape[0], dtype=torch.bool)
    if name in of_groups and len(used) == problem.groups:
        for group, part in groups_of(problem):
            used[group] = length_of(part) > 0
        values[~used.to(values.device)] = math.nan
    elif axis is not None and values.shape[axis] > 1:
        for _, part in groups_of(problem):
            used[part] = True
        values.transpose(0, axis)[~used.to(values.device)] = math.nan


def _permuted(problem: FuzzProblem, x: torch.Tensor) -> torch.Tensor:
    if problem.operation == "matrix_transpose":
        return x.mT
    return x.permute(problem.options.get("axes", tuple(reversed(range(x.ndim)))))


def _differing(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return how many elements differ in their bits, of complex ones how many parts."""
    got, wanted = (torch.view_as_real(x) if x.is_complex() else x for x in (got, wanted))
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    return (got.contiguous().view(integer) != wanted.contiguous().view(integer)).sum()


def calls_before(problem: FuzzProblem) -> int:
    """Return how often the same is called before the call that is checked: later calls replay what was decided."""
    return 0 if problem.target in ("c", "x") else (0, 0, 1, 2)[problem.index % 4]


def on_stream(problem: FuzzProblem, device: str) -> contextlib.AbstractContextManager[Any]:
    """Make the problem's stream the current one, for its arrays too, whose memory is freed there."""
    if device == "cpu" or problem.stream == 0:
        return contextlib.nullcontext()
    return torch.cuda.stream(_stream(problem.stream))


_streams: dict[int, Any] = {}


def _stream(number: int) -> Any:
    if number not in _streams:
        _streams[number] = torch.cuda.Stream()
    return _streams[number]


def labels(problem: FuzzProblem) -> dict[str, str]:
    """Return what problems are counted by."""
    a, b = problem.dtypes.get("a", problem.dtypes["out"]), problem.dtypes.get("b", problem.dtypes["out"])
    types = a if a == b or problem.gram else f"{a} x {b}"
    if problem.operation == "quantize":
        types = f"{problem.dtypes['x']} to {problem.dtypes['out']}"
    strided = any(one.reversed_axes or one.repeated or one.step > 1 for one in problem.layouts.values())
    odd = any(
        one.offset % 16 or (one.pads and (shape[one.order[-1]] + one.pads[0]) * itemsize_of(problem.dtypes[name]) % 16)
        for (name, shape), one in zip(problem.shapes.items(), problem.layouts.values(), strict=True)
        if shape
    )  # fmt: skip
    further = {
        "conjugates": problem.conjugated and f"{problem.conjugated}{', lazily' * bool(problem.lazy)}",
        "groups": problem.divided and f"of {problem.divided}",
        "frontend": problem.frontend and f"gemmule.{problem.frontend}",
    }  # fmt: skip
    return {what: name for what, name in further.items() if name} | {
        "types": f"{types} ({problem.precision})" if problem.precision else types,
        "epilogue": problem.epilogue or "none",
        "operation": "A @ A.T" if problem.gram else problem.operation,
        "batch": "batched" if len(problem.result) > 2 else "one matrix",
        "beta": "0 with NaN in C" if "c" in problem.shapes and problem.beta == 0 else str(bool(problem.beta)),
        "target": problem.target,
        "library": problem.library,
        "values": problem.values,
        "layout": "gaps or other strides" if strided else "misaligned" if odd else "aligned",
        "extents": "an extent of 0" if any(0 in shape for shape in problem.shapes.values()) else "M = N = 1"
        if problem.m == problem.n == 1 else "others",
    }  # fmt: skip
