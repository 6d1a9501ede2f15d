"""Lines of log that say which model they are about: namespace, name, revision and step of the pass they come from."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from kvferry_contract import logs

_fields: ContextVar[Mapping[str, str] | None] = ContextVar("fields", default=None)


def setup(style: str, level: str) -> None:
    """Send all logs to standard error. style: json or text. level: debug, info, warning or error."""
    logs.setup(style, level, context)
    # its lines at each event of each object say nothing that ours do not
    logging.getLogger("kopf").setLevel(max(logging.getLogger().level, logging.WARNING))


def context() -> Mapping[str, str]:
    """Fields of the pass that runs in this task."""
    return _fields.get() or {}


@contextmanager
def fields(**values: str) -> Iterator[None]:
    """Lay fields on every line that is written inside, by this task and those that it starts."""
    token = _fields.set({**context(), **values})
    try:
        yield
    finally:
        _fields.reset(token)


def note(**values: str) -> None:
    """The same until the surrounding `fields` ends."""
    _fields.set({**context(), **values})
