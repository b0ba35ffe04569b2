"""Writes the generated blocks of the documentation: ``python -m gemmule.lab.pages FOLDER``.

A block stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. NAME is ``kernels``, ``dtypes``, or
``experiment FILE``, ``checks FILE``, ``host_to_gpu FILE`` or ``stream FILE`` for a record file of benchmarks/results.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from .records import read_records
from .tables import check_table, dtype_table, experiment_line, host_to_gpu_table, kernel_table, stream_table

_BLOCK = re.compile(r"<!-- generated: (?P<name>\S+)(?: (?P<file>\S+))? -->\n.*?<!-- end -->", re.DOTALL)


def generated(text: str, results: Path) -> str:
    """Return a page's text with its generated blocks made anew.

    Parameters
    ----------
    text : str
        The page.
    results : Path
        Folder of the record files.

    Raises
    ------
    KeyError
        If a block has a name that nothing generates.
    """

    def block(match: re.Match[str]) -> str:
        name, file = match["name"], match["file"]
        if file is None:
            content = {"kernels": kernel_table, "dtypes": dtype_table}[name]()
        else:
            tables = {
                "checks": check_table,
                "experiment": experiment_line,
                "host_to_gpu": host_to_gpu_table,
                "stream": stream_table,
            }
            content = tables[name](read_records(results / file))
        return f"<!-- generated: {name}{f' {file}' if file else ''} -->\n{content}\n<!-- end -->"

    return _BLOCK.sub(block, text)


def main(root: Path) -> None:
    """Make the generated blocks of README.md and docs/ anew."""
    for page in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        page.write_text(generated(text, root / "benchmarks" / "results"), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
