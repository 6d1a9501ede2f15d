"""Which methods a GPU has. Triton and the kernels are loaded only when asked for."""

from __future__ import annotations

from kvferry_runtime.codec.device.base import DeviceCodec


def device_codecs() -> dict[str, DeviceCodec]:
    """The methods that work on a GPU's memory, by name. A kernel is compiled at its first launch."""
    from kvferry_runtime.codec.device.fp4 import DeviceFp4
    from kvferry_runtime.codec.device.k8v4 import DeviceK8V4
    from kvferry_runtime.codec.device.lossless import DeviceLossless
    from kvferry_runtime.codec.device.raw import DeviceNone
    from kvferry_runtime.codec.device.scaled import device_fp8, device_fp8_head, device_fp8_tensor, device_int8

    exact = (DeviceNone(), DeviceLossless())
    lossy = (device_int8(), device_fp8(), device_fp8_head(), device_fp8_tensor(), DeviceK8V4(), DeviceFp4())
    return {codec.name: codec for codec in exact + lossy}
