"""Lines of log, the same of every process of a cluster: JSON or text, to standard error."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

FORMATS = ("json", "text")
LEVELS = ("debug", "info", "warn", "warning", "error", "critical")

Context = Callable[[], Mapping[str, Any]]
"""What a line is about, asked for when it is written."""

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class _Formatter(logging.Formatter):
    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context

    def _extra(self, record: logging.LogRecord) -> dict[str, Any]:
        given = {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        return {**self._context(), **given}


class JsonFormatter(_Formatter):
    """One JSON object a line: ts (RFC 3339, UTC), level, logger, msg, the context, what was given as `extra`, exc."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "ts": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        entry |= self._extra(record)
        if record.exc_info:
            entry["exc"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class TextFormatter(_Formatter):
    """`12:34:56.789 INFO logger: message key=value …`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        extra = "".join(f" {key}={value}" for key, value in self._extra(record).items())
        line = f"{moment}.{int(record.msecs):03d} {record.levelname} {record.name}: {record.getMessage()}{extra}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def setup(style: str, level: str, context: Context = dict) -> None:
    """Send all logs to standard error. style: one of `FORMATS`. level: one of `LEVELS`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(context) if style == "json" else TextFormatter(context))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
