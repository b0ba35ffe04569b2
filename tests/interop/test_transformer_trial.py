"""The trial of docs/notebook/frameworks.md, small: two kinds of layers give one loss curve."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")

from transformer_trial import LAYERS, Size, help_topics, learn  # noqa: E402

SMALL = Size(layers=1, width=32, heads=2, context=16, batch=4, steps=12, rate=3e-3)


def test_the_same_loss_curve():
    text = help_topics()
    assert len(text) > 100_000
    plain, otherwise, ours = (learn(layers, "float32", SMALL, text, "cpu") for layers in LAYERS)
    assert ours["replaced"] == 5
    assert ours["loss"] == pytest.approx(plain["loss"], rel=1e-4)
    assert ours["loss"] != plain["loss"], "are these gemmule's layers?"
    assert otherwise["loss"] != plain["loss"]
    assert plain["loss"][-1] < plain["loss"][0] - 0.2
