"""The drawings of a report: the same ones whichever process makes them, and told one by one."""

from __future__ import annotations

import contextlib

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from gemmule.lab.plots import Plot
from gemmule.lab.report.drawings import draw_all
from gemmule.lab.report.figures import curves_view
from gemmule.lab.report.views import MachineView, Section, drawings
from gemmule.lab.styles import Style


def page(figures=2):
    views = []
    for number in range(figures):
        plot = Plot(
            name=f"p{number}", title="rate", unit="GFLOP/s", axis="N", curves=(("g01", {128: 1.0 + number, 256: 2.0}),),
            reference="cuBLAS", library={128: 3.0, 256: 4.0}, peaks=(), styles=(Style(),),
        )  # fmt: skip
        views.append(curves_view(plot, f"p{number}", "Rate", "A caption", 1))
    return [MachineView("m", "M", (Section("s", "S", figures=tuple(views)),), (), (), ())]


def test_every_drawing_is_made_once_and_told():
    told = []

    @contextlib.contextmanager
    def watch(total):
        told.append(total)
        yield lambda name, more: told.append((name, more))

    wanted = drawings(page())
    here = draw_all(wanted, watch, workers=1)
    assert told[0] == 4
    assert sorted(told[1:]) == sorted((drawing.name, 1) for drawing in wanted)
    assert list(here) == ["p0-wide", "p0-narrow", "p1-wide", "p1-narrow"]
    assert all(svg.startswith("<svg") and f'id="{name}-' in svg for name, svg in here.items())
    # Processes give the same.
    assert draw_all(wanted, watch, workers=2) == here
