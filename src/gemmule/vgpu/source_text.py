"""Source files of kernels: the text of a line, and the kernel's own name behind the compiler's long one."""

from __future__ import annotations

import ast
import functools
import linecache
import os
import re

#: Characters of a line that a message shows.
_MOST = 100
#: Start of names that the kernel compiler makes, and what follows the kernel's own name in them.
_PREFIX = "kernel_cutlass_"
_REST = re.compile(r"_(?:tensor|Tensor|CopyAtom|TiledCopy|TiledMma|Tiled|ptr|Ptr|None|object_at).*|_\d+$")


def line_text(file: str, line: int) -> str:
    """Return the text of a line without its indentation; nothing if the file cannot be read."""
    text = linecache.getline(file, line).strip()
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."


def shown_path(file: str) -> str:
    """Return a path relative to the working directory if it is in there."""
    inside = os.path.relpath(file)
    return file if inside.startswith("..") or not os.path.isabs(file) else inside


@functools.lru_cache(maxsize=256)
def own_name(entry: str, file: str) -> str:
    """Return the name that a kernel has in its source, for its name in the PTX text.

    Parameters
    ----------
    entry : str
        Name in the PTX text; one that the kernel compiler did not make is returned as it is.
    file : str
        The source file, where there is one.
    """
    _, found, mangled = entry.rpartition(_PREFIX)
    if not found:
        return entry
    fitting = [name for name in _kernels(file) if mangled.startswith(name.rpartition(".")[2] + "_")]
    # Methods of several classes have one name: the class is named behind it.
    named = [name for name in fitting if name.rpartition(".")[0] and name.rpartition(".")[0] in mangled]
    if named or fitting:
        return max(named or fitting, key=len)
    return _REST.sub("", mangled) or entry


@functools.lru_cache(maxsize=256)
def _kernels(file: str) -> tuple[str, ...]:
    """Return the names of a file's functions whose decorator is a kernel's, those of methods with the class."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)), file)
    except (SyntaxError, ValueError):
        return ()
    found = []

    def look(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{prefix}{child.name}."
                if any("kernel" in ast.unparse(decorator) for decorator in child.decorator_list):
                    found.append(f"{prefix}{child.name}")
            look(child, inner)

    look(tree, "")
    return tuple(found)
