"""Calls of vprintf, the one function that kernels may call: threads print in the order of their lanes."""

from __future__ import annotations

import numpy as np

from gemmule.vgpu.printf import argument_types, formatted

from ..definition import Build, Step, defines
from ..running_batch import Frame
from ..spaces import WINDOWS, address_of, locator, words


@defines("call")
def _call(build: Build) -> Step:
    """Print a format with the arguments that stand in local memory, each aligned to its size."""
    build.flag("uni")
    build.done(2)
    format_at, arguments_at = (locator(build, "local", address_of(build, operand), 8) for operand in build.operands)
    text_at = build.binder.text_at

    def call(frame: Frame) -> None:
        pointers = words(frame, "local", 8)
        formats, arguments = (pointers[at(frame)[1] // 8].tolist() for at in (format_at, arguments_at))
        bases = frame.lanes.pick(frame.batch.local_base).tolist()
        for form, argument, base in zip(formats, arguments, bases, strict=True):
            text = text_at(form)
            values, place = [], argument - WINDOWS["local"] + base
            for kind in argument_types(text):
                size = int(kind[1])
                place = -(-place // size) * size
                values.append(np.frombuffer(frame.batch.local[place : place + size], f"<{kind}")[0].item())
                place += size
            print(formatted(text, values, text_at), end="")

    return call
