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
        (["axpy"], "is no FILE.py::FUNCTION"),
        (["nowhere.py::axpy"], "is no file"),
        ([f"{FILE}::axpi"], "has no axpi"),
        ([f"{FILE}::THREADS"], "is no function"),
        ([f"{FILE}::axpy", "float32(3)"], "is no array such as"),
        ([f"{FILE}::axpy", "floaty[3]"], "is no type"),
        ([f"{FILE}::axpy", "int32[3]=many"], "is no number"),
    ],
)
def test_refused_arguments(arguments, message):
    done = check(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
