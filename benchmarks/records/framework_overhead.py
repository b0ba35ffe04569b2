"""Host time of a call through PyTorch and JAX, beside torch.mm; writes records.

``python benchmarks/records/framework_overhead.py RESULTS_FOLDER``. The matrices are so small that the host is what
takes time. All paths are called in turn, round by round, and each round ends with a wait for the GPU that is not
counted. Layers get a new activation at each call, as in a model: `torch.nn.Linear` and `gemmule.torch.Linear`, 2-D and
3-D, of parameters that require gradients; ``frozen`` are parameters that do not. ``python_autograd`` is a function that
allocates what they do and computes nothing; ``python_autograd_mm`` one that calls PyTorch's products into results that
it allocates. ``--layers`` measures them alone, ``--scaled`` 8-bit floats with scales on a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gemmule as gm
import gemmule.torch
from gemmule.lab.experiment import experiment
from gemmule.lab.records import write_records
from gemmule.runtime.device import device_count, get_device

ROUNDS, CALLS = 40, 50
SIZE = 64


def torch_paths(dtype: torch.dtype, device: str) -> dict[str, Callable[[], Any]]:
    """Return what is called, by name."""
    a, b = (torch.randn(SIZE, SIZE, device=device).to(dtype) for _ in range(2))
    weight, bias = b.clone().requires_grad_(), torch.zeros(SIZE, device=device, dtype=dtype, requires_grad=True)
    out = torch.empty_like(a)
    return {
        "torch_mm_out": lambda: torch.mm(a, b, out=out),
        "torch_mm": lambda: torch.mm(a, b),
        "matmul_out": lambda: gm.matmul(a, b, out=out),
        "matmul": lambda: gm.matmul(a, b),
        "gemmule_torch_matmul": lambda: gemmule.torch.matmul(a, b),
        "torch_linear_grad": lambda: torch.nn.functional.linear(a, weight, bias),
        "gemmule_torch_linear_grad": lambda: gemmule.torch.linear(a, weight, bias),
    }


#: States of PyTorch in which a layer is called forward, and whether its parameters require gradients.
STATES = {
    "frozen": (torch.enable_grad, False),
    "grad": (torch.enable_grad, True),
    "no_grad": (torch.no_grad, True),
    "inference_mode": (torch.inference_mode, True),
}


class Nothing(torch.autograd.function._SingleLevelFunction):
    """Save what a layer saves and allocate what it allocates, without a product: what autograd in Python costs.

    As gemmule's it leaves out what `torch.autograd.Function` adds for transforms.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return a result that nothing is written to."""
        del bias
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return gradients that nothing is written to."""
        del grads
        x, weight = ctx.saved_tensors
        return (
            torch.empty_like(x) if ctx.needs_input_grad[0] else None,
            torch.empty_like(weight),
            torch.empty_like(weight[0]) if ctx.needs_input_grad[2] else None,
        )


class Products(Nothing):
    """Do as `Nothing`, and have PyTorch compute the products into the results: what its kernels cost from Python."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the layer's result."""
        ctx.save_for_backward(x, weight)
        out = torch.empty_like(x)
        rows, result = x.view(-1, x.shape[-1]), out.view(-1, out.shape[-1])
        if bias is None:
            torch.mm(rows, weight.t(), out=result)
        else:
            torch.addmm(bias, rows, weight.t(), out=result)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients."""
        x, weight = ctx.saved_tensors
        grad = grads[0].view(-1, weight.shape[0])
        of_input, of_weight = None, torch.empty_like(weight)
        if ctx.needs_input_grad[0]:
            of_input = torch.empty_like(x)
            torch.mm(grad, weight, out=of_input.view(-1, x.shape[-1]))
        torch.mm(grad.t(), x.view(-1, x.shape[-1]), out=of_weight)
        return of_input, of_weight, grad.sum(0) if ctx.needs_input_grad[2] else None


class NothingLayer(torch.nn.Linear):
    """A layer that computes nothing."""

    function: type[Nothing] = Nothing

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Return what its function does."""
        result: torch.Tensor = self.function.apply(input, self.weight, self.bias)
        return result


