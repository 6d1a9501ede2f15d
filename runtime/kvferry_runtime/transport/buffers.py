"""Buffers that are lent to a transport, and the futures that give them back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from kvferry_runtime.errors import LayoutError, TransportError

MAX_TAG = (1 << 64) - 1


def lent_view(buffer: memoryview, *, writable: bool) -> memoryview:
    """`buffer` as flat bytes over the same memory.

    Raises:
        LayoutError: not C-contiguous (its bytes in memory are not its values in order), or read-only where it is
            written to.
    """
    if not buffer.c_contiguous:
        raise LayoutError(
            f"buffer of shape {buffer.shape} with strides {buffer.strides} is not C-contiguous: copy it first"
        )
    if writable and buffer.readonly:
        raise LayoutError(f"buffer of {buffer.nbytes} bytes is read-only, nothing can be received into it")
    # A view with a zero in its shape cannot be cast.
    return buffer.cast("B") if buffer.nbytes else memoryview(bytearray())


def checked_tag(tag: int) -> int:
    """`tag`, if a message may carry it; 0 is the transports' own."""
    if not 0 < tag <= MAX_TAG:
        raise ValueError(f"tag {tag} is not within 1 to 2**64-1")
    return tag


class BufferFuture(asyncio.Future[None]):
    """Done when the transport no longer touches the buffer, and not before, whatever becomes of those who wait."""

    _told: Callable[[TransportError | None], None] | None = None

    def when_back(self, tell: Callable[[TransportError | None], None]) -> None:
        """Call `tell` as soon as the buffer is back, with the error if there was one; not from within this call.

        It is called by the transport itself, within its own step: a callback of the event loop for each message was a
        good part of what a message cost. It must not raise.
        """
        assert self._told is None
        if self.done():
            self.get_loop().call_soon(tell, self._error())
        else:
            self._told = tell

    def cancel(self, msg: Any | None = None) -> bool:
        """Refused: nobody but the transport knows when the buffer is back."""
        return False

    def __await__(self) -> Generator[Any, None, None]:
        # Who is cancelled while waiting leaves through the shield; the loan goes on.
        return super().__await__() if self.done() else asyncio.shield(self).__await__()

    __iter__ = __await__

    def give_back(self, error: TransportError | None = None) -> None:
        """The buffer is free again, because the message went through or because of `error`."""
        if self.done():
            return
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)
            # Looked at once, so that asyncio does not report a failure that the owner sees by its own means.
            self.exception()
        if self._told is not None:
            self._told(error)

    def _error(self) -> TransportError | None:
        error = self.exception()
        assert error is None or isinstance(error, TransportError)
        return error
