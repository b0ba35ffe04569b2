"""``gemmule check``: exit code, text, JSON, SARIF and annotations of what the virtual GPU finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gemmule.cli import gemmule

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

FILE = Path(__file__).parents[2] / "support" / "vgpu" / "cute_functions.py"
FAULTY = (f"{FILE}::past_the_end", "float32[128]", "1")


def check(*arguments):
    return CliRunner().invoke(gemmule, ["check", *map(str, arguments)])


def test_a_clean_kernel_ends_with_0():
    done = check(f"{FILE}::axpy", "float32[1000]", "float32[1000]=0", "2.0", "None", "--schedules", "2")
    assert (done.exit_code, done.output) == (0, f"{FILE}::axpy: no findings under 2 schedules\n")


def test_a_class_is_called():
    done = check(f"{FILE}::TmaCopy", "bfloat16[40,64]", "bfloat16[40,64]")
    assert done.exit_code == 0, done.output


def test_findings_end_with_1_and_are_listed():
    done = check(*FAULTY, "--github")
    first, last, annotation = done.stdout.splitlines()
    assert done.exit_code == 1
    assert first.startswith("out of bounds in past_the_end_kernel, at ")
    assert last.endswith("1 finding under 1 schedule")
    assert annotation.startswith("::error file=")
    assert ",line=" in annotation


def test_json_and_sarif(tmp_path):
    file = tmp_path / "found.sarif"
    done = check(*FAULTY, "--json", "--sarif", file)
    found = json.loads(done.stdout)
    (one,) = found["findings"]
    assert (found["exit_code"], one["kind"], one["kernel"]) == (1, "out of bounds", "past_the_end_kernel")
    assert one["text"] == "x[thread + ahead] = cutlass.Float32(1.0)"
    (run,) = json.loads(file.read_text())["runs"]
    (result,) = run["results"]
    assert result["ruleId"] in {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == one["line"]


def test_an_assertion_that_fails_is_one_line(tmp_path):
    file = tmp_path / "case.py"
    file.write_text(
        "import numpy as np\n\n\ndef case():\n    np.testing.assert_array_equal(np.ones(2), 2, 'not\\ntwo')\n"
    )
    done = check(f"{file}::case")
    assert done.exit_code == 1
    (line,) = done.output.splitlines()
    assert line.startswith(f"{file}::case: assertion failed at {file}:5: ")
    assert "not two" in line
    found = json.loads(check(f"{file}::case", "--json").stdout)
    assert (found["findings"], found["exit_code"]) == ([], 1)
    assert found["assertion"] in line


def test_attributes_that_raise_are_no_traceback_of_a_misspelled_name(tmp_path):
    file = tmp_path / "case.py"
    file.write_text(
        "def case():\n    pass\n\n\ndef __getattr__(name):\n    raise AttributeError(name)\n\n\n"
        "def __dir__():\n    return ['case', 'lazy']\n"
    )
    assert "has no casse; did you mean case?" in check(f"{file}::casse").output


def test_an_ordinary_function_runs_its_kernels_itself(tmp_path):
    file = tmp_path / "case.py"
    file.write_text(
        "import numpy as np\nfrom gemmule import vgpu\nfrom support.vgpu.cute_functions import Sgemm\n\n\n"
        "def case():\n    a = np.zeros((16, 16), np.float32)\n"
        "    vgpu.run(Sgemm(barriers=False), a, a.copy(), a.copy())\n"
    )
    done = check(f"{file}::case")
    assert done.exit_code == 1
    assert done.stdout.startswith("race in Sgemm.kernel")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["axpy"], "is not of the form FILE.py::FUNCTION"),
        (["nowhere.py::axpy"], "nowhere.py does not exist; give the path of a Python file"),
        ([f"{FILE}::axpi"], "has no axpi; did you mean axpy?"),
        ([f"{FILE}::past"], "has no past; did you mean past_the_end?"),
        ([f"{FILE}::allocator"], "has no allocator; give the name of a function in it"),
        ([f"{FILE}::THREADS"], "is not a function; give the name of one in it"),
        ([f"{FILE}::axpy", "float32(3)"], "is not a value; give an array such as 'float32[40,24]'"),
        ([f"{FILE}::axpy", "floaty[3]"], "is not a type of NumPy or ml_dtypes; did you mean float"),
        ([f"{FILE}::axpy", "int32[3]=many"], "is not a number; give one, as int32[3]=0"),
        ([f"{FILE}::axpy", "int8[3]=300"], "int8 does not hold 300"),
        ([f"{FILE}::axpy", "uint16[3]=-1"], "uint16 does not hold -1"),
        ([f"{FILE}::axpy", "int32[3]=nan"], "int32 does not hold nan"),
        ([f"{FILE}::axpy", "int32[3]=1.5"], "int32 does not hold 1.5"),
    ],
)
def test_refused_arguments(arguments, message):
    done = check(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["axpy"],
            "axpy(x, y, alpha, stream): missing 'x', 'y', 'alpha', 'stream'; pass an array ('float32[40,24]' for "
            "gemmule check), a number or None (a stream) for each",
        ),
        (["axpy", "float32[3]", "float32[3]", "1.0", "None", "2"], "too many positional arguments; pass one for each"),
        (["TmaCopy"], "TmaCopy(x, y): missing 'x', 'y'"),
        (
            ["axpy", "float32[3]", "float32[3]", "-2.0", "None"],
            "-2.0 begins as an option does; put options first, then -- and the arguments: -- -2.0",
        ),
        (["axpy", "float32[3]", "float32[3]", "--trac", "x"], "No such option '--trac'"),
        (["axpy", "float32[3]", "float32[3]", "None", "None"], "alpha=None is not a number, and alpha is a Float32"),
        (["axpy", "float32[3]", "float32[3]", "banana", "None"], "'float32[40,24]' or 'int32[8]=0', a number, None"),
        (["axpy", "3", "float32[3]", "1.0", "None"], "x=3 is not an array, and x is a Tensor; pass an array"),
        (["axpy", "float32[3]", "None", "1.0", "None"], "; y=None may be why: pass arrays or numbers"),
        (["axpy_kernel"], "axpy_kernel is a kernel; give the @cute.jit function that launches it"),
        (["axpy_kernel", "float32[3]", "float32[3]", "1.0"], "axpy_kernel is not a @cute.jit function"),
    ],
)
def test_calls_that_do_not_fit_are_one_line(arguments, message):
    name, *values = arguments
    done = check(f"{FILE}::{name}", *values)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("def case():\n    pass\n", 2, "has run no kernel"),
        ("def case(x):\n    pass\n", 2, "without arguments: missing a required argument: 'x'; give it a default"),
        ("def case(:\n", 2, "cannot be imported: SyntaxError"),
        ("import no_such_module\n", 2, "cannot be imported: ModuleNotFoundError"),
        ("raise ImportError('no cutlass', name='cutlass')\n", 2, 'cutlass; pip install "gemmule[compiler]" brings it'),
    ],
)
def test_files_without_a_case(tmp_path, text, code, message):
    file = tmp_path / "case.py"
    file.write_text(text)
    done = check(f"{file}::case", "--json")
    assert (done.exit_code, json.loads(done.stdout)["exit_code"]) == (code, code)
    assert message in done.stderr


def test_a_large_integer_fills_exactly():
    from gemmule.commands.check import _value

    assert _value("int64[2]=9007199254740993", None).tolist() == [9007199254740993] * 2
