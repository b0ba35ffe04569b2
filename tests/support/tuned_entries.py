"""Entries of tuned configurations for tests, products that differ in one thing each, and a table of the test's own."""

from __future__ import annotations

import dataclasses
import types

import pytest

from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem
from gemmule.dispatch import tuned_table
from gemmule.dispatch.choices import choice_cache
from gemmule.dispatch.problem_key import key_of
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose
from gemmule.dispatch.tuned_file import Entry
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")
GPU, CHIP = "NVIDIA H200", "H200 SXM 141 GB"
SPEC = next(spec for spec in REGISTRY if spec.name == "hopper_gemm")
PROBLEM = gemm_problem(520, 584, 1032, "bfloat16", "bfloat16", "nn")
RUN = (("chip", CHIP), ("gpu", GPU), ("date", "20260101T000000"), ("commit", "0123456789"))

#: Two products of arrays that are apart, as an array library describes them.
LIBRARY = types.SimpleNamespace(
    byte_bounds=lambda x: (x, x + 8), maker=lambda result: lambda: result, guards_kinds=True
)


def entry(config=SPEC.configs[5], *, problem=PROBLEM, us=9.0, ratio=1.1, chip=CHIP, kernel=SPEC.name, samples=8):
    run = (("chip", chip), *RUN[1:])
    return Entry(key_of(problem), kernel, tuple(config.as_dict().items()), us, samples, ratio, run)


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    """An empty user's file, and no shipped one."""
    monkeypatch.setenv("GEMMULE_TUNED", str(tmp_path / "tuned.json"))
    monkeypatch.setattr(tuned_table, "_SHIPPED", tmp_path / "shipped")
    forget()
    yield tmp_path / "tuned.json"
    forget()


def forget():
    tuned_table.clear_tables()
    choice_cache.clear_choices()


def chosen(problem=PROBLEM, gpu=GPU):
    return choose(problem, HOPPER, multiprocessors=132, chip=gpu)


OTHERS = {
    "m": gemm_problem(528, 584, 1032, "bfloat16", "bfloat16", "nn"),
    "n": gemm_problem(520, 576, 1032, "bfloat16", "bfloat16", "nn"),
    "k": gemm_problem(520, 584, 1040, "bfloat16", "bfloat16", "nn"),
    "types": gemm_problem(520, 584, 1032, "float16", "float16", "nn"),
    "output": gemm_problem(520, 584, 1032, "bfloat16", "float32", "nn"),
    "layout of A": gemm_problem(520, 584, 1032, "bfloat16", "bfloat16", "tn"),
    "layout of B": gemm_problem(520, 584, 1032, "bfloat16", "bfloat16", "nt"),
    "alignment": gemm_problem(520, 584, 1032, "bfloat16", "bfloat16", "nn", misaligned=True),
    "C": dataclasses.replace(PROBLEM, c=PROBLEM.d, beta=1),
    "batch": GemmProblem(
        520, 584, 1032, (3,), contiguous(BFLOAT16, 520, 1032, (3,)), contiguous(BFLOAT16, 1032, 584, (3,)), None,
        contiguous(BFLOAT16, 520, 584, (3,)),
    ),
    "layout of the result": dataclasses.replace(PROBLEM, d=contiguous(BFLOAT16, 584, 520).transposed()),
    "pitch": dataclasses.replace(PROBLEM, a=dataclasses.replace(PROBLEM.a, row_stride=1036)),
}  # fmt: skip
