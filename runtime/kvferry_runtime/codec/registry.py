"""Which methods exist, and the numbers they have on the wire. Compiled codecs are loaded only when asked for.

A wire id is never given to another format. The methods of `METHODS` that `host_codecs` does not return have their
number but no implementation yet.
"""

from __future__ import annotations

from collections.abc import Mapping

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
}
"""Wire id of each method."""


def host_codecs() -> dict[str, Codec]:
    """The methods that work on host memory, by name, ready for use.

    The first call in a process loads the compiled kernels: about a second from numba's cache, five without it.
    """
    from kvferry_runtime.codec.host_fp8 import HostFp8
    from kvferry_runtime.codec.host_int8 import HostInt8
    from kvferry_runtime.codec.none import NoneCodec

    return {codec.name: codec for codec in (NoneCodec(), HostInt8(), HostFp8())}


def by_wire_id(codecs: Mapping[str, Codec], wire_id: int) -> Codec:
    """The codec that reads payloads of this number.

    Raises:
        CodecError: none of `codecs` has it; the message names the method if the number has one.
    """
    for codec in codecs.values():
        if codec.wire_id == wire_id:
            return codec
    name = next((method for method, number in METHODS.items() if number == wire_id), "no method of this version")
    raise CodecError(f"codec {wire_id} ({name}) is not available here: available are {', '.join(codecs)}")
