"""Files of products to tune: what ``GEMMULE_RECORD`` wrote, or a table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemmule.core.errors import ArgumentError, FileFormatError
from gemmule.core.problem import GemmProblem
from gemmule.dispatch.problem_key import ProblemKey, key_of, problem_of
from gemmule.files.regular_file import check_regular

from ..products import LAYOUTS, gemm_problem, output_type

_COLUMNS = "m, n, k, and where they differ from the options dtype, out_dtype and layout"


def read_shapes(path: Path, dtype: str, layout: str) -> tuple[GemmProblem, ...]:
    """Return the products of a file, each once.

    Parameters
    ----------
    path : Path
        A file of JSON lines or, where its name ends in ``.csv``, a table with a header: m, n, k, and perhaps dtype,
        out_dtype and layout. Lines that ``GEMMULE_RECORD`` wrote have all fields of a product.
    dtype, layout : str
        Defaults of lines without them.

    Raises
    ------
    FileFormatError
        If a line is no product; the message names it.
    """
    check_regular(path, "a file of products")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: is not text ({error}); give products as JSON lines, or as .csv") from error
    rows: list[tuple[int, Any]] = []
    if path.suffix.lower() == ".csv":
        rows = list(enumerate(csv.DictReader(io.StringIO(text)), 2))
    else:
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                try:
                    rows.append((number, json.loads(line)))
                except ValueError as error:
                    raise FileFormatError(f"{path}:{number}: not a line of JSON ({error})") from error
    found: dict[ProblemKey | GemmProblem, GemmProblem] = {}
    for number, row in rows:
        try:
            problem = _problem(row, dtype, layout)
        except (ArgumentError, FileFormatError) as error:
            raise FileFormatError(f"{path}:{number}: {error}") from error
        found.setdefault(key_of(problem) or problem, problem)
    if not found:
        raise FileFormatError(f"{path}: there are no products in it; give {_COLUMNS}")
    return tuple(found.values())


def _problem(row: object, dtype: str, layout: str) -> GemmProblem:
    if not isinstance(row, Mapping):
        raise FileFormatError(f"{row!r} is not a product; give {_COLUMNS}")
    if row.get("record") == "shape":
        return problem_of(ProblemKey.of_dict(row))
    try:
        m, n, k = (int(row[name]) for name in "mnk")
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{dict(row)} is not a product; give {_COLUMNS}") from error
    if min(m, n, k) < 1:
        raise FileFormatError(f"{m} x {n} x {k}: extents are 1 or more")
    kind, way = row.get("dtype") or dtype, row.get("layout") or layout
    if way not in LAYOUTS:
        raise FileFormatError(f"layout {way!r} is none of {', '.join(LAYOUTS)}")
    return gemm_problem(m, n, k, kind, output_type(kind, row.get("out_dtype") or None), way)


def why_not_measured(problem: GemmProblem) -> str | None:
    """Say why a product cannot be measured in the laboratory, or None where it can."""
    if problem.batch:
        return "it has a batch, and the laboratory measures one product at a time"
    if problem.c is not None:
        return "it adds C, which the laboratory does not measure"
    if not problem.d.is_row_major:
        return "its result is column-major; row-major results are measured"
    if not (problem.m and problem.n and problem.k):
        return "an extent is 0"
    # The laboratory's matrices are compact, and all as aligned as each other.
    compact = gemm_problem(
        problem.m, problem.n, problem.k, problem.a.dtype.name, problem.d.dtype.name, problem.layout,
        misaligned=problem.a.alignment < 16,
    )  # fmt: skip
    if problem.a.dtype != problem.b.dtype or key_of(compact) != key_of(problem):
        return "its operands differ in type or alignment, or are padded; the laboratory's do not"
    return None
