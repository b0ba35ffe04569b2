"""One random problem: its arrays, the call, the result compared with the reference. Nothing waits for a GPU."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
from arguments import arguments_of
from expected import expected, verdict
from layouts import Layout, itemsize_of
from operands import Placed, as_tensor, torch_dtype, values_for
from planning import Target, block_triangle_problem, strided
from problems import FuzzProblem

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
            if unread and values.is_floating_point():
                values = torch.full_like(values, math.nan)
            placed.fill(values)

    def _given(self) -> dict[str, Any]:
        return {name: placed.given(self.problem.library) for name, placed in self.placed.items()}

    def _logical(self) -> dict[str, torch.Tensor]:
        """Return what the operands are, on the device."""
        found = {name: one.logical().to(self.device) for name, one in self.placed.items() if name != "out"}
        return found | ({"b": found["a"].mT} if self.problem.gram else {})

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
        transposes = "transpose" in problem.operation
        if transposes:
            y, error = _permuted(problem, arrays["x"]).clone(), None
        else:
            y, error = expected(problem, arrays)
        before = [one.checksum() for name, one in self.placed.items() if name != target]
        got = self._block_triangle() if problem.operation == "staircase" else self._called(target)
        if spoil is not None:
            spoil(got)
        assert tuple(got.shape) == problem.result, f"the result has shape {tuple(got.shape)}"
        assert got.dtype == torch_dtype(problem.dtypes["out"]), f"the result is {got.dtype}"
        if transposes:
            found = torch.stack((_differing(got, y).double(), torch.zeros((), dtype=torch.float64, device=got.device)))
        else:
            assert error is not None
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
        self.kernel = gm.plan(*positional, operation=operation, **options).kernel
        function = getattr(gm, operation)
        for _ in range(calls_before(problem)):
            function(*positional, **options)
            # Poisoned anew.
            self.placed["out"].strayed()
        result = function(*positional, **options)
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


def _permuted(problem: FuzzProblem, x: torch.Tensor) -> torch.Tensor:
    return x.permute(*reversed(range(x.ndim))) if problem.operation == "transpose" else x.mT


def _differing(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return how many elements differ in their bits."""
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
    strided = any(one.reversed_axes or one.repeated or one.step > 1 for one in problem.layouts.values())
    odd = any(
        one.offset % 16 or (one.pads and (shape[one.order[-1]] + one.pads[0]) * itemsize_of(problem.dtypes[name]) % 16)
        for (name, shape), one in zip(problem.shapes.items(), problem.layouts.values(), strict=True)
        if shape
    )  # fmt: skip
    return {
        "types": f"{types} ({problem.precision})" if problem.precision else types,
        "epilogue": problem.epilogue or "none",
        "operation": "A @ A.T" if problem.gram else problem.operation,
        "batch": "batched" if len(problem.result) > 2 else "one matrix",
        "beta": "0 with NaN in C" if "c" in problem.shapes and problem.beta == 0 else str(bool(problem.beta)),
        "target": problem.target,
        "library": problem.library,
        "values": problem.values,
        "layout": "gaps or other strides" if strided else "misaligned" if odd else "aligned",
        "extents": "an extent of 0" if 0 in problem.result or problem.k == 0 else "M = N = 1"
        if problem.m == problem.n == 1 else "others",
    }  # fmt: skip
