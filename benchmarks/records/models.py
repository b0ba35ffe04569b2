"""Llama and mixtures of experts with PyTorch's layers and with gemmule's, by time of a step; writes records.

``python benchmarks/records/models.py RESULTS_FOLDER [--quick | --mixtures]``. The model is that of Hugging Face's
transformers, with random weights in bfloat16; in a copy of it `gemmule.torch.replace_linear` replaces the layers. A
prefill is a forward of one row of tokens with the logits of the last, a decode one of many rows of a token each
(without a cache, so that its attention sees one token), a train step a forward, a backward and AdamW. Both models run
in turns, round by round, and each round ends with a wait for the GPU that counts. Attention is causal by its kernel,
without a mask.

Of a mixture (Mixtral, Qwen-MoE) `gemmule.torch.replace_experts` replaces the experts too; it runs beside the fastest
implementation of experts that transformers has without further packages, found cell by cell. It is trained by SGD,
since the state of two AdamW would not fit.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import gemmule.torch
from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.runtime.device import device_count, get_device

#: An attention of which transformers knows no mask: none is made, and the kernel is causal.
_ATTENTION = "sdpa_without_a_mask"


@dataclasses.dataclass(frozen=True)
class Size:
    """A Llama's size."""

    width: int = 2048
    inner: int = 5632
    layers: int = 8
    head: int = 128
    vocabulary: int = 32000

    @property
    def name(self) -> str:
        """Name of the model in records."""
        return f"llama-{self.layers}x{self.width}"