class ProductsLayer(NothingLayer):
    """A layer of PyTorch's products."""

    function = Products


def layer_paths(dtype: torch.dtype, device: str) -> dict[str, Callable[[list[torch.Tensor]], None]]:
    """Return what calls a layer with each of some activations, by name."""
    paths: dict[str, Callable[[list[torch.Tensor]], None]] = {}
    kinds = (
        ("torch", torch.nn.Linear),
        ("gemmule_torch", gemmule.torch.Linear),
        ("python_autograd", NothingLayer),
        ("python_autograd_mm", ProductsLayer),
    )
    for kind, of in kinds:
        for bias in (True, False):
            for state, (context, grads) in STATES.items():
                layer = of(SIZE, SIZE, bias, device, dtype).requires_grad_(grads)

                def forward(activations: list[torch.Tensor], layer: Any = layer, context: Any = context) -> None:
                    with context():
                        for x in activations:
                            layer(x)

                paths[f"{kind}_layer_{state}{'' if bias else '_without_bias'}"] = forward
            layer = of(SIZE, SIZE, bias, device, dtype)

            def both(activations: list[torch.Tensor], layer: Any = layer) -> None:
                parameters, grad = tuple(layer.parameters()), torch.ones_like(activations[0])
                for x in activations:
                    torch.autograd.grad(layer(x.requires_grad_()), (x, *parameters), grad)

            paths[f"{kind}_layer_forward_backward{'' if bias else '_without_bias'}"] = both
    return paths


def scaled_paths(device: str) -> dict[str, Callable[[], Any]]:
    """Return calls of products of 8-bit floats, of quantisation and of quantised layers, by name."""
    float8, bfloat16, groups = torch.float8_e4m3fn, torch.bfloat16, 8
    x, stack = torch.randn(SIZE, SIZE, device=device, dtype=bfloat16), torch.randn(groups, SIZE, SIZE, device=device)
    (a, rows), (b, _), (weights, of_weights) = gm.quantize(x), gm.quantize(x), gm.quantize(stack.to(bfloat16))
    ends = torch.arange(1, groups + 1, device=device, dtype=torch.int32) * (SIZE // groups)
    grouped = a, weights.mT, rows.view(-1), of_weights.view(groups, -1), ends

    def quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantise by row with PyTorch's operators."""
        values = x.float()
        scales = values.abs().amax(1, keepdim=True) / torch.finfo(float8).max
        return (values / scales).to(float8), scales

    def layer(kind: str = "") -> Callable[[], Any]:
        of = torch.nn.Linear(SIZE, SIZE, False, device, bfloat16).requires_grad_(False)
        if kind:
            gemmule.torch.quantize_linear(of, kind)
        return lambda: of(x)

    return {
        "torch_scaled_mm_row": lambda: torch._scaled_mm(a, b.T, rows, rows.T, out_dtype=bfloat16),
        "gemmule_torch_scaled_mm_row": lambda: gemmule.torch.scaled_mm(a, b.T, rows, rows.T, out_dtype=bfloat16),
        "scaled_gemm_row": lambda: gm.scaled_gemm(a, b.T, rows, rows.T),
        "torch_scaled_grouped_mm": lambda: torch._scaled_grouped_mm(*grouped, out_dtype=bfloat16),
        "gemmule_torch_scaled_grouped_mm": lambda: gemmule.torch.scaled_grouped_mm(*grouped, out_dtype=bfloat16),
        "torch_quantize_row": lambda: quantized(x),
        "quantize_row": lambda: gm.quantize(x),
        "quantize_block": lambda: gm.quantize(x, by="block"),
        "torch_layer_bfloat16": layer(),
        "gemmule_torch_quantized_layer_row": layer("fp8-row"),
        "gemmule_torch_quantized_layer_block": layer("fp8-block"),
    }


def measured_layers(dtype: torch.dtype, device: str, wait: Callable[[], None]) -> dict[str, list[float]]:
    """Return microseconds a call of each layer with new activations of two and of three dimensions."""
    paths = layer_paths(dtype, device)
    shapes = {"2d": (SIZE, SIZE), "3d": (1, SIZE, SIZE)}
    samples: dict[str, list[float]] = {f"{name}_{kind}": [] for kind in shapes for name in paths}
    for round_number in range(-3, ROUNDS):
        for kind, shape in shapes.items():
            for name, call in paths.items():
                activations = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(CALLS)]
                wait()
                start = time.perf_counter()
                call(activations)
                if round_number >= 0:
                    samples[f"{name}_{kind}"].append((time.perf_counter() - start) / CALLS * 1e6)
    wait()
    return samples


