"""Method `int8` on host memory, compiled. The format is stated in `kvferry_runtime.codec.int8`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from kvferry_runtime.codec import host_kernels
from kvferry_runtime.codec.host_rows import HostRows
from kvferry_runtime.codec.int8 import Int8


class HostInt8(HostRows, Int8):
    encode_kernel: ClassVar[Callable[..., int]] = staticmethod(host_kernels.encode_int8)
    decode_kernel: ClassVar[Callable[..., bool]] = staticmethod(host_kernels.decode_int8)