@dataclasses.dataclass(frozen=True)
class Mixture(Size):
    """A mixture's size: `inner` is that of an expert.

    State: `implementations`, transformers' own of experts.
    """

    family: str = "Mixtral"
    layers: int = 4
    heads: int = 32
    experts: int = 8
    slots: int = 2

    implementations: ClassVar[tuple[str, ...]] = ("eager", "grouped_mm", "batched_mm")

    @property
    def name(self) -> str:
        """Name of the model in records."""
        return f"{self.family.lower()}-{self.layers}x{self.width}"


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is measured: the phase, how it is called, its rows, and the tokens of each."""

    phase: str
    mode: str
    rows: int
    tokens: int

    def is_among(self, names: list[str] | None) -> bool:
        """Whether it is one of some, named by the phase and its rows or tokens; of None every one is."""
        return names is None or f"{self.phase}:{max(self.rows, self.tokens)}" in names


@dataclasses.dataclass(frozen=True)
class Protocol:
    """What is measured, and how long.

    Attributes
    ----------
    sizes, mixtures : tuple of Size
        The models, and those of ``--mixtures``.
    decodes, prefills : tuple of int
        Rows of a decode, and tokens of a prefill.
    rounds : int
        Rounds of each cell.
    round_s : float
        Seconds that a round takes at least.
    budget, quick_budget : float
        Seconds after which no other cell begins, of all sizes and of the first.
    """

    sizes: tuple[Size, ...] = (Size(), Size(width=4096, inner=14336))
    mixtures: tuple[Mixture, ...] = (
        Mixture(width=4096, inner=14336),
        Mixture(family="Qwen3Moe", width=2048, inner=768, experts=128, slots=8, vocabulary=151936),
    )
    decodes: tuple[int, ...] = (1, 8, 64, 256)
    prefills: tuple[int, ...] = (2048, 1999)
    rounds: int = 9
    round_s: float = 0.02
    budget: float = 140.0
    quick_budget: float = 55.0

    def cells(self, modes: list[str], size: Size) -> Iterator[Cell]:
        """Yield the cells of a model; training, which changes the weights, comes last."""
        if isinstance(size, Mixture):
            for rows in self.decodes[::2]:
                yield Cell("decode", "eager", rows, 1)
            for phase in ("prefill", "train"):
                yield Cell(phase, "eager", 1, self.prefills[0])
            return
        for mode in modes:
            for rows in self.decodes:
                yield Cell("decode", mode, rows, 1)
            for tokens in self.prefills:
                yield Cell("prefill", mode, 1, tokens)
        for mode in modes:
            yield Cell("train", mode, 1, self.prefills[0])


def built(size: Size, device: str, dtype: torch.dtype) -> dict[str, Any]:
    """Return the model with PyTorch's layers and the same one with gemmule's."""
    transformers.AttentionInterface.register(_ATTENTION, sdpa_attention_forward)
    is_mixture = isinstance(size, Mixture)
    family, heads = (size.family, size.heads) if is_mixture else ("Llama", size.width // size.head)
    options: dict[str, Any] = {}
    if is_mixture:
        options = {"num_experts_per_tok": size.slots, "moe_intermediate_size": size.inner}
        options["num_experts" if family.startswith("Qwen") else "num_local_experts"] = size.experts
    config = getattr(transformers, f"{family}Config")(
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        head_dim=size.head,
        vocab_size=size.vocabulary,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        attn_implementation=_ATTENTION,
        **options,
    )
    torch.manual_seed(0)
    with torch.device(device):
        theirs = getattr(transformers, f"{family}ForCausalLM")(config).to(dtype)
    ours = copy.deepcopy(theirs)
    replaced = gemmule.torch.replace_linear(ours)
    # A mixture's router is none of PyTorch's linear layers.
    assert len(replaced) == (4 if is_mixture else 7) * size.layers + 1
    assert len(gemmule.torch.replace_experts(ours)) == (size.layers if is_mixture else 0)
    return {"other": theirs.eval(), "gemmule": ours.eval()}


def called(model: Any, size: Size, cell: Cell, tokens: torch.Tensor) -> Callable[[], Any]:
    """Return what runs a cell once and returns its logits or its loss."""
    if cell.phase != "train":

        def forward() -> Any:
            with torch.no_grad():
                return model(input_ids=tokens, use_cache=False, logits_to_keep=1).logits

        return forward
    on_gpu = tokens.is_cuda
    if isinstance(size, Mixture):
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-5, fused=on_gpu)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=on_gpu, capturable=on_gpu)

    # Fused it is one kernel; compiled it would be traced for as long as the model.
    update = torch.compiler.disable(optimizer.step)

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        update()
        return loss.detach()

    return step


def in_mode(call: Callable[[], Any], mode: str) -> Callable[[], Any]:
    """Return a call that was compiled or captured, as the mode asks for."""
    if mode == "compiled":
        torch._dynamo.reset()
        return torch.compile(call)
    if mode == "eager":
        return call
    beside, current = torch.cuda.Stream(), torch.cuda.current_stream()
    beside.wait_stream(current)
    with torch.cuda.stream(beside):
        for _ in range(3):
            call()
    current.wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def in_turns(
    calls: dict[str, Callable[[], Any]], wait: Callable[[], None], protocol: Protocol, ready: Callable[[], object]
) -> dict[str, list[float]]:
    """Return milliseconds of each call, one figure a round; the rounds go to and fro.

    `ready` is called when all is compiled.
    """
    once = {}
    for name, call in calls.items():
        # What is planned at a first call, and cached at the second, is there afterwards.
        for _ in range(3):
            call()
        wait()
        start = time.perf_counter()
        call()
        wait()
        once[name] = time.perf_counter() - start
    ready()
    number = max(1, math.ceil(protocol.round_s / max(once.values())))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(protocol.rounds):
        for name in order:
            start = time.perf_counter()
            for _ in range(number):
                calls[name]()
            wait()
            samples[name].append((time.perf_counter() - start) / number * 1e3)
        order.reverse()
    return samples


def fastest_experts(model: Any, call: Callable[[], Any], wait: Callable[[], None]) -> str:
    """Let a mixture compute by transformers' fastest implementation of experts, and return its name."""
    seconds = {}
    for name in Mixture.implementations:
        model.set_experts_implementation(name)
        try:
            for _ in range(3):
                call()
        except torch.OutOfMemoryError:
            # batched_mm copies the weights of every token's experts.
            torch.cuda.empty_cache()
            continue
        wait()
        start = time.perf_counter()
        for _ in range(3):
            call()
        wait()
        seconds[name] = time.perf_counter() - start
    fastest = min(seconds, key=seconds.__getitem__)
    model.set_experts_implementation(fastest)
    return fastest


