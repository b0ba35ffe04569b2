"""A small transformer learns bytes of text, with PyTorch's linear layers and with gemmule's; writes records.

``python benchmarks/records/transformer_trial.py RESULTS_FOLDER``. Every model begins with the same weights and sees the
same text in the same order. How far two loss curves may lie apart by rounding alone is measured too: in a third model
PyTorch's layers sum in reversed order. The text is that of Python's own help topics.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import gemmule.torch
from gemmule.lab.experiment import experiment
from gemmule.lab.records import RecordFile
from gemmule.runtime.device import device_count, get_device


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the model is, and how long it learns."""

    layers: int = 2
    width: int = 256
    heads: int = 4
    context: int = 128
    batch: int = 32
    steps: int = 300
    rate: float = 1e-3


class Block(nn.Module):
    """Attention to what came before, and two linear layers, each added to what came in."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.before_attention, self.before_layers = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.queries_keys_values = nn.Linear(size.width, 3 * size.width)
        self.mix = nn.Linear(size.width, size.width)
        self.widen, self.narrow = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what follows, shape (batch, context, width)."""
        parts = self.queries_keys_values(self.before_attention(x)).chunk(3, dim=-1)
        heads = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.widen(self.before_layers(x))))


class Transformer(nn.Module):
    """Bytes in, a number for each byte that may follow out."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, size.width)
        self.places = nn.Parameter(0.02 * torch.randn(size.context, size.width))
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the scores, shape (batch, context, 256)."""
        scores: torch.Tensor = self.head(self.norm(self.blocks(self.embed(text) + self.places)))
        return scores


def help_topics() -> bytes:
    """Return the text of ``help()``, which every Python has."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics)).encode()


def slices(text: bytes, size: Size, device: str) -> Iterator[torch.Tensor]:
    """Yield the slices of text to learn, the same ones in every run."""
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(1)
    for _ in range(size.steps):
        starts = torch.randint(len(data) - size.context - 1, (size.batch,), generator=generator)
        yield torch.stack([data[at : at + size.context + 1] for at in starts.tolist()]).to(device)


class Reversed(nn.Linear):
    """PyTorch's linear layer, which sums the same products in another order."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Return ``input @ weight.T + bias``."""
        order = torch.arange(self.in_features, device=input.device).flip(0)
        return functional.linear(input[..., order], self.weight[:, order], self.bias)


#: Arithmetic of a run: what PyTorch is told, and what gemmule is.
ARITHMETIC = {"float32": (False, None), "float32 as tf32": (True, "tf32"), "bfloat16 by autocast": (False, None)}
LAYERS = ("torch.nn.Linear", "torch.nn.Linear, sums reversed", "gemmule.torch.Linear")


def learn(layers: str, arithmetic: str, size: Size, text: bytes, device: str) -> dict[str, Any]:
    """Train one model and return its record."""
    tf32, precision = ARITHMETIC[arithmetic]
    torch.manual_seed(0)
    model = Transformer(size).to(device)
    replaced: tuple[str, ...] = ()
    if layers == LAYERS[1]:
        for layer in model.modules():
            layer.__class__ = Reversed if type(layer) is nn.Linear else type(layer)
    elif layers == LAYERS[2]:
        replaced = gemmule.torch.replace_linear(model, precision=precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.rate)
    narrow = torch.autocast(device, torch.bfloat16) if "autocast" in arithmetic else contextlib.nullcontext()
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, tf32
    losses, times = [], []
    for part in slices(text, size, device):
        start = time.perf_counter()
        with narrow:
            scores = model(part[:, :-1])
            loss = functional.cross_entropy(scores.flatten(0, 1).float(), part[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # which waits for the GPU
        times.append(time.perf_counter() - start)
    torch.backends.cuda.matmul.allow_tf32 = before
    return {
        "record": "training",
        "layers": layers,
        "replaced": len(replaced),
        "arithmetic": arithmetic,
        "device": device,
        "model": dataclasses.asdict(size),
        "parameters": sum(p.numel() for p in model.parameters()),
        "text": {"what": "pydoc_data.topics", "bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()},
        "loss": losses,
        "step_ms": 1e3 * statistics.median(times),
    }


def main(arguments: list[str]) -> None:
    """Train the models and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--arithmetic", nargs="+", choices=list(ARITHMETIC), default=list(ARITHMETIC))
    parser.add_argument("--steps", type=int, default=Size.steps)
    options = parser.parse_args(arguments)
    size, text = Size(steps=options.steps), help_topics()
    gpu = get_device(0).pci_bus_id if options.device == "cuda" and device_count() else None
    command = "python benchmarks/records/transformer_trial.py FOLDER " + " ".join(arguments[1:])
    with RecordFile(options.folder, experiment(command.strip(), gpu)) as file:
        for arithmetic in options.arithmetic:
            for layers in LAYERS:
                file.write(learn(layers, arithmetic, size, text, options.device))
    sys.stdout.write(f"{file.path}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
