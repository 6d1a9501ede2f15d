"""The router's view of who serves, as local mode writes it to a file and as it is built from EndpointSlices.

File format: `{"version": 1, "groups": [{"role": "decode", "ordinal": 0, "revision": "ab12cd34", "ready": true,
"terminating": false, "engine": "127.9.0.3:8000", "sidecars": ["127.9.0.3:7400"], "pod": "smollm2-decode-…-0",
"sidecar_http": ["127.9.0.3:7401"]}]}`. It is replaced as a whole by rename, never written in place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

VERSION = 1


class EndpointsError(ValueError):
    """The endpoints file is not one that this router can read."""


@dataclass(frozen=True, slots=True)
class Group:
    """One group: one pod of every stage with the same ordinal.

    engine: `host:port` of the HTTP API (of the first stage). sidecars: `host:port` of each stage's peer port.
    sidecar_http: `host:port` of each stage's sidecar HTTP; empty where it cannot be asked.
    """

    role: str
    ordinal: int
    revision: str
    ready: bool
    terminating: bool
    engine: str
    sidecars: tuple[str, ...]
    pod: str
    sidecar_http: tuple[str, ...] = ()


def dump(groups: Iterable[Group]) -> str:
    return json.dumps({"version": VERSION, "groups": [asdict(group) for group in groups]}, sort_keys=True)


def load(text: str) -> tuple[Group, ...]:
    """Read what `dump` wrote.

    Raises:
        EndpointsError: not JSON, another version, or a group with wrong keys.
    """
    try:
        raw = json.loads(text)
        if raw["version"] != VERSION:
            raise EndpointsError(f"endpoints have version {raw['version']!r}, this router reads {VERSION}")
        return tuple(_group(item) for item in raw["groups"])
    except (KeyError, TypeError, ValueError) as error:
        raise EndpointsError(f"endpoints cannot be read: {error}") from error


def _group(item: dict[str, Any]) -> Group:
    addresses = {"sidecars": tuple(item["sidecars"]), "sidecar_http": tuple(item.get("sidecar_http", ()))}
    return Group(**{**item, **addresses})
