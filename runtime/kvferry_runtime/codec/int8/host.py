"""Method `int8` on host memory, compiled. The format is stated in `kvferry_runtime.codec.int8.format`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from kvferry_runtime.codec.int8 import host_kernels as kernels
from kvferry_runtime.codec.int8.format import Int8
from kvferry_runtime.codec.scaled.host import HostRows


class HostInt8(HostRows, Int8):
    encode_kernel: ClassVar[Callable[..., int]] = staticmethod(kernels.encode)
    decode_kernel: ClassVar[Callable[..., bool]] = staticmethod(kernels.decode)
