"""Which methods one engine may send with, and how fast each of them is in its process."""

from __future__ import annotations

from kvferry_contract.config import Method, OverlapMode, TransferConfig
from kvferry_runtime.agent.slot_work import SlotCopier
from kvferry_runtime.auto.speeds import MethodSpeed, ordered
from kvferry_runtime.layout import KvDtype, KvLayout
from kvferry_runtime.ring.messages import OfferedMethod

OBSERVED_BYTES = 64 * 1024
"""Smaller chunks say more about the turn of a loop than about a method."""


class Methods:
    """Speeds are measured once at the start, where something is to be chosen by them, and then on every chunk.

    codec: as offers name it: a method, or "auto". lossy: whether one of the methods is. chosen: whether the sidecar
    decides, by what it measured of the link, how an offer goes.
    """

    def __init__(self, transfer: TransferConfig, copier: SlotCopier, layout: KvLayout) -> None:
        shapes = [shape for shape in layout.shapes if shape.dtype is not KvDtype.UINT8]
        automatic = transfer.method is Method.AUTO
        names = ordered({Method.NONE, *transfer.auto_methods}) if automatic else [copier.method.name]
        usable = [
            name
            for name in names
            if name in copier.codecs and all(copier.codecs[name].supports(shape) is None for shape in set(shapes))
        ]
        self.codec = transfer.method.value if automatic else copier.method.name
        self.lossy = any(copier.codecs[name].lossy for name in usable)
        self.chosen = automatic or transfer.overlap is OverlapMode.AUTO
        self._speeds: dict[str, MethodSpeed] = {}
        if self.chosen and shapes:
            widest = max(shapes, key=lambda shape: shape.bytes_per_token)
            self._speeds = {name: copier.speed(name, widest) for name in usable}

    def offered(self) -> list[OfferedMethod]:
        """As they stand now, least lossy first."""
        return [OfferedMethod(item.method, item.ratio, item.encode, item.decode) for item in self._speeds.values()]

    def observed(self, method: str, raw_bytes: int, wire_bytes: int, seconds: float) -> None:
        """A chunk was gathered, encoded and digested."""
        speed = self._speeds.get(method)
        if speed is not None and raw_bytes >= OBSERVED_BYTES:
            self._speeds[method] = speed.observed(raw_bytes, wire_bytes, seconds)