def jax_paths(dtype: str) -> dict[str, Callable[[], Any]]:
    """Return what is called of JAX, by name."""
    import jax

    from gemmule.jax import matmul

    a, b = (jax.random.normal(jax.random.key(seed), (SIZE, SIZE), dtype) for seed in range(2))
    paths: dict[str, Callable[[], Any]] = {}
    for name, function in (("jax_jit", jax.numpy.matmul), ("gemmule_jax_jit", matmul)):
        compiled = jax.jit(function)
        # What is dropped unfinished piles up otherwise: JAX's calls are waited for, theirs and ours.
        paths[name] = lambda compiled=compiled: compiled(a, b).block_until_ready()
    eager = (("jax_eager", jax.numpy.matmul), ("gemmule_jax_eager", matmul), ("matmul_jax", gm.matmul))
    for name, function in eager:
        paths[name] = lambda function=function: function(a, b).block_until_ready()
    for name, function in (("jax_transpose", jax.numpy.transpose), ("transpose_jax", gm.transpose)):
        paths[name] = lambda function=function: function(a).block_until_ready()
    return paths


def measured(paths: dict[str, Callable[[], Any]], wait: Callable[[], None]) -> dict[str, list[float]]:
    """Return microseconds a call of each path, one figure a round."""
    samples: dict[str, list[float]] = {name: [] for name in paths}
    for round_number in range(-3, ROUNDS):
        for name, call in paths.items():
            wait()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            if round_number >= 0:
                samples[name].append((time.perf_counter() - start) / CALLS * 1e6)
    wait()
    return samples


def main(arguments: list[str]) -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--no-jax", action="store_true")
    parser.add_argument("--layers", action="store_true", help="layers alone")
    parser.add_argument("--scaled", action="store_true", help="8-bit floats with scales alone")
    options = parser.parse_args(arguments)
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    records = []
    for dtype in ("float8_e4m3fn",) if options.scaled else ("float32", "bfloat16"):
        if options.scaled:
            of_paths = measured(scaled_paths(options.device), wait)
        else:
            of_paths = measured_layers(getattr(torch, dtype), options.device, wait)
        if not (options.layers or options.scaled):
            paths = torch_paths(getattr(torch, dtype), options.device)
            of_paths = measured(paths if options.no_jax else paths | jax_paths(dtype), wait) | of_paths
        for path, samples in of_paths.items():
            sys.stdout.write(f"{dtype} {path}: {statistics.median(samples):.1f} us\n")
            records.append(
                {
                    "record": "overhead", "path": path, "dtype": dtype, "device": options.device,
                    "m": SIZE, "n": SIZE, "k": SIZE, "host_us": statistics.median(samples), "min_us": min(samples),
                    "samples_us": samples, "waited": "jax" in path,
                }
            )  # fmt: skip
    gpu = get_device(0).pci_bus_id if options.device == "cuda" and device_count() else None
    command = "python benchmarks/records/framework_overhead.py FOLDER " + " ".join(arguments[1:])
    sys.stdout.write(f"{write_records(options.folder, experiment(command.strip(), gpu), records)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
