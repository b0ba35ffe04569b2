"""Small PTX kernels with tensor maps, clusters and products of warpgroups."""

from __future__ import annotations

import numpy as np

from gemmule.core.launch import Launch, TensorParam
from gemmule.vgpu import Options, launch
from support.ptx.snippets import kernel_text

SCHEDULES = ["late", "eager", "random"]

#: Waits for the phase of parity PARITY of the mbarrier at BARRIER.
WAIT = """{{
    .reg .pred done;
    AGAIN:
    mbarrier.try_wait.parity.shared.b64 done, [{barrier}], {parity};
    @!done bra AGAIN;
    }}
"""


def wait(barrier, parity):
    return WAIT.format(barrier=barrier, parity=parity)


def prepared(body, arrays, *, maps=(), threads=32, ctas=1, cluster=1, shared="", shared_bytes=0):
    """Return PTX text around a body and its recipe; operands are at %p_<name>, addresses of maps in %m_<operand>."""
    text = kernel_text(body, arrays, shared)
    declared = "".join(f",\n\t.param .align 64 .b8 map_{one.operand}[128]" for one in maps)
    text = text.replace("\n)\n{", declared + "\n)\n{", 1)
    loaded = "".join(
        f"\t.reg .b64 %m_{one.operand};\n\tmov.b64 %m_{one.operand}, map_{one.operand};\n"
        f"\tcvta.param.u64 %m_{one.operand}, %m_{one.operand};\n"
        for one in maps
    )
    text = text.replace("\t.loc 1 1 0\n", loaded + "\t.loc 1 1 0\n", 1)
    params = (*(TensorParam(name, (), ()) for name in arrays), *maps)
    return text, Launch((ctas, 1, 1), (threads, 1, 1), params, shared_bytes=shared_bytes, cluster=(cluster, 1, 1))


def run(body, arrays, *, options=None, observers=(), **how):
    """Run a body on arrays; `how` is as of `prepared`."""
    text, recipe = prepared(body, arrays, **how)
    launch(text, recipe, arrays, options=options or Options(checks=True), observers=observers)


def aligned(shape, dtype, fill=0):
    """An array that begins at a multiple of 16 bytes, as the copy engine wants it; on the virtual GPU all do."""
    return np.full(shape, fill, dtype)
