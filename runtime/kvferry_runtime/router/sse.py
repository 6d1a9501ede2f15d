"""Server-sent events as the OpenAI API uses them: `data: <json>` and a blank line."""

from __future__ import annotations

from typing import Final

MAX_EVENT_BYTES: Final = 4 << 20
DONE: Final = b"[DONE]"


class EventTooLarge(ValueError):
    """An event exceeds `MAX_EVENT_BYTES`."""


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


class EventSplitter:
    """Turns bytes, cut anywhere, into the data of whole events. Comments and other fields are skipped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> list[bytes]:
        """The events that `received` completes, in order.

        Raises:
            EventTooLarge: more than `MAX_EVENT_BYTES` without the end of an event.
        """
        text = self._rest + received if self._rest else received
        if b"\r" in text:
            # a CR at the very end may be half of a line end: it is kept back, so that CRLF never reads as two ends
            keep = text.endswith(b"\r")
            text = text.replace(b"\r\n", b"\n") if not keep else text[:-1].replace(b"\r\n", b"\n") + b"\r"
        *blocks, self._rest = text.split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLarge(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        return [data for block in blocks if (data := _data(block))]


def _data(block: bytes) -> bytes:
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)
