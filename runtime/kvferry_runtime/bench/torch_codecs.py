"""The methods in torch, which compiled ones are measured against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from kvferry_runtime.codec.base import Codec
from kvferry_runtime.codec.fp4.reference import ReferenceFp4
from kvferry_runtime.codec.fp8.reference import ReferenceFp8, ReferenceFp8Head, ReferenceFp8Tensor
from kvferry_runtime.codec.int8.reference import ReferenceInt8
from kvferry_runtime.codec.k8v4.reference import ReferenceK8V4
from kvferry_runtime.codec.lossless.reference import ReferenceLossless

_CODECS: Mapping[str, Callable[[], Codec]] = {
    codec.name: codec
    for codec in (
        ReferenceLossless, ReferenceInt8, ReferenceFp8, ReferenceFp8Head, ReferenceFp8Tensor, ReferenceK8V4,
        ReferenceFp4,
    )
}  # fmt: skip


def torch_codec(method: str) -> Codec | None:
    """None if torch has no part in it."""
    return _CODECS[method]() if method in _CODECS else None


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """As many as the compiled codecs have."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
