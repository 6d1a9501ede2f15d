"""Method `fp8` on host memory, compiled. The format is stated in `kvferry_runtime.codec.fp8`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from kvferry_runtime.codec import host_kernels
from kvferry_runtime.codec.fp8 import Fp8
from kvferry_runtime.codec.host_rows import HostRows


class HostFp8(HostRows, Fp8):
    encode_kernel: ClassVar[Callable[..., int]] = staticmethod(host_kernels.encode_fp8)
    decode_kernel: ClassVar[Callable[..., bool]] = staticmethod(host_kernels.decode_fp8)
