"""Tables of measured epilogues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

#: What the benchmark's epilogues are called, as functions.
_NAMES = {
    "bias": "x + bias",
    "bias_relu": "relu(x + bias)",
    "bias_gelu": "gelu(x + bias)",
    "bias_gelu_tanh": "gelu_tanh(x + bias)",
    "bias_silu": "silu(x + bias)",
    "beta_c": "x + beta * c",
    "c": "x + c",
    "bias_residual": "x + bias + c",
    "swiglu": "silu(x) * y",
    "geglu_tanh": "gelu_tanh(x) * y",
    "bias_relu_absmax": "relu(x + bias), absmax",
}


def epilogue_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return what each epilogue costs beside the product alone, and PyTorch's way."""
    rows = [
        (
            f"{record['m']} x {record['n']} x {record['k']} {record['layout']}",
            f"`{_NAMES.get(record['epilogue'], record['epilogue'])}`",
            _tiles(record["config"]),
            f"{record['median_us']:.1f}",
            f"{record['over_plain']:.3f} ({record['over_plain_low']:.3f}–{record['over_plain_high']:.3f})",
            f"{record['torch_ratio']:.2f} ({record['torch_ratio_low']:.2f}–{record['torch_ratio_high']:.2f})",
        )
        for record in records
        if record["record"] == "epilogue"
    ]
    head = ("M x N x K", "epilogue", "tiles", "us", "over the product alone", "PyTorch's time over ours")
    return markdown(head, rows)


def _tiles(config: Mapping[str, int]) -> str:
    """Return a config of the Hopper kernel in CUTLASS's words."""
    schedule = "ping-pong" if config["pingpong"] else "cooperative"
    return f"{config['tile_m']} x {config['tile_n']} {schedule}{', swap-AB' if config['swap_ab'] else ''}"
