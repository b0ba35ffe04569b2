"""What somebody meets who tries the command for the first time: lines that say what to do instead."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import gemmule as gm
from gemmule.cli import gemmule


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMULE_EXECUTOR", "cpu")
    np.save("a.npy", np.ones((4, 3)))
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(gemmule, arguments)
    assert result.exit_code == code, result.output
    return result


def refused(*arguments):
    stderr = run(*arguments, code=1).stderr
    assert stderr.startswith("gemmule: ")
    assert stderr.count("\n") == 1
    return stderr


def test_files_that_are_something_else():
    np.savez("z.npz", a=np.ones((3, 3)))
    open("empty.npy", "w").close()
    output = ("a.npy", "-o", "c.npy")
    assert "an archive, as numpy.savez writes); write it with numpy.save" in refused("matmul", "z.npz", *output)
    assert "not a .npy file (it is empty)" in refused("matmul", "empty.npy", *output)


def test_transposes_are_named_as_they_are_given():
    output = ("-o", "c.npy")
    assert "; give --transpose-a or --transpose-b\n" in refused("matmul", "a.npy", "a.npy", *output)
    np.save("b.npy", np.ones((3, 2)))
    # It fits as it was before it was transposed.
    assert "; give no --transpose-a\n" in refused("matmul", "a.npy", "b.npy", "--transpose-a", *output)
    np.save("d.npy", np.ones((9, 9)))
    assert "no transpose of them fits; give other matrices" in refused("matmul", "a.npy", "d.npy", *output)


def test_records_that_are_not_there(tmp_path):
    for command in (("report", "nope"), ("bench", "show", "nope")):
        assert "nope: there is no such file; check the name, which is looked for in" in refused(*command)


def test_nothing_is_claimed_of_what_no_check_can_find():
    np.save("nan.npy", np.full((3, 2), np.nan))
    told = run("matmul", "a.npy", "nan.npy", "-o", "c.npy", "--verify").stdout
    assert "verified: 8 of 8 elements are NaN or infinite; none is finite, so no error was bounded (--seed" in told
    assert not any(word in told for word in ("random vectors", "rounding bound", "by element"))
    partly = np.ones((3, 2))
    partly[0, 0] = np.nan
    np.save("partly.npy", partly)
    told = run("matmul", "a.npy", "partly.npy", "-o", "e.npy", "--verify").stdout
    assert "of the rounding bound" in told
    assert "  4 of 8 elements are NaN or infinite\n" in told
    np.save("i.npy", np.ones((3, 2), np.int64))
    np.save("j.npy", np.ones((4, 3), np.int64))
    told = run("matmul", "j.npy", "i.npy", "-o", "d.npy", "--verify").stdout
    assert "verified: all sums are exact" in told
    assert "by 16 random vectors: one wrong element is missed with a probability of 1.5e-05 at most" in told


def test_an_output_is_called_as_the_caller_calls_it():
    pytest.importorskip("zarr", reason="zarr is not installed")
    same = ("matmul", "a.npy", "a.npy", "--transpose-b", "-o")
    for output in ("c.npy", "c.zarr", "d.zarr::x"):
        run(*same, output)
        assert refused(*same, output).startswith(f"gemmule: {output}: exists")


def test_the_types_are_told():
    np.save("f.npy", np.ones((3, 5), np.float32))
    for options, types in (
        ((), "float64 by float32 into float64"),
        (("--out-dtype", "float32", "--force"), "float64 by float32 into float32"),
        (("--compute-dtype", "float64", "--force"), "float64"),
    ):
        for device in ((), ("--device-memory", "1MiB", "--executor", "cpu")):
            told = run("matmul", "a.npy", "f.npy", "-o", f"{len(device)}.npy", *options, *device).stdout
            assert told.startswith(f"4 x 5 x 3, {types}: ")


def test_a_type_that_would_do_is_named():
    refusal = refused("matmul", "a.npy", "a.npy", "--transpose-b", "-o", "c.npy", "--out-dtype", "int8")
    assert refusal.endswith("cannot be written as int8; choose a floating-point type as --out-dtype\n")
    with pytest.raises(gm.DTypeError, match=r"choose a complex type as out_dtype$"):
        gm.outofcore.matmul(np.ones((2, 2), np.complex64), np.ones((2, 2)), "c.npy", out_dtype="float32")


def test_smaller_chunks_are_a_remedy_for_little_memory():
    pytest.importorskip("zarr", reason="zarr is not installed")
    np.save("w.npy", np.ones((900, 8)))
    product = ("matmul", "w.npy", "w.npy", "--transpose-b", "--memory", "1MiB", "-o")
    assert refused(*product, "c.zarr").endswith(" or more, or smaller chunks of the result\n")
    run(*product, "c.zarr", "--chunks", "64")
    assert refused(*product[:5], "1KiB", "-o", "c.npy").endswith(" or more\n")


@pytest.mark.parametrize(
    ("option", "executor"), [("--memory", ()), ("--memory", ("--executor", "cpu", "--strategy", "panels")),
                             ("--device-memory", ("--executor", "cpu")), ("--pinned-memory", ("--executor", "cpu"))],
)  # fmt: skip
def test_a_limit_without_a_unit_may_have_been_meant_as_mib(option, executor):
    a = np.ones((300, 200), np.float32)
    np.save("a.npy", a)
    product = ("matmul", "a.npy", "a.npy", "--transpose-b", "-o", "c.npy", *executor, option)
    assert refused(*product, "300").endswith(f" or more, or a unit as in {option} 300MiB\n")
    for given in ("300B", "1KiB"):
        assert refused(*product, given).endswith(" or more\n")
    if option == "--memory":
        with pytest.raises(gm.MemoryLimitError, match=r"give memory='\d+' or more, or a unit as in memory='300MiB'$"):
            gm.outofcore.matmul(a, a.T, "c.npy", memory=300)
    # So many MiB would not do either.
    np.save("a.npy", np.ones((1 << 19, 1), np.float32))
    assert refused("matmul", "a.npy", "a.npy", "--transpose-b", "-o", "c.npy", "--memory", "2").endswith(" or more\n")


@pytest.mark.parametrize("prefix", ["", "i"])
def test_a_plan_states_memory_in_the_units_that_were_given(prefix):
    np.save("a.npy", np.ones((900, 800), np.float32))
    product = ("matmul", "a.npy", "a.npy", "--transpose-b", "-o", "c.npy", "--memory", f"64M{prefix}B")
    device = ("--executor", "cpu", "--device-memory", f"2M{prefix}B", "--pinned-memory", f"9M{prefix}B", "--dry-run")
    for text, least in ((run(*product).output, 2), (run(*product, *device, "--force").output, 6)):
        lines = [line for line in text.splitlines() if "memory" in line]
        units = re.findall(r"\d ([kKMGT]?i?B)\b", " ".join(lines))
        assert len(units) >= least
        assert all(unit.endswith("iB") == bool(prefix) for unit in units), lines


@pytest.mark.parametrize(
    ("options", "ending"),
    [(("--devices", "0"), "; leave it out, or give --executor gpu on a machine that has them\n"),
     (("--beta", "2"), "; give --c, or leave it out\n")],
)  # fmt: skip
def test_messages_name_options_with_their_dashes(options, ending):
    np.save("b.npy", np.ones((3, 4)))
    assert refused("matmul", "a.npy", "b.npy", "--executor", "cpu", "-o", "c.npy", *options).endswith(ending)


def test_an_epilogue_without_a_parameter():
    with pytest.raises(
        gm.ArgumentError, match=r"has no parameters, of which the first is the product; write it as lambda"
    ):
        gm.gemm(np.ones((2, 2)), np.ones((2, 2)), epilogue=lambda: 3)


def test_former_and_misspelled_commands(folder):
    assert "multiply is now matmul; did you mean gemmule matmul?" in usage_error("multiply", "a.npy")
    assert "No such command 'matmull'; did you mean matmul?" in usage_error("matmull", "a.npy")


def usage_error(*arguments):
    done = CliRunner().invoke(gemmule, arguments)
    assert done.exit_code == 2
    return done.stderr


def test_misspelled_type_is_named_with_its_option(folder):
    message = refused("matmul", "a.npy", "b.npy", "-o", "c.npy", "--out-dtype", "flaot")
    assert message.startswith("gemmule: --out-dtype flaot: ")
    assert "did you mean float64, float32 or float16?" in message


def test_a_type_that_is_none_and_a_size_that_is_no_number(folder):
    message = refused("matmul", "a.npy", "a.npy", "-o", "c.npy", "--dtype", "int9")
    assert "dtype must be a name such as" in message
    assert "'x' is not a valid integer; see gemmule compare --help" in usage_error("compare", "4", "4", "x")


def test_links_that_lead_nowhere(folder):
    Path("loop.npy").symlink_to("loop.npy")
    Path("dangling.npy").symlink_to("nowhere.npy")
    remedy = "correct or remove the link, or name the file itself"
    assert f"loop.npy: its path has a symbolic link that leads to itself; {remedy}" in refused(
        "matmul", "loop.npy", "b.npy", "-o", "c.npy"
    )
    assert remedy in refused("matmul", "a.npy", "a.npy", "--transpose-b", "-o", "loop.npy")
    assert "dangling.npy: it is a symbolic link to nowhere.npy, which is missing; correct the link" in refused(
        "matmul", "dangling.npy", "b.npy", "-o", "c.npy"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("check", "kernel"),
            "'kernel' is not of the form FILE.py::FUNCTION; give e.g. kernels.py::axpy; see gemmule check --help",
        ),
        (("check",), "Missing argument 'FILE.py::FUNCTION'; see gemmule check --help"),
        (("matmul", "--forse"), "did you mean --force or --seed? See gemmule matmul --help"),
        (("bench", "gemm", "--nothing"), "see gemmule bench gemm --help"),
        (("check", "k.py::f", "--sarif", "nodir/x"), "nodir/x: its folder does not exist; make it first"),
    ],
)
def test_usage_errors_are_one_line(arguments, said):
    stderr = run(*arguments, code=2).stderr
    assert stderr.startswith("gemmule: ")
    assert stderr.count("\n") == 1
    assert said in stderr


def test_a_group_without_a_command_shows_its_help():
    assert "Commands:" in run("bench", code=2).output
