"""The rooms import one way: this reads the imports of every file, without running any.

core <- kernels, compiler <- dispatch <- outofcore, lab; core <- compiler <- runtime, vgpu; core <- host. files and
executor import only core. Only the entrances join an executor to the rest: outofcore/calls is one.
"""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).parents[3] / "src" / "gemmule"

#: The rooms that each room may import, besides itself.
MAY_IMPORT = {
    "core": set(),
    "files": {"core"},
    "executor": {"core"},
    "kernels": {"core"},
    "dispatch": {"core", "files", "kernels", "compiler"},
    "outofcore": {"core", "files", "executor", "kernels", "dispatch"},
    "lab": {"core", "files", "executor", "kernels", "dispatch"},
    "compiler": {"core", "files"},
    "runtime": {"core", "executor", "compiler"},
    "vgpu": {"core", "files", "executor", "compiler"},
    "host": {"core", "executor"},
}
#: Modules that may import every room; only commands import what measures.
ENTRANCES = {"__init__", "__main__", "api", "cli", "commands", "epilogue", "jax", "torch", "outofcore/calls"}
#: Folders of a room that are entrances, and the files of the room that may import them: they are imported when a public
#: name is first used.
FACES = {"outofcore/calls": {"outofcore/__init__.py", "outofcore/calls"}}
#: What the files of a kernel, or of a ladder's rungs, that are read without the compiler may import, besides the
#: standard library.
_RULES = {
    "spec.py": "spec.py imports core and kernels, and its kernel.py in build() only",
    "config.py": "config.py imports core and kernels, but no spec.py and no kernel.py",
}
#: Kernels whose kernel.py imports no spec.py: kernel → config ← spec.
_NO_SPEC = re.compile(r"kernels/(hopper|emulation|mma_sync|transpose)/|kernels/ladder/h\d\d_")
GPU_PACKAGES = {"cuda", "cupy", "cutlass", "jax", "nvmath", "torch"}


