"""Messages name arguments as Python does, and the command line spells them as its options."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

import gemmule as gm
from gemmule.cli import gemmule as command_line
from gemmule.commands.matmul import matmul_command
from gemmule.commands.spelling import in_options, options_of

SOURCE = Path(gm.__file__).parent
#: Only commands reach these, and their callers have options.
OF_COMMANDS = ("cli.py", "commands/", "lab/", "runtime/cublaslt.py", "runtime/profiling")

WORD = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@pytest.mark.parametrize(
    ("python", "options"),
    [
        ("give force=True to replace it", "give --force to replace it"),
        ("start afresh with resume=False, and go", "start afresh with --no-resume, and go"),
        ("leave verify=False out", "leave no --verify out"),
        ("give memory='1.5GiB' or more", "give --memory 1.5GiB or more"),
        ("executor='gpu' cannot; give executor='cpu'", "--executor gpu cannot; give --executor cpu"),
        ("alpha=1e+39 is large", "--alpha 1e+39 is large"),
        ("beta=0.5.", "--beta 0.5."),
        ("chunks=(1024, 512) differ", "--chunks 1024,512 differ"),
        ("with a_dtype or b_dtype: x", "with --a-dtype or --b-dtype: x"),
        ("memory='two words'", "--memory 'two words'"),
        ("GEMMULE_EXECUTOR='x' and my_out_dtype=3", "GEMMULE_EXECUTOR='x' and my_out_dtype=3"),
        ("runs/beta=3/a.npy and out_dtype.npy", "runs/beta=3/a.npy and out_dtype.npy"),
        ("give c=..., or leave", "give --c, or leave"),
        ("output='C.npy' exists", "--output C.npy exists"),
        ("the memory of the device", "the memory of the device"),
    ],
)
def test_arguments_become_options(python, options):
    assert in_options(python, matmul_command) == options


def test_a_group_knows_the_options_of_its_commands():
    assert in_options("give force=True", command_line) == "give --force"
    assert in_options("give force=True, =1", click.Command("none")) == "give force=True, =1"


def texts(path):
    """Yield line and text of each string of a file that is no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    described = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
            yield node.lineno, node.value


def test_libraries_speak_of_no_options():
    # What others call their options is no matter: a Dask worker has --memory-limit.
    options = {name for option in options_of(command_line) for name in (*option.opts, *option.secondary_opts)}
    assert "--force" in options
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if not name.startswith(OF_COMMANDS):
            # A whole command is a remedy for those who call the library, too.
            parts = ((line, text, re.sub("`gemmule [^`]*`", "", text)) for line, text in texts(path))
            found += [f"{name}:{line}: {text!r}" for line, text, part in parts if {*WORD.findall(part)} & options]
    assert not found, "name the argument as Python does, name=value; commands spell it:\n" + "\n".join(found)
