"""Method `lossless` on a GPU. The format is stated in `kvferry_runtime.codec.lossless.format`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import DeviceCodec, DeviceRows
from kvferry_runtime.codec.device.launch import element_type, launch_flat
from kvferry_runtime.codec.device.lossless_kernels import (
    apply_escapes,
    finish,
    join_groups,
    split_groups,
    write_escapes,
)
from kvferry_runtime.codec.device.raw import gather_raw, scatter_raw
from kvferry_runtime.codec.lossless.format import ESCAPE_BYTES, GROUP, Sections
from kvferry_runtime.codec.lossless.reference import ReferenceLossless
from kvferry_runtime.errors import CorruptPayload
from kvferry_runtime.layout import KvDtype

_SPLIT = (KvDtype.BF16, KvDtype.FP32)
_GROUPS_A_PROGRAM = 8
_BYTES_A_PROGRAM = 8192


class DeviceLossless(DeviceCodec):
    """The length of a payload is known when the escapes are counted: on the device."""

    fixed_ratio: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__(ReferenceLossless())

    def _encode(self, rows: DeviceRows, shape: ChunkShape, out: torch.Tensor, status: torch.Tensor) -> None:
        room = _room(shape)
        if room < 0:
            gather_raw(rows, shape, out, status)
            status[1].fill_(shape.raw_bytes)
            return
        sections = Sections.of(shape)
        raw = torch.empty(shape.raw_bytes, dtype=torch.uint8, device=out.device)
        gather_raw(rows, shape, raw, status)
        for run in _runs(shape):
            run.launch(split_groups, raw, out, places=(sections.signs, sections.codes, sections.bases, sections.counts))
        until = _until(out[sections.counts : sections.escapes])
        for run in _runs(shape):
            run.launch(write_escapes, raw, out, until, places=(sections.bases, sections.escapes, room))
        launch_flat(
            finish, -(-shape.raw_bytes // _BYTES_A_PROGRAM), raw, out, status, until[-1:], sections.escapes, room,
            shape.raw_bytes, SIZE=_BYTES_A_PROGRAM,
        )  # fmt: skip

    def _decode(self, payload: torch.Tensor, shape: ChunkShape, rows: DeviceRows, status: torch.Tensor) -> None:
        if payload.numel() == shape.raw_bytes:
            scatter_raw(payload, shape, rows, status)
            return
        if shape.dtype not in _SPLIT:
            raise CorruptPayload(f"lossless: {shape} has {shape.raw_bytes} bytes, not {payload.numel()}")
        sections = Sections.of(shape)
        rest = payload.numel() - sections.escapes
        if rest < 0 or rest % ESCAPE_BYTES:
            raise CorruptPayload(
                f"lossless: {shape} has {sections.escapes} bytes and {ESCAPE_BYTES} for each escape, "
                f"not {payload.numel()}"
            )
        raw = torch.empty(shape.raw_bytes, dtype=torch.uint8, device=payload.device)
        until = _until(payload[sections.counts : sections.escapes])
        found = rest // ESCAPE_BYTES
        for run in _runs(shape):
            places = (sections.signs, sections.codes, sections.bases, found)
            run.launch(join_groups, raw, payload, status, until, places=places)
        for run in _runs(shape):
            places = (sections.signs, sections.counts, sections.escapes, found)
            run.launch(apply_escapes, raw, payload, status, until, places=places)
        scatter_raw(raw, shape, rows, status)


def _room(shape: ChunkShape) -> int:
    """Escapes with which the chunk still gets smaller; below 0 if none does."""
    if shape.dtype not in _SPLIT:
        return -1
    return (shape.raw_bytes - 1 - Sections.of(shape).escapes) // ESCAPE_BYTES


def _until(counts: torch.Tensor) -> torch.Tensor:
    """int32 [groups]: escapes up to and with each group."""
    return torch.cumsum(counts, 0, dtype=torch.int32)


@dataclass(frozen=True, slots=True)
class _Run:
    """Groups that follow each other: whole ones, or the shorter last one, of a chunk of so many values."""

    dtype: KvDtype
    values: int
    first_group: int
    groups: int
    whole: bool

    def launch(self, entry: Any, *tensors: torch.Tensor, places: tuple[int, ...]) -> None:
        """places: what the kernel is told beside its tensors and the run itself."""
        launch_flat(
            entry, -(-self.groups // _GROUPS_A_PROGRAM), *tensors, self.values, self.first_group, *places,
            ELEMENT=element_type(self.dtype), FP32=self.dtype is KvDtype.FP32, GROUPS=_GROUPS_A_PROGRAM,
            WHOLE=self.whole,
        )  # fmt: skip


def _runs(shape: ChunkShape) -> list[_Run]:
    """Whole groups have constant halves, which a GPU loads many values at a time."""
    values = shape.rows * shape.head_dim
    whole = values // GROUP
    runs = [_Run(shape.dtype, values, 0, whole, True)] if whole else []
    if values % GROUP:
        runs.append(_Run(shape.dtype, values, whole, 1, False))
    return runs
