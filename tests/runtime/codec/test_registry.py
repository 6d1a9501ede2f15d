"""Names and wire numbers of methods."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvferry_contract.config import Method
from kvferry_runtime.codec.none.format import NoneCodec
from kvferry_runtime.codec.registry import HOST_METHODS, METHODS, by_wire_id, host_codecs
from kvferry_runtime.errors import CodecError


def test_numbers_never_change() -> None:
    assert METHODS == {
        "none": 0, "int8": 1, "fp8": 2, "lossless": 3, "k8v4": 4, "fp4": 5, "sparse50": 6, "sparse75": 7,
        "fp8-head": 8, "fp8-tensor": 9,
    }  # fmt: skip
    assert set(METHODS) == {method.value for method in Method} - {"auto"} | {"fp8-head", "fp8-tensor"}


def test_codecs_have_the_names_and_numbers_of_their_methods() -> None:
    codecs = host_codecs()
    assert set(codecs) == set(HOST_METHODS) == set(METHODS) - {"sparse50", "sparse75"}
    for name, codec in codecs.items():
        assert (codec.name, codec.wire_id) == (name, METHODS[name])
        assert codec.lossy == (name not in ("none", "lossless"))
        assert by_wire_id(codecs, codec.wire_id) is codec


@pytest.mark.parametrize(("number", "named"), [(5, "fp4"), (99, "no method of this version")])
def test_a_number_without_a_codec_is_named(number: int, named: str) -> None:
    with pytest.raises(CodecError, match=rf"codec {number} \({named}\) is not available here: available are none"):
        by_wire_id({"none": NoneCodec()}, number)


def test_a_method_loads_its_own_kernels_only() -> None:
    code = (
        "import sys; from kvferry_runtime.codec.registry import host_codecs; print(*host_codecs(['none', 'int8'])); "
        "print(sorted(name for name in sys.modules if name.endswith('_kernels')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines() == ["none int8", "['kvferry_runtime.codec.int8.host_kernels']"]


def test_a_method_without_an_implementation_is_refused_by_name() -> None:
    with pytest.raises(CodecError, match="method sparse50 has no implementation for host memory: there are none, int8"):
        host_codecs(["none", "sparse50"])


def test_numbers_are_known_without_torch_and_numba() -> None:
    """The sidecar has neither."""
    code = (
        "import sys, kvferry_runtime.codec.registry, kvferry_runtime.codec.none.format; "
        "print(sorted({'torch', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "[]"
