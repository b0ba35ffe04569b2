"""Mbarriers, clusters, stores into other CTAs, and matrices between shared memory and registers."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from . import Arrays, Form, Prepared, random_bits  # isort: skip
from support.ptx.barriers import COUNTS, PENDING, SHARED, async_stores, cluster, pending, phases, pipeline, signalled
from support.ptx.snippets import at

MATRICES = ".shared .align 128 .b8 rows[8192];"


def _given(body: str, arrays: Arrays, how: Mapping[str, Any], random: np.random.RandomState) -> Prepared:
    del random
    return body, {name: array.copy() for name, array in arrays.items()}, how


def passed_on(random: np.random.RandomState) -> Prepared:
    """Hand rows from warp to warp."""
    arrays = {"a": random_bits(random, (160,), np.dtype(np.uint32)), "out": np.zeros(160, np.uint32)}
    return pipeline(), arrays, {"threads": 64, "shared": SHARED}


def copies_signalled(counted: bool, random: np.random.RandomState) -> Prepared:
    """Let an mbarrier tell of copies."""
    arrays = {"a": random_bits(random, (256,), np.dtype(np.uint32)), "out": np.zeros(256, np.uint32)}
    return signalled(counted), arrays, {"threads": 64, "shared": SHARED}


def matrices(stored: bool, number: int, trans: bool, random: np.random.RandomState) -> Prepared:
    """Load matrices of 8 x 8 from rows that lie anywhere, or store them there, and look at what is there."""
    rows = (16 * random.permutation(512)[:32]).astype(np.uint32)
    source = random_bits(random, (2048,), np.dtype(np.uint32))
    arrays = {"a": source, "rows": rows, "given": random_bits(random, (128,), np.dtype(np.uint32))}
    arrays["out"] = np.full(128 if not stored else 2048, 77, np.uint32)
    word = "mad.lo.u32 %r11, %r10, 32, %lane;\n"
    body = "mov.u32 %r1, rows;\nmov.u32 %r10, 0;\nFILL:\n" + word + at("a", 4, "%r11")
    body += "ld.global.b32 %r2, [%address];\nmad.lo.u32 %r3, %r11, 4, %r1;\nst.shared.b32 [%r3], %r2;\n"
    body += "add.u32 %r10, %r10, 1;\nsetp.lt.u32 %p1, %r10, 64;\n@%p1 bra FILL;\nbar.sync 0;\n"
    body += at("rows", 4, "%lane") + "ld.global.b32 %r4, [%address];\nadd.u32 %r4, %r4, %r1;\n"
    form = f"m8n8.x{number}{'.trans' if trans else ''}.shared.b16"
    registers = ", ".join(f"%r{20 + i}" for i in range(number))
    if not stored:
        body += f"ldmatrix.sync.aligned.{form} {{{registers}}}, [%r4];\n"
        for i in range(number):
            body += (
                f"add.u32 %r12, %lane, {32 * i};\n" + at("out", 4, "%r12") + f"st.global.b32 [%address], %r{20 + i};\n"
            )
        return body, arrays, {"shared": MATRICES}
    for i in range(number):
        body += (
            f"add.u32 %r12, %lane, {32 * i};\n" + at("given", 4, "%r12") + f"ld.global.b32 %r{20 + i}, [%address];\n"
        )
    body += f"stmatrix.sync.aligned.{form} [%r4], {{{registers}}};\nbar.sync 0;\nmov.u32 %r10, 0;\nTAKE:\n" + word
    body += "mad.lo.u32 %r3, %r11, 4, %r1;\nld.shared.b32 %r2, [%r3];\n" + at("out", 4, "%r11")
    body += "st.global.b32 [%address], %r2;\nadd.u32 %r10, %r10, 1;\nsetp.lt.u32 %p1, %r10, 64;\n@%p1 bra TAKE;\n"
    return body, arrays, {"shared": MATRICES}


def forms() -> Iterator[Form]:
    """Yield them all."""
    for form in ("try_wait", "test_wait"):
        for number, (what, count, _) in enumerate(COUNTS):
            arrays = {"out": np.full(32, 9, np.uint32)}
            given = functools.partial(_given, phases(what, count, form), arrays, {"shared": SHARED})
            yield Form("mbarrier", f"{form}, {number}: {count} expected", given)
    yield Form("mbarrier", "a pipeline", passed_on)
    for counted in (True, False):
        name = f"cp.async arrives{', noinc' if counted else ''}"
        yield Form("mbarrier", name, functools.partial(copies_signalled, counted))
    for number, (what, count) in enumerate(PENDING):
        arrays = {"out": np.full(32, 9, np.uint32)}
        given = functools.partial(_given, pending(what), arrays, {"shared": SHARED})
        yield Form("mbarrier", f"pending_count, {number}: {count}", given)
    arrays = {"out": np.zeros(256, np.uint32)}
    how = {"threads": 64, "ctas": 4, "cluster": 2, "shared": SHARED}
    yield Form("cluster", "stores and arrivals at another CTA", functools.partial(_given, cluster(), arrays, how))
    arrays = {"out": np.zeros((128, 4), np.uint32)}
    how = {"threads": 64, "ctas": 2, "cluster": 2, "shared": SHARED}
    yield Form("cluster", "asynchronous stores", functools.partial(_given, async_stores(), arrays, how))
    for stored in (False, True):
        for number in (1, 2, 4):
            for trans in (False, True):
                name = f"x{number}{', transposed' if trans else ''}"
                group = "stmatrix" if stored else "ldmatrix"
                yield Form(group, name, functools.partial(matrices, stored, number, trans))
