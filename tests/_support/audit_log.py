"""What an API server's audit log says: who asked for what, and what was answered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True)
class Request:
    """user: as RBAC knows it, such as system:serviceaccount:NAMESPACE:NAME. path: with its query. code: of HTTP.

    resource and subresource are empty for paths that are no resource, such as /openapi/v3. granted: by a rule; what is
    not answers 403, but so may an admission plugin or whatever is asked through a proxy. answered: Unix time.
    """

    user: str
    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    path: str
    code: int
    granted: bool
    agent: str
    answered: float

    @property
    def writes(self) -> bool:
        return self.verb in WRITES


def read(path: Path, start: int = 0) -> list[Request]:
    """The requests that were answered, or whose answer began (watches), after byte `start` of the log, in order."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(start)
        lines = file.read().split(b"\n")[:-1]
    return [_request(event) for event in map(json.loads, lines) if _counts(event)]


def _counts(event: dict[str, Any]) -> bool:
    """One event of each request: a watch that was granted counts when it begins, all else when it was answered."""
    granted_watch = event["verb"] == "watch" and (event.get("responseStatus") or {}).get("code") == 200
    return bool(event["stage"] == "ResponseStarted") if granted_watch else bool(event["stage"] == "ResponseComplete")


def _request(event: dict[str, Any]) -> Request:
    target, user, status = (event.get(key) or {} for key in ("objectRef", "user", "responseStatus"))
    return Request(
        user=str(user.get("username", "")),
        verb=str(event["verb"]),
        group=str(target.get("apiGroup", "")),
        resource=str(target.get("resource", "")),
        subresource=str(target.get("subresource", "")),
        namespace=str(target.get("namespace", "")),
        name=str(target.get("name", "")),
        path=str(event["requestURI"]),
        code=int(status.get("code", 0)),
        granted=(event.get("annotations") or {}).get("authorization.k8s.io/decision") == "allow",
        agent=str(event.get("userAgent", "")),
        answered=datetime.fromisoformat(event["stageTimestamp"]).timestamp(),
    )


def by_verb(requests: Iterable[Request]) -> Counter[tuple[str, str, str]]:
    """How often each (verb, resource, subresource) was asked for."""
    return Counter((request.verb, request.resource, request.subresource) for request in requests)
