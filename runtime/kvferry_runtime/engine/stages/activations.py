"""Activations as bytes in buffers: what may be sent, how it is described, how it is checked."""

from __future__ import annotations

import math
import threading

import numpy as np
import xxhash

from kvferry_runtime.engine.stages.link_messages import MAX_DIMENSIONS, Description
from kvferry_runtime.engine.stages.messages import GroupMessage, Pass
from kvferry_runtime.engine.stages.ring import DTYPES, Array
from kvferry_runtime.errors import LayoutError, ProtocolError

ALIGNMENT = 64
"""Of each buffer, relative to the first one: a cache line."""


class Buffers:
    """`count` buffers of `size` bytes, allocated once. May be used from any thread.

    The one that came back last is taken first, so that only as many become resident as are ever out at a time.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        stride = -(-size // ALIGNMENT) * ALIGNMENT
        memory = np.empty(count * stride, np.uint8).data
        self._lock = threading.Lock()
        self._free = [memory[start : start + size] for start in range(0, count * stride, stride)]

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> memoryview | None:
        """A buffer; None if all are out."""
        with self._lock:
            return self._free.pop() if self._free else None

    def give_back(self, buffer: memoryview) -> None:
        with self._lock:
            self._free.append(buffer)


def check_sendable(message: GroupMessage, activation: Array | None, limit: int) -> None:
    """Whether this activation, of at most `limit` bytes, may go with this message.

    Raises:
        LayoutError: it may not.
    """
    name = type(message).__name__
    if isinstance(message, Pass) != (activation is not None):
        raise LayoutError(f"{name} {'without' if activation is None else 'with'} an activation")
    if activation is None:
        return
    if activation.dtype not in DTYPES:
        raise LayoutError(
            f"activation of {name} has dtype {activation.dtype}; {', '.join(map(str, DTYPES))} can be sent"
        )
    if not activation.flags.c_contiguous or not activation.size or not 1 <= activation.ndim <= MAX_DIMENSIONS:
        raise LayoutError(
            f"activation of {name} has shape {activation.shape} and strides {activation.strides}: it must be "
            f"C-contiguous, not empty, and of 1 to {MAX_DIMENSIONS} dimensions"
        )
    if activation.nbytes > limit:
        raise LayoutError(f"activation of {name} has {activation.nbytes} bytes, the stages agreed on at most {limit}")


def describe(activation: Array) -> Description:
    """For the next stage, which checks with it what arrived."""
    digest = xxhash.xxh3_64_intdigest(activation.data.cast("B"))
    return Description(list(activation.shape), activation.dtype.name, digest)  # type: ignore[arg-type]


def size_of(description: Description, limit: int) -> int:
    """Bytes of the activation that is described.

    Raises:
        ProtocolError: more than `limit`.
    """
    size = math.prod(description.shape) * np.dtype(description.dtype).itemsize
    if size > limit:
        raise ProtocolError(
            f"an activation of shape {description.shape} and dtype {description.dtype} has {size} bytes, the stages "
            f"agreed on at most {limit}"
        )
    return size


def read(buffer: memoryview, description: Description) -> Array:
    """The activation in `buffer`, as a view of it.

    Raises:
        ProtocolError: its bytes are not those that were sent.
    """
    dtype = np.dtype(description.dtype)
    view = buffer[: size_of(description, buffer.nbytes)]
    digest = xxhash.xxh3_64_intdigest(view)
    if digest != description.digest:
        raise ProtocolError(
            f"an activation of {view.nbytes} bytes arrived damaged: its digest is {digest:016x}, not "
            f"{description.digest:016x}"
        )
    array: Array = np.frombuffer(view, dtype).reshape(description.shape)
    return array
