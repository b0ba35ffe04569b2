"""Texts of findings: kind, kernel, place and source line first; what is the same is said once."""

from __future__ import annotations

import dataclasses

from gemmule.vgpu.ptx.module import Instruction, SourceLine
from gemmule.vgpu.report import CheckError, DeadlockError, Finding, merged


def finding(kind="race", line=3, file="k.py", **more):
    instruction = Instruction(more.pop("index", 0), "st", (), (), None, 7, "st [x]", SourceLine(file, line, 1))
    return Finding(kind, "reads it", "kernel_cutlass_scale_tensorptrf32_0", instruction, (0, 0, 0), 1, (0,), **more)


def test_kernel_place_and_text_come_first(tmp_path):
    file = tmp_path / "k.py"
    file.write_text("@cute.kernel\ndef scale(x):\n    x[0] = 1\n")
    assert str(finding(file=str(file))).startswith(f"race in scale, at {file}:3 `x[0] = 1`, CTA (0, 0, 0), warp 1")


def test_a_method_is_named_with_its_class(tmp_path):
    file = tmp_path / "k.py"
    text = "".join(f"class {name}:\n    @cute.kernel\n    def kernel(self): ...\n" for name in ("Sgemm", "Hgemm"))
    file.write_text(text)
    one = dataclasses.replace(finding(file=str(file)), kernel="kernel_cutlass_kernel_modelHgemm_object_at__0")
    assert one.kernel_name == "Hgemm.kernel"


def test_a_kernel_whose_source_is_not_there_has_the_front_of_its_name():
    assert finding().kernel_name == "scale"
    assert dataclasses.replace(finding(), kernel="g05").kernel_name == "g05"


def test_instructions_of_one_line_are_one_finding():
    (one,) = merged([finding(index=0, times=2), finding(index=1, times=3)])
    assert (one.times, one.instructions) == (5, 2)
    assert str(one).endswith("(5 times by 2 instructions of the line)")
    assert len(merged([finding(), finding(line=4), finding(kind="barrier")])) == 3


def test_a_deadlock_is_one_finding_that_says_who_waits_where():
    waiting = [
        dataclasses.replace(finding("deadlock", line), message=message, cta=(cta, 0, 0), warp=warp)
        for cta in range(3)
        for warp, (line, message) in enumerate(
            [(3, "waits at barrier 1"), (3, "waits at barrier 1"), (9, "waits for it")]
        )
    ]
    error = DeadlockError(waiting)
    assert isinstance(error, CheckError)
    assert str(error).count("\n") == 0
    assert "warps 0-1 of CTA (0, 0, 0) and of 2 more CTAs wait at barrier 1, at k.py:3" in str(error)
    assert "warp 2 of CTA (0, 0, 0) and of 2 more CTAs wait for it, at k.py:9" in str(error)
    assert len(error.findings) == 9
