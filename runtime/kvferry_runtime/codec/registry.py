"""Which methods exist, and the numbers they have on the wire. Compiled codecs are loaded only when asked for.

A wire id is never given to another format. The methods of `METHODS` that `HOST_METHODS` lacks have their number but no
implementation for host memory yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Protocol, TypeVar

from kvferry_runtime.codec.base import Codec
from kvferry_runtime.errors import CodecError

METHODS: Mapping[str, int] = {
    "none": 0,
    "int8": 1,
    "fp8": 2,
    "lossless": 3,
    "k8v4": 4,
    "fp4": 5,
    "sparse50": 6,
    "sparse75": 7,
    "fp8-head": 8,
    "fp8-tensor": 9,
}
"""Wire id of each method."""

_HOST_CLASSES: Mapping[str, tuple[str, str]] = {
    "none": ("none.format", "NoneCodec"),
    "int8": ("int8.host", "HostInt8"),
    "fp8": ("fp8.host", "HostFp8"),
    "fp8-head": ("fp8.host_scoped", "HostFp8Head"),
    "fp8-tensor": ("fp8.host_scoped", "HostFp8Tensor"),
    "lossless": ("lossless.host", "HostLossless"),
    "k8v4": ("k8v4.host", "HostK8V4"),
    "fp4": ("fp4.host", "HostFp4"),
}
"""Module (in this folder) and class of each method; importing a module compiles the kernels of its methods."""

HOST_METHODS: tuple[str, ...] = tuple(_HOST_CLASSES)
"""Methods that work on host memory."""


class _WithWireId(Protocol):
    @property
    def wire_id(self) -> int: ...


Numbered = TypeVar("Numbered", bound=_WithWireId)


def host_codecs(methods: Iterable[str] = HOST_METHODS) -> dict[str, Codec]:
    """These methods on host memory, by name, ready for use.

    The first call for a method in a process loads its compiled kernels: a fraction of a second from numba's cache,
    three seconds without it, apart from the second that numba itself takes.

    Raises:
        CodecError: one of them has no implementation for host memory.
    """
    return {method: _host_codec(method) for method in methods}


def name_of(wire_id: int) -> str:
    """The method of this number."""
    return next((method for method, number in METHODS.items() if number == wire_id), "no method of this version")


def by_wire_id(codecs: Mapping[str, Numbered], wire_id: int) -> Numbered:
    """The codec that reads payloads of this number, on whatever memory.

    Raises:
        CodecError: none of `codecs` has it; the message names the method if the number has one.
    """
    for codec in codecs.values():
        if codec.wire_id == wire_id:
            return codec
    raise CodecError(f"codec {wire_id} ({name_of(wire_id)}) is not available here: available are {', '.join(codecs)}")


def _host_codec(method: str) -> Codec:
    if method not in _HOST_CLASSES:
        raise CodecError(f"method {method} has no implementation for host memory: there are {', '.join(HOST_METHODS)}")
    module, name = _HOST_CLASSES[method]
    codec: Codec = getattr(import_module(f"kvferry_runtime.codec.{module}"), name)()
    return codec
