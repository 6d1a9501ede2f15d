"""Where the groups are found: a file in local mode, EndpointSlices in a cluster, behind one interface."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from kvferry_contract import endpoints
from kvferry_contract.endpoints import EndpointsError, Group
from kvferry_runtime.errors import SettingsError

POLL_SECONDS = 0.25
"""A terminating group gets no new request within 1 s of the file's replacement; four looks a second cost nothing."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

logger = logging.getLogger(__name__)


class Discovery(Protocol):
    """A source of the model's groups."""

    def watch(self) -> AsyncIterator[tuple[Group, ...]]:
        """Yield the whole view: once as soon as it is known, then after each change. Ends only when cancelled."""
        ...


class FileDiscovery:
    """Groups in a file that is replaced as a whole by rename.

    A file that is missing or cannot be read changes nothing: the last good view stays, and `on_error` is called once
    for each bad version of the file.
    """

    def __init__(self, path: Path, on_error: Callable[[], None], poll_seconds: float = POLL_SECONDS) -> None:
        self._path = path
        self._on_error = on_error
        self._poll_seconds = poll_seconds

    async def watch(self) -> AsyncIterator[tuple[Group, ...]]:
        seen: tuple[int, int, int] | None = None
        while True:
            stamp = self._stamp()
            if stamp is not None and stamp != seen:
                seen = stamp
                groups = self._read()
                if groups is not None:
                    yield groups
            await asyncio.sleep(self._poll_seconds)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> tuple[Group, ...] | None:
        try:
            return endpoints.load(self._path.read_text())
        except (OSError, UnicodeDecodeError, EndpointsError) as error:
            logger.warning("endpoints not read, the last view stays: %s", error, extra={"path": str(self._path)})
            self._on_error()
            return None


def open_discovery(uri: str, on_error: Callable[[], None], host: str = "127.0.0.1") -> Discovery:
    """The source that `uri` names.

    host: the router's own address; groups are reached by its address family where they have both.

    Raises:
        SettingsError: the scheme is unknown, or what follows it is not what that scheme needs.
    """
    parts = urlsplit(uri)
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        if parts.netloc or not path.is_absolute():
            raise SettingsError(f"endpoints {uri!r}: write an absolute path with three slashes, file:///path")
        return FileDiscovery(path, on_error)
    if parts.scheme == "kubernetes":
        model = parts.path.removeprefix("/")
        if not _LABEL.fullmatch(parts.netloc) or not _LABEL.fullmatch(model):
            raise SettingsError(f"endpoints {uri!r}: write kubernetes://namespace/model, both as Kubernetes has them")
        # loads the Kubernetes client, which a router without a cluster has no use for
        from kvferry_runtime.router.endpoint_slices import EndpointSliceDiscovery, family_of

        return EndpointSliceDiscovery(parts.netloc, model, on_error, family=family_of(host))
    raise SettingsError(f"endpoints {uri!r}: unknown scheme; give file:///path or kubernetes://namespace/model")
