"""Names and wire numbers of methods."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvferry_contract.config import Method
from kvferry_runtime.codec.none import NoneCodec
from kvferry_runtime.codec.registry import METHODS, by_wire_id, host_codecs
from kvferry_runtime.errors import CodecError


def test_numbers_never_change() -> None:
    assert METHODS == {
        "none": 0, "int8": 1, "fp8": 2, "lossless": 3, "k8v4": 4, "fp4": 5, "sparse50": 6, "sparse75": 7,
    }  # fmt: skip
    assert set(METHODS) == {method.value for method in Method} - {"auto"}


def test_codecs_have_the_names_and_numbers_of_their_methods() -> None:
    codecs = host_codecs()
    assert list(codecs) == ["none", "int8", "fp8"]
    for name, codec in codecs.items():
        assert (codec.name, codec.wire_id) == (name, METHODS[name])
        assert codec.lossy == (name != "none")
        assert by_wire_id(codecs, codec.wire_id) is codec


@pytest.mark.parametrize(("number", "named"), [(5, "fp4"), (99, "no method of this version")])
def test_a_number_without_a_codec_is_named(number: int, named: str) -> None:
    with pytest.raises(CodecError, match=rf"codec {number} \({named}\) is not available here: available are none"):
        by_wire_id({"none": NoneCodec()}, number)


def test_numbers_are_known_without_torch_and_numba() -> None:
    """The sidecar has neither."""
    code = (
        "import sys, kvferry_runtime.codec.registry, kvferry_runtime.codec.none; "
        "print(sorted({'torch', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
