"""What the API server warns of in a header of its answers (deprecated fields, risky values): logged once each."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from kvferry_operator.kube.calls import Call

_TEXT = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_MAX_REMEMBERED = 256
_MAX_LOGGED = 500


class Warnings:
    """Passes each text on for each kind once, and forgets the oldest when there are very many."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._seen: dict[tuple[str, str], None] = {}

    def note(self, call: Call, headers: Iterable[str]) -> None:
        """headers: the values of `Warning` in one answer."""
        for text in texts(headers):
            key = (call.kind.kind, text)
            if key in self._seen:
                continue
            self._seen[key] = None
            if len(self._seen) > _MAX_REMEMBERED:
                del self._seen[next(iter(self._seen))]
            self._logger.warning("%s: the API server warns: %s", call, text[:_MAX_LOGGED])


def texts(headers: Iterable[str]) -> list[str]:
    """The texts of warning headers (`299 - "text"`), without their quotes."""
    return [re.sub(r"\\(.)", r"\1", text) for header in headers for text in _TEXT.findall(header)]
