"""Tables of what was measured inside PyTorch and JAX: loss curves, and the host's time of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import markdown

Record = Mapping[str, Any]
_THEIRS, _OURS = "torch.nn.Linear", "gemmule.torch.Linear"


def training_table(records: Sequence[Record]) -> str:
    """Return how far loss curves lie apart: with gemmule's layers, and with PyTorch's that sum in another order.

    Parameters
    ----------
    records : sequence of mapping
        `training` records, of each arithmetic one with every kind of layers.

    Raises
    ------
    KeyError
        If there are none, or one is missing.
    """
    trained = [record for record in records if record["record"] == "training"]
    if not trained:
        raise KeyError("the record has no training")
    rows = []
    for arithmetic in dict.fromkeys(record["arithmetic"] for record in trained):
        of = {record["layers"]: record for record in trained if record["arithmetic"] == arithmetic}
        (other,) = set(of) - {_THEIRS, _OURS}
        theirs, ours, control = of[_THEIRS], of[_OURS], of[other]
        rows.append(
            [
                arithmetic,
                f"{theirs['loss'][0]:.4f}",
                f"{theirs['loss'][-1]:.4f}",
                f"{ours['loss'][-1]:.4f}",
                f"{_apart(ours, theirs):.1e}",
                f"{_apart(control, theirs):.1e}",
                f"{theirs['step_ms']:.1f}",
                f"{ours['step_ms']:.1f}",
            ]
        )
    first = trained[0]
    model, text = first["model"], first["text"]
    header = ["arithmetic", "first loss", f"last, `{_THEIRS}`", f"last, `{_OURS}`", "most apart",
              f"`{_THEIRS}` from itself", f"ms a step, `{_THEIRS}`", f"ms a step, `{_OURS}`"]  # fmt: skip
    return (
        f"{model['layers']} layers of width {model['width']}, {first['parameters']} parameters, {model['steps']} steps "
        f"of {model['batch']} x {model['context']} bytes of `{text['what']}` ({text['bytes']} bytes):\n\n"
        f"{markdown(header, rows)}"
    )


def _apart(one: Record, other: Record) -> float:
    """Return the largest distance of two loss curves, relative to the loss."""
    pairs = zip(one["loss"], other["loss"], strict=True)
    return float(max(abs(mine - its) / its for mine, its in pairs))


def host_times_table(records: Sequence[Record]) -> str:
    """Return the host's time of a call by path and type; of several runs, beside one another, by commit.

    Parameters
    ----------
    records : sequence of mapping
        `overhead` records, behind the `experiment` record of each run.

    Raises
    ------
    KeyError
        If there are none.
    """
    times: dict[tuple[str, str], dict[str, float]] = {}
    commit, commits = "", dict[str, None]()
    for record in records:
        if record["record"] == "experiment":
            commit = record["commit"]
        elif record["record"] == "overhead":
            commits[commit] = None
            times.setdefault((commit, record["dtype"]), {})[record["path"]] = record["host_us"]
    if not times:
        raise KeyError("the record has no overhead")
    columns = sorted(times, key=lambda column: list(dict.fromkeys(dtype for _, dtype in times)).index(column[1]))
    heads = [f"us, {dtype}{f', {run}' if len(commits) > 1 else ''}" for run, dtype in columns]
    rows = [
        [f"`{path}`", *(f"{times[column][path]:.1f}" if path in times[column] else "" for column in columns)]
        for path in dict.fromkeys(path for column in times.values() for path in column)
    ]
    return markdown(["call", *heads], rows)


def layers_table(records: Sequence[Record]) -> str:
    """Return the host's time of layers with a new activation at each call: PyTorch's, gemmule's, and their ratio."""
    times = {(one["dtype"], one["path"]): one["host_us"] for one in records if one["record"] == "overhead"}
    types = list(dict.fromkeys(dtype for dtype, _ in times))
    rows = []
    for path in dict.fromkeys(path.removeprefix("gemmule_") for _, path in times if "torch_layer" in path):
        row = [path.removeprefix("torch_layer_").replace("_", " ")]
        for dtype in types:
            theirs, ours = times[dtype, path], times[dtype, f"gemmule_{path}"]
            row += [f"{theirs:.1f}", f"{ours:.1f}", f"{theirs / ours:.2f}"]
        rows.append(row)
    heads = [f"{head}, {dtype}" for dtype in types for head in ("us, PyTorch", "us, gemmule", "ratio")]
    return markdown(["call", *heads], rows)


def models_table(records: Sequence[Record]) -> str:
    """Return the times of whole models with PyTorch's layers and with gemmule's, of mixtures beside whose experts."""
    models = [one for one in records if one["record"] == "model"]
    named = any("other" in one for one in models)
    rows = [
        [one["model"], f"{one['phase']} {one['rows']} x {one['tokens']}", one["mode"],
         *([one.get("other", "PyTorch")] if named else []), f"{one['other_ms']:.2f}", f"{one['ms']:.2f}",
         f"{one['ratio']:.3f}"]
        for one in models
    ]  # fmt: skip
    heads = ["beside", "ms, the other"] if named else ["ms, PyTorch"]
    return markdown(["model", "phase, rows x tokens", "mode", *heads, "ms, gemmule", "ratio"], rows)
