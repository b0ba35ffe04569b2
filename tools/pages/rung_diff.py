"""What a rung of the ladder changes: the kernel's class beside that of the rung before, as a unified diff.

The names of the class and of its config say which rung it is and nothing else, so both become the same in every rung:
only what is computed differently remains.
"""

from __future__ import annotations

import ast
import difflib
import re
from pathlib import Path

from gemmule.dispatch.registry import REGISTRY

_SOURCE = Path(__file__).parents[2] / "src"
#: Where diffs lie, in docs.
LISTINGS = "listings"
#: What the class and its config are called in every rung.
_CLASS, _CONFIG = "Kernel", "Config"


def class_source(kernel: str) -> str:
    """Return the source of a kernel's class, with the names that every rung shares.

    Parameters
    ----------
    kernel : str
        Name of the kernel.

    Raises
    ------
    KeyError
        If there is no such kernel, or its module has not exactly one class.
    """
    package = next((spec.package for spec in REGISTRY if spec.name == kernel), None)
    if package is None:
        raise KeyError(f"no kernel {kernel}")
    path = Path(*_SOURCE.parts, *package.split("."), "kernel.py")
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    if len(classes) != 1:
        raise KeyError(f"{kernel} has {len(classes)} classes, not one")
    source = ast.get_source_segment(text, classes[0])
    assert source is not None
    names = {classes[0].name: _CLASS} | {name: _CONFIG for name in _imported(tree) if name.endswith("Config")}
    return re.sub(r"\b(?:" + "|".join(names) + r")\b", lambda match: names[match[0]], source)


def _imported(tree: ast.Module) -> list[str]:
    """Return the names that a kernel's module imports."""
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return [alias.name for node in imports for alias in node.names]


def source_block(kernel: str, folder: str) -> str:
    """Return the class of a kernel as a block of a page, for a rung that has none before it.

    Parameters
    ----------
    kernel : str
        Name of the kernel.
    folder : str
        The folder ``docs``, as the page links to it.
    """
    package = next(spec.package for spec in REGISTRY if spec.name == kernel)
    path = "/".join(("../src", *package.split("."), "kernel.py"))
    text = Path(*_SOURCE.parts, *package.split("."), "kernel.py").read_text(encoding="utf-8")
    (name,) = (node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    return f"```{{literalinclude}} {folder}/{path}\n:pyobject: {name}\n```"


def diff_block(before: str, after: str, folder: str) -> str:
    """Return a block of a page that shows the file of a diff; `folder` is ``docs``, as the page links to it."""
    file = f"{folder}/{LISTINGS}/{diff_name(before, after)}"
    return f"[As a file]({file})\n\n```{{literalinclude}} {file}\n:language: diff\n```"


def diff_name(before: str, after: str) -> str:
    """Return the name of the file that has the diff from one kernel to another."""
    return f"{before}-{after}.diff"


def diff_text(before: str, after: str) -> str:
    """Return the unified diff from one rung's class to the next one's."""
    old, new = (class_source(kernel).splitlines() for kernel in (before, after))
    lines = difflib.unified_diff(old, new, before, after, lineterm="")
    # An editor that strips trailing blanks must not change the file.
    return "".join(f"{line.rstrip()}\n" for line in lines)
