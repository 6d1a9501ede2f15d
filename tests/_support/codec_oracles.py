"""The methods in torch or numpy, by name: what every implementation's bytes are compared with."""

from __future__ import annotations

import numpy as np

from device_kv import Pages, decoded_on_device, encoded_on_device
from kvferry_runtime.codec.base import Codec
from kvferry_runtime.codec.device.base import DeviceCodec
from kvferry_runtime.codec.fp4.reference import ReferenceFp4
from kvferry_runtime.codec.fp8.reference import ReferenceFp8, ReferenceFp8Head, ReferenceFp8Tensor
from kvferry_runtime.codec.int8.reference import ReferenceInt8
from kvferry_runtime.codec.k8v4.reference import ReferenceK8V4
from kvferry_runtime.codec.lossless.reference import ReferenceLossless
from kvferry_runtime.codec.none.format import NoneCodec
from kvferry_runtime.errors import CorruptPayload, NotEncodable

ORACLES: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        NoneCodec(),
        ReferenceLossless(),
        ReferenceInt8(),
        ReferenceFp8(),
        ReferenceFp8Head(),
        ReferenceFp8Tensor(),
        ReferenceK8V4(),
        ReferenceFp4(),
    )
}


def reference_payload(codec: Codec, pages: Pages) -> bytes | None:
    """None if a value cannot be carried."""
    out = np.zeros(codec.max_wire_bytes(pages.shape), np.uint8)
    try:
        return out[: codec.encode(pages.rows(), pages.shape, out)].tobytes()
    except NotEncodable:
        return None


def device_payload(codec: DeviceCodec, pages: Pages) -> bytes | None:
    try:
        return encoded_on_device(codec, pages)
    except NotEncodable:
        return None


def reference_rows(codec: Codec, payload: bytes, pages: Pages) -> list[bytes] | None:
    """None for a corrupt payload."""
    rows = [np.zeros_like(array) for array in pages.rows()]
    try:
        codec.decode(np.frombuffer(payload, np.uint8), pages.shape, rows)
    except CorruptPayload:
        return None
    return [array.tobytes() for array in rows]


def device_rows(codec: DeviceCodec, payload: bytes, pages: Pages) -> list[bytes] | None:
    try:
        return [array.tobytes() for array in decoded_on_device(codec, payload, pages).rows()]
    except CorruptPayload:
        return None


def alike(codec: DeviceCodec, pages: Pages) -> bool:
    """Whether the device writes the oracle's bytes, or refuses what it refuses, and reads them as it does."""
    oracle = ORACLES[codec.name]
    payload = device_payload(codec, pages)
    if payload != reference_payload(oracle, pages):
        return False
    return payload is None or device_rows(codec, payload, pages) == reference_rows(oracle, payload, pages)
