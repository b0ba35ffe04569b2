"""docs/vgpu_findings.md: each kernel has the finding of its section, and its mend has none."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

from gemmule import vgpu

pytest.importorskip("cutlass", reason="the kernel compiler is not installed")

PAGE = (Path(__file__).parents[3] / "docs" / "vgpu_findings.md").read_text(encoding="utf-8")
FRAME = re.search(r"<!-- tested: frame -->\n```py\n(.*?)```", PAGE, re.DOTALL)[1]
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
CASES = [
    pytest.param(section.partition("\n")[0], text, id=f"{section.partition(chr(10))[0]}-{number}")
    for section in SECTIONS
    for number, text in enumerate(re.findall(r"```diff\n(.*?)```", section, re.DOTALL))
]


def run(folder, text, signs):
    lines = "\n".join(line[1:] for line in text.splitlines() if line[0] in signs)
    file = folder / f"kernel_{len(list(folder.iterdir()))}.py"
    file.write_text(FRAME.replace("    ...  # the lines below", textwrap.indent(lines, "    ")))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vgpu.run(module.run, np.ones(64, np.float32), np.zeros(64, np.float32))


@pytest.mark.parametrize(("kind", "text"), CASES)
def test_the_fault_is_found_and_its_mend_is_clean(tmp_path, kind, text):
    with pytest.raises(vgpu.CheckError, match=rf"\A{kind} in kernel, at "):
        run(tmp_path, text, " -")
    run(tmp_path, text, " +")


def test_every_kind_has_a_section():
    named = {section.partition("\n")[0] for section in SECTIONS}
    listed = re.search(r"kind : str\n(.*?)\n    message", vgpu.Finding.__doc__, re.DOTALL)[1]
    assert set(re.findall(r"``([\w ]+)``", listed)) <= named
