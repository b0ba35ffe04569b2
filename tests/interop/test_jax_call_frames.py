"""How gemmule.jax reads XLA's call frames on the CPU, and what it holds of earlier calls."""

from __future__ import annotations

import ctypes
import types

import numpy as np
import pytest

from gemmule.core.errors import UnsupportedError
from support.fakes.launches import launched

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import gemmule.jax as gj  # noqa: E402
from gemmule.dispatch.choices.choice_cache import clear_choices, generation  # noqa: E402
from gemmule.jax import frame, handlers, structs  # noqa: E402
from gemmule.jax.options import Options  # noqa: E402

__all__ = ["launched"]

pytestmark = pytest.mark.usefixtures("jax_on_the_host")


def test_what_goes_wrong_in_a_handler_reaches_the_caller(monkeypatch):
    from gemmule.jax import handlers

    def fail(*_, **__):
        raise RuntimeError("no product today")

    monkeypatch.setattr(handlers.gm, "gemm", fail)
    with pytest.raises(Exception, match="RuntimeError: no product today"):
        jax.block_until_ready(jax.jit(gj.matmul)(jnp.ones((3, 3)), jnp.ones((3, 3))))
    monkeypatch.undo()
    assert float(gj.matmul(jnp.ones((3, 3)), jnp.ones((3, 3)))[0, 0]) == 3


def test_options_travel_whole():
    for options in (Options(), Options(0.1, -1e-308, True, False, "tf32"), Options(float("inf"), -0.0)):
        assert Options.parse(options.text()) == options


@pytest.mark.parametrize(
    ("text", "minor"),
    [
        ("#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 3\n", 3),
        ("#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 99\n", frame.MINOR),
        ("#define XLA_FFI_API_MAJOR 1\n#define XLA_FFI_API_MINOR 0\n", None),
        ("", None),
    ],
)
def test_the_version_that_is_spoken(tmp_path, text, minor):
    header = tmp_path / "xla/ffi/api/c_api.h"
    with pytest.raises(UnsupportedError, match=r"c_api.h is missing"):
        frame.spoken_minor(tmp_path)
    header.parent.mkdir(parents=True)
    header.write_text(text)
    if minor is None:
        with pytest.raises(UnsupportedError, match="install another version of JAX"):
            frame.spoken_minor(tmp_path)
    else:
        assert frame.spoken_minor(tmp_path) == minor


def test_frames_that_are_shorter_than_they_are_read_are_refused():
    api = structs.Api(ctypes.sizeof(structs.Api), None, structs.Version(24, None, 0, 3))
    call = structs.Frame(ctypes.sizeof(structs.Frame), None, ctypes.pointer(api))
    for part in (call.arguments, call.results, call.attributes):
        part.struct_size = ctypes.sizeof(part)

    def read():
        return frame.CallFrame(ctypes.addressof(call), 3)

    assert not read().answers_metadata()
    read().check()
    short = [(call, "call frame"), (call.arguments, "arguments"), (call.results, "results"),
             (call.attributes, "attributes"), (api, "functions")]  # fmt: skip
    for struct, name in short:
        struct.struct_size -= 8
        with pytest.raises(UnsupportedError, match=f"XLA's {name} take"):
            read().check()
        struct.struct_size += 8
    api.version.major = 1
    with pytest.raises(UnsupportedError, match=r"version 1\.3"):
        read().check()


def test_the_structs_are_those_of_the_header():
    """The sizes that the C compiler gives them on 64-bit machines, from the header's own rule."""
    assert structs.Version.minor.offset + 4 == 24
    assert structs.Api.stream_get.offset == 16 + 24 + 8 + 4 * 8
    assert (structs.Frame.arguments.offset, structs.Frame.results.offset, structs.Frame.attributes.offset) == (
        40,
        80,
        120,
    )
    assert (structs.BufferStruct.dtype.offset, structs.BufferStruct.data.offset, structs.BufferStruct.dims.offset) == (
        16,
        24,
        40,
    )
    assert frame._BUFFER.size == ctypes.sizeof(structs.BufferStruct)
    assert frame._API_HEAD.size == ctypes.sizeof(structs.Api)
    assert frame._FRAME.size == ctypes.sizeof(structs.Frame)
    assert (structs.Metadata.version.offset, structs.Metadata.traits.offset) == (8, 32)


def test_what_was_decided_is_forgotten_with_the_choices(launched):
    raw = ((11, np.array((4, 4), np.int64).tobytes()),) * 3
    text = Options().text().encode()
    clear_choices()
    for _ in range(2):
        handlers._decided(text, raw, (), 0, generation(), False)
    assert len(launched.packed) == 1
    clear_choices()
    handlers._decided(text, raw, (), 0, generation(), False)
    assert len(launched.packed) == 2
    # As another thread may, while this one decides.
    launched.while_packing = clear_choices
    clear_choices()
    handlers._decided(text, raw, (), 0, generation(), False)
    handlers._decided(text, raw, (), 0, generation(), False)
    assert len(launched.packed) == 4
    clear_choices()


def test_calls_outside_of_jit_are_traced_once(monkeypatch):
    """Of one shape and type; what is computed is that of each call."""
    traced, ffi_call = [], jax.ffi.ffi_call

    def counted(*arguments, **options):
        traced.append(arguments)
        return ffi_call(*arguments, **options)

    monkeypatch.setattr(jax.ffi, "ffi_call", counted)
    for seed in range(3):
        a, b = (jax.random.normal(jax.random.key(2 * seed + side), (37, 37)) for side in range(2))
        np.testing.assert_allclose(gj.matmul(a, b), np.asarray(a) @ np.asarray(b), rtol=1e-4, atol=1e-4)
    assert len(traced) == 1
    gj.gemm(a, b, alpha=2.0)
    assert len(traced) == 2


def test_what_was_decided_for_a_matrix_and_its_transpose_is_for_no_others(launched, monkeypatch):
    monkeypatch.setattr(handlers, "ordinal_of_address", lambda address: 0)
    raw = ((10, np.array((4096, 4096), np.int64).tobytes()),) * 3
    clear_choices()
    for other in (1 << 30, 1 << 31, 1 << 30, 1 << 31):
        frame = types.SimpleNamespace(
            text=lambda: Options(transpose_b=True).text().encode(),
            arrays=lambda other=other: (raw, (1 << 30, other, 1 << 32)),
            stream=lambda: 0,
        )
        handlers._on_gpu(frame)
    assert launched.packed == ["hopper_syrk", "hopper_gemm"]
    assert [kernel for kernel, *_ in launched.made] == launched.packed * 2
    clear_choices()
