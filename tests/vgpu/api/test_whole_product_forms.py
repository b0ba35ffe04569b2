"""Parts of K, and batches of several dimensions as one, on the virtual GPU: launches, workspaces and offsets fit."""

from __future__ import annotations

import numpy as np
import pytest

import gemmule as gm
from gemmule.dispatch.choices import form_choice
from gemmule.dispatch.choices.choice_cache import clear_choices

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")


@pytest.fixture(autouse=True)
def takes_such_forms(monkeypatch):
    """Let every product that may have such a form take it, however long it is predicted to take."""
    monkeypatch.setattr(form_choice, "_LEAST_US", 0.0)
    monkeypatch.setattr(form_choice, "_LEAST_OF_FORMS", 0.0)
    monkeypatch.setattr(form_choice, "_MOST_DOTS", 0)
    monkeypatch.setattr(form_choice, "_SHARE", 100.0)
    monkeypatch.setattr(form_choice, "_GAIN", -100.0)
    monkeypatch.setattr(form_choice, "_predicted", lambda choice: 0.0 if choice.form is not None else 1.0)
    clear_choices()
    yield
    clear_choices()


def random(rng, dtype, *shape):
    found = rng.integers(-3, 4, (2, *shape))
    return (found[0] + 1j * found[1] if np.dtype(dtype).kind == "c" else found[0]).astype(dtype)


def computed(form, a, b, **options):
    plan = gm.gemm.plan(a, b, executor="vgpu", chip="h200", **options)
    assert plan.choice.form is not None
    assert plan.choice.form.name == form
    return plan, plan.execute()


@pytest.mark.parametrize("parts", [8, 64])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_parts_of_k(monkeypatch, parts, dtype):
    monkeypatch.setattr(form_choice, "PARTS", (parts,))
    rng = np.random.default_rng(parts)
    a, b = random(rng, dtype, 8195, 3).T[:, ::-1], random(rng, dtype, 8195, 2)
    out = np.full((2, 3), np.nan, dtype).T
    plan, got = computed("k_parts", a, b, alpha=2.0, out=out)
    assert f"{parts} parts" in plan.rewrite
    np.testing.assert_array_equal(got, 2 * (a @ b))


def test_parts_of_k_with_c_and_an_epilogue(monkeypatch):
    monkeypatch.setattr(form_choice, "PARTS", (8,))
    rng = np.random.default_rng(1)
    a, b, c, bias = (random(rng, "float32", *shape) for shape in ((3, 8201), (8201, 5), (3, 5), (5,)))
    _, got = computed("k_parts", a, b, c=c, beta=-1.0, bias=bias, epilogue="relu")
    np.testing.assert_array_equal(got, np.maximum(a @ b - c + bias, 0))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "complex64", "complex128"])
@pytest.mark.parametrize("what", ["heads", "one for the first", "one for the last"])
def test_batches_of_several_dimensions(dtype, what):
    rng = np.random.default_rng(2)
    a, b = random(rng, dtype, 3, 7, 2, 5).transpose(0, 2, 1, 3), random(rng, dtype, 3, 9, 2, 5).transpose(0, 2, 3, 1)
    out = None
    if what == "heads":
        out = np.zeros((3, 7, 2, 9), "int32" if dtype == "int8" else dtype).transpose(0, 2, 1, 3)
    elif what == "one for the first":
        a, b = random(rng, dtype, 3, 2, 7, 5), random(rng, dtype, 1, 2, 5, 9)
    else:
        b = random(rng, dtype, 3, 1, 5, 9)
    plan, got = computed("merged batch", a, b, out=out)
    # Heads that share a matrix become rows.
    assert plan.choice.product(plan.problem)[0].m == (14 if what == "one for the last" else 7)
    wide = "int32" if dtype == "int8" else dtype
    np.testing.assert_array_equal(got, a.astype(wide) @ b.astype(wide))