def statements(node, at_once=True):
    """Yield every statement within a node, and whether it runs when the module is imported."""
    for child in ast.iter_child_nodes(node):
        # Expressions import nothing.
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child, at_once
            yield from statements(child, at_once and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def imports(path, package):
    """Yield line, absolute module name and whether at module level, for each import of the file."""
    for node, at_once in statements(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            base = [*parents, *(node.module.split(".") if node.module else ())]
            # `from gemmule import core` and `from . import kernel` name modules.
            names = [".".join([*base, alias.name]) for alias in node.names]
        for name in names:
            yield node.lineno, name, at_once


def room_of(name):
    """Return the room of a dotted name, or None outside gemmule."""
    first, _, rest = name.partition(".")
    return (rest.split(".")[0] or "__init__") if first == "gemmule" else None


def _kind(module):
    """Return the file of a kernel whose rule a module follows: rungs have their specs, and their configs, in one."""
    if module.endswith("_rungs"):
        return "spec.py"
    return "config.py" if module.endswith("_rung_config") else f"{module}.py"


def violations(source):
    """Return a message with file, line and rule for each import that goes the wrong way."""
    found = []
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        folder = "/".join(parts[:2])
        room = folder if folder in ENTRANCES else parts[0]
        package = ("gemmule", *parts[:-1])
        own = path.relative_to(source).as_posix()
        where = path.relative_to(source.parent.parent) if source.parent.name == "src" else path.relative_to(source)
        if room not in MAY_IMPORT and room not in ENTRANCES:
            found.append(f"{where}:1: {room} is not a room; add it to the design and to this test")
            continue
        for line, name, at_once in imports(path, package):
            target = room_of(name)
            top = name.partition(".")[0]
            here = f"{where}:{line}: imports {name}"
            if target is not None and room in MAY_IMPORT and target != room and target not in MAY_IMPORT[room]:
                allowed = ", ".join(sorted(MAY_IMPORT[room])) or "no other room"
                found.append(f"{here}; {room} may import {allowed}")
            inner = "/".join(name.split(".")[1:3])
            if room in MAY_IMPORT and inner in FACES and not {folder, own} & FACES[inner]:
                found.append(f"{here}; {inner} is an entrance, which {room} may not import")
            if target == "lab" and room in ENTRANCES and room not in {"cli", "commands"}:
                found.append(f"{here}; only commands may import the laboratory")
            if room == "core" and top in GPU_PACKAGES:
                found.append(f"{here}; core imports no GPU package")
            if top == "cutlass" and room not in {"compiler", "kernels"}:
                found.append(f"{here}; only compiler and kernels may import cutlass")
            kind, words = _kind(path.stem), name.split(".")
            if room == "kernels" and kind in _RULES:
                own_kernel = name.startswith(".".join([*package, "kernel"]))
                late = kind == "spec.py" and own_kernel and not at_once
                forbidden = {"kernel.py"} if kind == "spec.py" else {"kernel.py", "spec.py"}
                near = target in {"core", "kernels"} and not forbidden.intersection(map(_kind, words[3:5]))
                if not (top in sys.stdlib_module_names or near or late):
                    found.append(f"{here}; {_RULES[kind]}")
            if path.name == "kernel.py" and _NO_SPEC.match(own) and "spec.py" in map(_kind, words[3:5]):
                found.append(f"{here}; kernel.py imports no spec.py; move what both need to config.py")
    return found


def test_files_of_tests_have_different_names():
    """pytest imports them as modules without packages: of two with one name it refuses the second."""
    names = [path.name for path in pathlib.Path(__file__).parents[2].rglob("test_*.py")]
    assert len(names) > 200
    assert sorted(names) == sorted(set(names))


def test_specs_need_no_compiler():
    """Importing every spec imports neither the compiler nor an executor."""
    program = "import sys, gemmule.dispatch.registry; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "gemmule" in shown
    assert not {"cutlass", *GPU_PACKAGES}.intersection(shown)


def test_import_order():
    assert any(SOURCE.rglob("*.py")), f"no files under {SOURCE}"
    found = violations(SOURCE)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("file", "text", "rule"),
    [
        ("core/problem.py", "import gemmule.dispatch", "core may import no other room"),
        ("core/problem.py", "from gemmule import host", "core may import no other room"),
        ("core/problem.py", "def f():\n    from ..runtime import device", "core may import no other room"),
        ("outofcore/tiles/plan.py", "from ..calls import session", "outofcore/calls is an entrance"),
        ("core/problem.py", "import torch", "core imports no GPU package"),
        ("core/problem.py", "from cuda.bindings import driver", "core imports no GPU package"),
        ("files/atomic_file.py", "from ..compiler import cache", "files may import core"),
        ("executor/streams.py", "from ..runtime import launch", "executor may import core"),
        ("kernels/parts/mma.py", "from gemmule.dispatch import registry", "kernels may import core"),
        ("compiler/cache.py", "from ..dispatch import registry", "compiler may import core"),
        ("runtime/launch.py", "from gemmule.host import blas", "runtime may import compiler, core"),
        ("runtime/launch.py", "import cutlass", "only compiler and kernels"),
        ("outofcore/stream.py", "from ..runtime import launch", "outofcore may import core"),
        ("lab/bench.py", "import gemmule", "lab may import"),
        ("api/plan.py", "def f():\n    from gemmule.lab import products", "only commands may import the laboratory"),
        ("host/blas.py", "from .. import api", "host may import core"),
        ("kernels/hopper/x/spec.py", "import cutlass", "spec.py imports core and kernels"),
        ("kernels/hopper/x/spec.py", "import numpy", "spec.py imports core and kernels"),
        ("kernels/hopper/x/spec.py", "from .kernel import Gemm", "spec.py imports core and kernels"),
        ("kernels/hopper/x/spec.py", "def build():\n    from ..y.kernel import Gemm", "spec.py imports core and"),
        ("kernels/hopper/x/config.py", "from .spec import SPEC", "config.py imports core and kernels"),
        ("kernels/hopper/x/config.py", "import numpy", "config.py imports core and kernels"),
        ("kernels/hopper/x/kernel.py", "from .spec import SomeConfig", "kernel.py imports no spec.py"),
        ("kernels/ladder/x_rungs.py", "import cutlass", "spec.py imports core and kernels"),
        ("kernels/ladder/x_rung_config.py", "from .x_rungs import H02", "config.py imports core and kernels"),
        ("kernels/ladder/h02_x/kernel.py", "from ..x_rungs import H02", "kernel.py imports no spec.py"),
        ("kernels/emulation/x/kernel.py", "from ..y.spec import SPEC", "kernel.py imports no spec.py"),
        (
            "kernels/ladder/h09_x/kernel.py",
            "from gemmule.kernels.ladder.h08_y import spec",
            "kernel.py imports no spec.py",
        ),
        ("helpers/text.py", "", "helpers is not a room"),
    ],
)
def test_wrong_way_is_found(tmp_path, file, text, rule):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    found = violations(tmp_path)
    assert any(rule in message for message in found), found
    assert all(message.startswith(f"{pathlib.Path(file)}:{max(text.count(chr(10)), 0) + 1}:") for message in found)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("api.py", "from .host import blas\nfrom .runtime import launch"),
        ("commands/matmul.py", "from ..host import tiles"),
        ("kernels/hopper/x/spec.py", "import dataclasses\nfrom gemmule.core.spec import KernelSpec"),
        ("kernels/hopper/x/spec.py", "def build():\n    from .kernel import Gemm"),
        ("kernels/hopper/x/spec.py", "from .config import SomeConfig, search_space"),
        ("kernels/hopper/x/config.py", "import dataclasses\nfrom gemmule.core.errors import ArgumentError"),
        ("kernels/hopper/x/kernel.py", "import cutlass\nfrom gemmule.kernels.parts import copy"),
        ("runtime/launch.py", "from cuda.bindings import driver\nfrom ..compiler.artifact import Artifact"),
        ("outofcore/npy.py", "import numpy as np\nfrom ..core.errors import ArgumentError"),
    ],
)
def test_right_way_passes(tmp_path, file, text):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    assert violations(tmp_path) == []
