"""The script that measures models, on a tiny one: it runs to its end and writes what it says."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-interop installs it")
pytest.importorskip("transformers", reason="transformers is not installed, whose Llama is measured")

import models  # noqa: E402
import models_apart  # noqa: E402

TINY = models.Size(width=32, inner=48, layers=1, head=8, vocabulary=64)
_SMALL = {"width": 32, "inner": 16, "layers": 1, "head": 8, "heads": 4, "vocabulary": 64, "experts": 4}
MIXTURES = (models.Mixture(**_SMALL), models.Mixture(**_SMALL, family="Qwen3Moe"))
#: What a record of a model has at least.
FIELDS = {"record", "model", "phase", "mode", "rows", "ms", "other_ms", "ratio"}


SHORT = models.Protocol((TINY,), MIXTURES, (1, 3), (8, 5), rounds=2, round_s=1e-4, quick_budget=-1.0)


def written(folder):
    (file,) = folder.glob("*.jsonl")
    first, *records = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    assert first["record"] == "experiment"
    return records


def test_a_record_is_written(tmp_path, capsys):
    models.main([str(tmp_path), "--device", "cpu"], SHORT)
    records = written(tmp_path)
    found = [(one["phase"], one["mode"], one["rows"], one["tokens"]) for one in records]
    assert found == [
        ("decode", "eager", 1, 1), ("decode", "eager", 3, 1), ("prefill", "eager", 1, 8), ("prefill", "eager", 1, 5),
        ("train", "eager", 1, 8),
    ]  # fmt: skip
    for one in records:
        assert one.keys() >= FIELDS
        assert one["ratio"] == pytest.approx(one["other_ms"] / one["ms"])
        assert 0 <= one["apart"] < 0.05
        assert (one["model"], one["dtype"]) == ("llama-1x32", "bfloat16")
    assert "ratio" in capsys.readouterr().out


def test_cells_can_be_named(tmp_path):
    models.main([str(tmp_path), "--device", "cpu", "--cells", "decode:3", "prefill:5"], SHORT)
    assert [(one["phase"], one["rows"], one["tokens"]) for one in written(tmp_path)] == [
        ("decode", 3, 1), ("prefill", 1, 5),
    ]  # fmt: skip


def test_mixtures_run_beside_the_fastest_experts(tmp_path):
    models.main([str(tmp_path), "--mixtures", "--device", "cpu"], SHORT)
    records = written(tmp_path)
    assert [(one["model"], one["phase"]) for one in records] == [
        (name, phase) for name in ("mixtral-1x32", "qwen3moe-1x32") for phase in ("decode", "prefill", "train")
    ]
    for one in records:
        assert one.keys() >= FIELDS
        assert one["other"] in {f"transformers, {name} experts" for name in models.Mixture.implementations}
        assert 0 <= one["apart"] < 0.1


def test_no_cell_begins_after_the_time_is_over(tmp_path, capsys):
    models.main([str(tmp_path), "--quick", "--device", "cpu"], SHORT)
    assert written(tmp_path) == []
    assert capsys.readouterr().out.count("left out") == 5


def test_both_models_compute_the_same():
    both = models.built(TINY, "cpu", torch.float32)
    layers = [
        type(layer).__module__.partition(".")[0]
        for layer in both["gemmule"].modules()
        if isinstance(layer, torch.nn.Linear)
    ]
    assert layers == ["gemmule"] * 8
    tokens = torch.randint(64, (2, 7))
    results = [models.called(model, TINY, models.Cell("prefill", "eager", 2, 7), tokens)() for model in both.values()]
    torch.testing.assert_close(*results)
    assert results[0].shape == (2, 1, 64)


def test_cells_apart_are_measured_one_at_a_time(tmp_path, capsys):
    models_apart.main([str(tmp_path), "eager", "32:decode:3", "32:prefill:5", "--device", "cpu"], SHORT)
    found = written(tmp_path)
    assert sorted((one["phase"], one["rows"], one["tokens"]) for one in found) == [("decode", 3, 1), ("prefill", 1, 5)]
    assert all(one.keys() >= FIELDS for one in found)
    models_apart.main([str(tmp_path / "none"), "eager", "32:decode:3", "--device", "cpu", "--compile-s", "0"], SHORT)
    assert written(tmp_path / "none") == []
    assert "not compiled after 0 s" in capsys.readouterr().out