def measured(
    models: dict[str, Any], size: Size, cell: Cell, protocol: Protocol, ready: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Return the record of a cell; `ready` is called before the rounds that are timed."""
    device = next(models["other"].parameters()).device
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(size.vocabulary, (cell.rows, cell.tokens), generator=generator).to(device)
    start = time.perf_counter()
    plain = {name: called(model, size, cell, tokens) for name, model in models.items()}
    others = {}
    if isinstance(size, Mixture):
        others = {"other": f"transformers, {fastest_experts(models['other'], plain['other'], wait)} experts"}
    results = {name: call().float() for name, call in plain.items()}
    apart = (results["gemmule"] - results["other"]).abs().max() / results["other"].abs().max()
    first = time.perf_counter() - start
    samples = in_turns({name: in_mode(call, cell.mode) for name, call in plain.items()}, wait, protocol, ready)
    for model in models.values():
        model.zero_grad()
    ms, other = statistics.median(samples["gemmule"]), statistics.median(samples["other"])
    return {
        "record": "model", "model": size.name, **dataclasses.asdict(size), **dataclasses.asdict(cell), **others,
        "dtype": str(next(models["other"].parameters()).dtype).removeprefix("torch."),
        "transformers": transformers.__version__, "ms": ms, "other_ms": other,
        "ratio": other / ms, "apart": apart.item(), "first_calls_s": first, "samples_ms": samples["gemmule"],
        "other_samples_ms": samples["other"],
    }  # fmt: skip


def main(arguments: list[str], protocol: Protocol = Protocol()) -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true", help="the smaller width alone, in a minute")
    parser.add_argument("--mixtures", action="store_true", help="mixtures of experts instead, in eager mode")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--modes", nargs="+", choices=["eager", "graph", "compiled"], default=["eager", "graph"])
    parser.add_argument("--cells", nargs="+", metavar="PHASE:NUMBER", help="these alone, such as decode:256 train:2048")
    parser.add_argument("--widths", nargs="+", type=int, choices=[size.width for size in protocol.sizes])
    options = parser.parse_args(arguments)
    on_gpu = options.device == "cuda"
    modes = options.modes if on_gpu else [mode for mode in options.modes if mode != "graph"]
    sizes: tuple[Size, ...] = protocol.mixtures if options.mixtures else protocol.sizes
    widths = options.widths or [size.width for size in sizes[: 1 if options.quick else None]]
    budget = protocol.quick_budget if options.quick else protocol.budget
    run = Run(options.device, torch.bfloat16, budget, protocol)
    gpu = get_device(0).pci_bus_id if on_gpu and device_count() else None
    command = "python benchmarks/records/models.py FOLDER " + " ".join(arguments[1:])
    with RecordFile(options.folder, experiment(command.strip(), gpu)) as file:
        for size in sizes:
            if size.width in widths:
                cells = [cell for cell in protocol.cells(modes, size) if cell.is_among(options.cells)]
                for record in run.of(size, cells):
                    file.write(record)
    sys.stdout.write(f"{file.path}\n")


@dataclasses.dataclass
class Run:
    """The device, the type, seconds after which no other cell begins, and the protocol."""

    device: str
    dtype: torch.dtype
    budget: float
    protocol: Protocol
    began: float = dataclasses.field(default_factory=time.perf_counter)

    def of(self, size: Size, of_model: list[Cell]) -> Iterator[dict[str, Any]]:
        """Yield the records of a model; cells that are left out for want of time are named."""
        models = built(size, self.device, self.dtype)
        for cell in of_model:
            name = f"{size.name} {cell.phase} {cell.rows}x{cell.tokens} {cell.mode}"
            if time.perf_counter() - self.began > self.budget:
                sys.stdout.write(f"{name}: left out, {self.budget:.0f} s are over\n")
                continue
            record = measured(models, size, cell, self.protocol)
            print_record(record)
            yield record


def print_record(record: dict[str, Any]) -> None:
    """Print what was measured of a cell."""
    sys.stdout.write(
        f"{record['model']} {record['phase']} {record['rows']}x{record['tokens']} {record['mode']}: "
        f"{record['ms']:.3f} ms, {record.get('other', 'PyTorch')} {record['other_ms']:.3f} ms, "
        f"ratio {record['ratio']:.3f}, apart {record['apart']:.1e}, first calls {record['first_calls_s']:.1f} s\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
