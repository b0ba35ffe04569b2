"""Tuned configurations: the order of look-up, keys, files that are damaged, and writers at the same time."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import multiprocessing
import sys
from pathlib import Path

import pytest

from gemmule.api import kept
from gemmule.core.arch import Arch
from gemmule.core.dtype import BFLOAT16
from gemmule.core.errors import ArgumentError, FileFormatError
from gemmule.core.layout import contiguous
from gemmule.core.problem import GemmProblem
from gemmule.core.spec import Config
from gemmule.dispatch import select, tuned_table
from gemmule.dispatch.problem_key import ProblemKey, key_of, problem_of
from gemmule.dispatch.registry import REGISTRY
from gemmule.dispatch.select import choose, tuned_choice
from gemmule.dispatch.tuned_file import Entry, TunedFileWarning, merge_tuned, read_or_set_aside, read_tuned, write_tuned
from gemmule.dispatch.tuned_table import table_for
from gemmule.lab.products import gemm_problem

HOPPER = Arch.parse("sm_90a")
GPU, CHIP = "NVIDIA H200", "H200 SXM 141 GB"
SPEC = next(spec for spec in REGISTRY if spec.name == "h09_production")
PROBLEM = gemm_problem(520, 584, 1032, "bfloat16", "bfloat16", "nn")
RUN = (("chip", CHIP), ("gpu", GPU), ("date", "20260101T000000"), ("commit", "0123456789"))


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
    tuned_table.forget()
    select.forget_choices()


def chosen(problem=PROBLEM, gpu=GPU):
    return choose(problem, HOPPER, multiprocessors=132, chip=gpu)


def test_this_process_then_the_users_file_then_the_shipped_one_then_the_cost_model(table):
    by_cost = chosen()
    assert by_cost.chosen_by == "cost"
    assert by_cost.config == choose(PROBLEM, HOPPER, multiprocessors=132).config
    assert by_cost.predicted_us == SPEC.cost(PROBLEM, by_cost.config, 132)
    write_tuned(tuned_table.shipped_file(CHIP), [entry(SPEC.configs[5], us=5.0)])
    forget()
    assert (chosen().config, chosen().predicted_us, chosen().chosen_by) == (SPEC.configs[5], 5.0, "tuned")
    assert chosen().source == f"the table shipped for {CHIP}: {CHIP}, 20260101T000000"
    write_tuned(table, [entry(SPEC.configs[7], us=7.0)])
    forget()
    assert (chosen().config, chosen().predicted_us) == (SPEC.configs[7], 7.0)
    assert str(table) in chosen().source
    select.use_tuned(GPU, [entry(SPEC.configs[9], us=9.0)])
    assert (chosen().config, chosen().source.split(":")[0]) == (SPEC.configs[9], "this process")
    # Without the GPU's name nothing is looked up.
    assert choose(PROBLEM, HOPPER, multiprocessors=132).chosen_by == "cost"


def test_caches_that_keep_choices_are_cleared_with_them(monkeypatch):
    monkeypatch.setattr(kept, "_kept", {"what was decided": None})
    monkeypatch.setattr(select, "_forgetters", [*select._forgetters])
    others = ["what another room made of a choice"]
    select.forgets_choices(others.clear)
    select.use_tuned(GPU, [entry(SPEC.configs[9])])
    assert not others
    assert not kept._kept


def test_entries_are_of_one_chip(table):
    write_tuned(table, [entry(chip="A100 SXM 80 GB")])
    forget()
    assert chosen().chosen_by == "cost"


def test_the_same_processor_lends_its_configs_but_not_its_times():
    write_tuned(tuned_table.shipped_file(CHIP), [entry(SPEC.configs[5])])
    forget()
    found = chosen(gpu="NVIDIA H100 80GB HBM3")
    assert (found.config, found.chosen_by, found.predicted_us) == (SPEC.configs[5], "tuned", None)
    assert chosen(gpu="NVIDIA A100-SXM4-80GB").chosen_by == "cost"


def test_an_entry_for_the_other_type_of_16_bits_lends_its_config_but_not_its_time(table):
    half = gemm_problem(520, 584, 1032, "float16", "float16", "nn")
    assert chosen(half).chosen_by == "cost"
    write_tuned(table, [entry()])
    forget()
    lent = chosen(half)
    assert (lent.config, lent.chosen_by, lent.predicted_us) == (SPEC.configs[5], "tuned", None)
    assert "for bfloat16" in lent.source
    write_tuned(table, [entry(), entry(SPEC.configs[6], problem=half)])
    forget()
    assert (chosen(half).config, chosen().config) == (SPEC.configs[6], SPEC.configs[5])


@pytest.mark.parametrize(
    ("dtype", "out", "twin"),
    [
        ("float16", "float16", ("bfloat16", "bfloat16")),
        ("bfloat16", "float32", ("float16", "float32")),
        ("float32", "float32", None),
        ("int8", "int32", None),
    ],
)
def test_twins(dtype, out, twin):
    found = key_of(gemm_problem(64, 64, 64, dtype, out, "tn")).twin()
    assert (found and (found.a_dtype, found.d_dtype)) == twin
    mixed = dataclasses.replace(key_of(PROBLEM), d_dtype="float16")
    assert mixed.twin() is None


def test_a_chip_that_no_table_knows_has_its_own_name(table):
    write_tuned(table, [entry(chip="NVIDIA New 3000")])
    forget()
    assert chosen(gpu="NVIDIA New 3000").chosen_by == "tuned"


@pytest.mark.parametrize(
    "wrong",
    [
        entry(kernel="h99_of_tomorrow"),
        dataclasses.replace(entry(), config=(("tile_m", 128), ("tile_of_tomorrow", 1))),
        dataclasses.replace(entry(), config=(("tile_m", 100),)),
        dataclasses.replace(entry(), config=(("group", 0),)),
        # K has 17 slices of 128 bytes: the kernel refuses to share fewer than its CTAs, here it is asked to.
        entry(SPEC.configs[18], problem=gemm_problem(520, 584, 64, "bfloat16", "bfloat16", "nn")),
    ],
)
def test_an_entry_that_this_version_cannot_follow_is_passed_over(table, wrong):
    write_tuned(table, [wrong])
    forget()
    problem = problem_of(wrong.key)
    assert chosen(problem).chosen_by == "cost"


@dataclasses.dataclass(frozen=True)
class _Unchecked(Config):
    """A config that divides by what it is given, and checks nothing."""

    tile: int = 64
    warps: int = 2

    def __post_init__(self):
        self.tile // self.warps


@pytest.mark.parametrize(
    "config",
    [(("warps", 0),), (("warps", 10**400),), (("tile", 0),), (("tile", 1),), (("tile", 2),)],
    ids=["not made", "too large", "divides by 0", "of a wrong type", "too long to tell"],
)
def test_an_entry_that_fails_wherever_it_is_used_is_passed_over(table, config):
    def why_not(problem, arch, config):
        if config == _Unchecked():
            return None
        if config.tile == 1:
            raise TypeError("not a number")
        if config.tile == 2:
            return str(10**5000)
        return None if problem.m // config.tile + math.sqrt(config.warps) else "too small"

    spec = dataclasses.replace(SPEC, configs=(_Unchecked(),), why_not=why_not, refuses=None, cost=None, costs=None)
    write_tuned(table, [dataclasses.replace(entry(), config=config)])
    assert tuned_choice(PROBLEM, HOPPER, (spec,), table_for(GPU)) is None


def test_a_tuned_kernel_that_stands_later_names_those_before_it(table):
    h01 = next(spec for spec in REGISTRY if spec.name == "h01_mma_sync")
    write_tuned(table, [entry(h01.default, kernel=h01.name)])
    forget()
    found = chosen()
    assert found.spec is h01
    assert found.refused[0] == ("h09_production", "it can, and h01_mma_sync was measured to be faster")
    assert [name for name, _ in found.refused] == ["h09_production", "h10_ragged_result", "h11_packed", "h13_widened"]


def test_what_is_chosen_is_remembered(monkeypatch):
    first = chosen()
    monkeypatch.setattr(select, "_choose", None)
    assert chosen() is first
    assert chosen(dataclasses.replace(PROBLEM)) is first


OTHERS = {
    "m": gemm_problem(528, 584, 1032, "bfloat16", "bfloat16", "nn"),
    "n": gemm_problem(520, 576, 1032, "bfloat16", "bfloat16", "nn"),
    "k": gemm_problem(520, 584, 1040, "bfloat16", "bfloat16", "nn"),
    "types": gemm_problem(520, 584, 1032, "float16", "float16", "nn"),
    "output": gemm_problem(520, 584, 1032, "bfloat16", "float32", "nn"),
    "layout of A": gemm_problem(520, 584, 1032, "bfloat16", "bfloat16", "tn"),
    "layout of B": gemm_problem(520, 584, 1032, "bfloat16", "bfloat16", "nt"),
    "alignment": gemm_problem(520, 584, 1032, "bfloat16", "bfloat16", "nn", late=True),
    "C": dataclasses.replace(PROBLEM, c=PROBLEM.d, beta=1),
    "batch": GemmProblem(
        520, 584, 1032, (3,), contiguous(BFLOAT16, 520, 1032, (3,)), contiguous(BFLOAT16, 1032, 584, (3,)), None,
        contiguous(BFLOAT16, 520, 584, (3,)),
    ),
    "layout of the result": dataclasses.replace(PROBLEM, d=contiguous(BFLOAT16, 584, 520).transposed()),
    "pitch": dataclasses.replace(PROBLEM, a=dataclasses.replace(PROBLEM.a, row_stride=1036)),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_a_key_tells_apart_what_matters(what):
    assert key_of(OTHERS[what]) != key_of(PROBLEM)
    keys = [key_of(other) for other in OTHERS.values()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "same",
    [
        dataclasses.replace(PROBLEM, alpha=2.5),
        dataclasses.replace(PROBLEM, a=dataclasses.replace(PROBLEM.a, row_stride=1040)),
        dataclasses.replace(PROBLEM, a=dataclasses.replace(PROBLEM.a, alignment=256)),
        dataclasses.replace(
            PROBLEM,
            batch=(1,),
            **{name: dataclasses.replace(getattr(PROBLEM, name), batch_strides=(7,)) for name in "abd"},
        ),
    ],
    ids=["alpha", "padding of whole 16 bytes", "an address that is more aligned", "a batch of one"],
)
def test_a_key_leaves_out_what_does_not(same):
    assert key_of(same) == key_of(PROBLEM)


def test_a_shared_operand_is_not_one_for_each():
    own = OTHERS["batch"]
    shared = dataclasses.replace(own, b=dataclasses.replace(own.b, batch_strides=(0,)))
    assert key_of(shared) == dataclasses.replace(key_of(own), shared="b")
    two = dataclasses.replace(own, batch=(3, 2), **{
        name: dataclasses.replace(getattr(own, name), batch_strides=(2 * step, step))
        for name, step in (("a", 520 * 1032), ("b", 1032 * 584), ("d", 520 * 584))
    })  # fmt: skip
    assert key_of(two).batch == (6,)


def test_matrices_of_two_strides_have_no_key(table):
    strided = dataclasses.replace(PROBLEM, a=dataclasses.replace(PROBLEM.a, row_stride=3000, col_stride=2))
    assert key_of(strided) is None
    assert chosen(strided).chosen_by != "tuned"


@pytest.mark.parametrize("what", [name for name in OTHERS if name != "pitch"])
def test_a_key_gives_a_product_that_has_it(what):
    key = key_of(OTHERS[what])
    assert key_of(problem_of(key)) == key
    assert ProblemKey.of_dict(json.loads(json.dumps(key.as_dict()))) == key


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"m": "520"}, "whole numbers"),
        ({"m": -1}, "whole numbers"),
        ({"m": True}, "whole numbers"),
        ({"layout": None}, "texts"),
    ],
)
def test_fields_of_a_wrong_kind_are_refused(fields, said):
    with pytest.raises(FileFormatError, match=said):
        ProblemKey.of_dict(key_of(PROBLEM).as_dict() | fields)
    with pytest.raises(FileFormatError, match="lacks"):
        ProblemKey.of_dict({"m": 1})


def test_a_file_comes_back_as_it_was_written(table):
    entries = (entry(), entry(problem=OTHERS["m"], ratio=None), entry(problem=OTHERS["batch"], chip="A100 SXM 80 GB"))
    write_tuned(table, entries)
    assert set(read_tuned(table)) == set(entries)
    assert [path.name for path in table.parent.iterdir()] == [table.name]
    # One entry a line: what changed can be seen.
    assert len(table.read_text().splitlines()) == 3 + 2 + 5


DAMAGED = {
    "empty": b"",
    "cut off": b'{"format": "gemmule tuned configurations", "version": 1, "runs": {}, "ent',
    "another kind": b'{"format": "something else"}',
    "no entries": b'{"format": "gemmule tuned configurations", "version": 1, "runs": {}}',
    "half an entry": b'{"format": "gemmule tuned configurations", "version": 1, "runs": {}, "entries": [{"m": 1}]}',
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "brackets without end": b"[" * 100000,
    "entries of no list": b'{"format": "gemmule tuned configurations", "version": 1, "runs": {}, "entries": {}}',
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("us", "1" + "0" * 400),
        ("us", "NaN"),
        ("us", '"9.0"'),
        ("samples", "1e999"),
        ("samples", "0"),
        ("samples", "8.5"),
        ("ratio", "1" + "0" * 400),
        ("ratio", "-Infinity"),
        ("ratio", "NaN"),
        ("config", "[]"),
        ("run", "[]"),
        ("m", "1e999"),
    ],
)
def test_a_number_that_no_entry_has_is_damage(table, field, value):
    write_tuned(table, [entry()])
    content = json.loads(table.read_bytes())
    content["entries"][0][field] = "HERE"
    table.write_text(json.dumps(content).replace('"HERE"', value))
    with pytest.raises(FileFormatError, match=r"tuned\.json: "):
        read_tuned(table)


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_file_is_set_aside_and_calls_go_on(table, what):
    table.write_bytes(DAMAGED[what])
    with pytest.warns(TunedFileWarning, match="set aside as"):
        assert chosen().chosen_by == "cost"
    assert not table.exists()
    assert table.with_name("tuned.json.damaged").read_bytes() == DAMAGED[what]
    forget()
    assert chosen().chosen_by == "cost"


def test_a_file_of_a_later_version_is_left_as_it_is(table):
    later = b'{"format": "gemmule tuned configurations", "version": 2}'
    table.write_bytes(later)
    with pytest.warns(TunedFileWarning, match="version 2"):
        assert chosen().chosen_by == "cost"
    assert table.read_bytes() == later


@pytest.mark.parametrize("what", ["a later version", "a failing disk", "a damaged one that stays"])
def test_a_file_that_cannot_be_read_is_not_replaced(table, what, monkeypatch):
    write_tuned(table, [entry()])
    other = gemm_problem(8, 8, 8, "bfloat16", "bfloat16", "nn")

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error", str(table))

    if what == "a later version":
        table.write_bytes(b'{"format": "gemmule tuned configurations", "version": 2}')
        expected = pytest.raises(FileFormatError, match=r"version 2; .* leaves it as it is: .*name another file")
    elif what == "a failing disk":
        monkeypatch.setattr(Path, "read_bytes", fail)
        expected = pytest.raises(OSError, match="Input/output")
    else:
        table.write_bytes(b"{}")
        monkeypatch.setattr(Path, "replace", fail)
        expected = pytest.raises(FileFormatError, match=r"cannot be set aside: .*name another file")
    before = table.stat()
    with expected:
        merge_tuned(table, [entry(problem=other)])
    assert (table.stat().st_ino, table.stat().st_size) == (before.st_ino, before.st_size)
    # Calls go on without it.
    with pytest.warns(TunedFileWarning, match=r"tuned\.json"):
        assert read_or_set_aside(table) == ()


def _write(path, first, count):
    for number in range(first, first + count):
        problem = gemm_problem(8 * number + 8, 8, 8, "bfloat16", "bfloat16", "nn")
        merge_tuned(Path(path), [entry(problem=problem)])
        # What all write is decided by what is better, not by who comes last.
        merge_tuned(Path(path), [entry(us=1e4 - number, ratio=None)])


def test_writers_at_the_same_time_lose_nothing(table):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(str(table), 1000 * n, 20)) for n in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        # A reader never sees a part of a file.
        assert isinstance(read_or_set_aside(table), tuple)
        writers[0].join(0.01)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    entries = {one.key: one for one in read_tuned(table)}
    assert len(entries) == 61
    assert entries[key_of(PROBLEM)].us == 1e4 - 2019
    assert not list(table.parent.glob("*.partial"))
    assert not list(table.parent.glob("*.damaged"))


def test_where_the_users_file_is(monkeypatch, tmp_path):
    monkeypatch.delenv("GEMMULE_TUNED")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert tuned_table.user_file() == tmp_path / ".config" / "gemmule" / "tuned.json"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    assert tuned_table.user_file() == tmp_path / "settings" / "gemmule" / "tuned.json"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert tuned_table.user_file() == tmp_path / "Library" / "Application Support" / "gemmule" / "tuned.json"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert tuned_table.user_file() == tmp_path / "local" / "gemmule" / "tuned.json"


def test_a_user_without_a_home_has_no_file(monkeypatch):
    def home():
        raise RuntimeError("no home")

    monkeypatch.delenv("GEMMULE_TUNED")
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(ArgumentError, match="set GEMMULE_TUNED"):
        tuned_table.user_file()
    forget()
    assert chosen().chosen_by == "cost"
