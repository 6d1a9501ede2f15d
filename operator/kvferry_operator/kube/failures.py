"""What the API server says when it refuses, turned into the errors of the operator. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from kvferry_operator.errors import ClusterError, Conflict, Forbidden, NotServed, Refused, Throttled, Unreachable
from kvferry_operator.kube.calls import Answer, Call

_MAX_TEXT = 1000
_LEAST_WAIT_SECONDS = 1.0
_MOST_WAIT_SECONDS = 60.0

_DENIED = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)
_UNFIT = "failed to create typed patch object"
"""An unknown field, a value of a wrong type or a key that is there twice: server-side apply answers these with 500."""
_ESCALATION = "attempting to grant RBAC permissions not currently held"


def error(call: Call, answer: Answer) -> ClusterError:
    """What an answer that is no success means."""
    said = _Status.of(answer)
    status = answer.status
    if status == 429 or (status == 503 and answer.retry_after):
        wait = _seconds(answer.retry_after)
        return Throttled(f"{call}: the API server asks to come back in {wait:g} s: {said.message}", wait)
    if status == 401:
        return Forbidden(f"{call}: the API server does not accept our credentials: {said.message}; log in again")
    if status == 403:
        return _forbidden(call, said)
    if status == 404:
        return _not_found(call, said)
    if status in (409, 410):
        return Conflict(f"{call}: {said.message}")
    if _UNFIT in said.message:
        return Refused(f"{call}: refused: {said.message}")
    if status >= 500 or status == 408:
        return Unreachable(f"{call}: the API server failed with {status}: {said.message}")
    return Refused(f"{call}: refused with {status}: {said.message}")


def already_exists(answer: Answer) -> bool:
    """Whether a 409 says that an object of this name is there."""
    return answer.status == 409 and _Status.of(answer).reason == "AlreadyExists"


def not_there(answer: Answer) -> bool:
    """Whether a 404 speaks of the object, and not of a kind that is not served."""
    return answer.status == 404 and _Status.of(answer).name != ""


@dataclass(frozen=True, slots=True)
class _Status:
    """The parts of a `Status` object that matter. name: of the object that was not found, if any."""

    reason: str
    message: str
    name: str

    @classmethod
    def of(cls, answer: Answer) -> _Status:
        try:
            content = json.loads(answer.body)
        except ValueError:
            content = None
        if not isinstance(content, dict) or content.get("kind") != "Status":
            text = answer.body[:_MAX_TEXT].decode(errors="replace").strip()
            return cls("", text or f"no explanation (status {answer.status})", "")
        details: Any = content.get("details")
        name = details.get("name") if isinstance(details, dict) else None
        return cls(str(content.get("reason") or ""), _short(str(content.get("message") or "")), str(name or ""))


def _forbidden(call: Call, said: _Status) -> ClusterError:
    denied = _DENIED.search(said.message)
    if denied is not None:
        rule = f'apiGroups: ["{denied["group"]}"], resources: ["{denied["resource"]}"], verbs: ["{denied["verb"]}"]'
        where = f"in namespace {denied['namespace']}" if denied["namespace"] else "in the whole cluster"
        return Forbidden(f"{call}: {denied['user']} lacks the rule {{{rule}}} {where}; add it to its role")
    if _ESCALATION in said.message:
        return Forbidden(f"{call}: {said.message}; the operator must hold every right that it hands on")
    # quotas, admission policies and namespaces that are going away answer 403 as well: no rule would help
    return Refused(f"{call}: refused with 403: {said.message}")


def _not_found(call: Call, said: _Status) -> ClusterError:
    if said.name:
        return Conflict(f"{call}: it is gone: {said.message}")
    kind = f"{call.kind.plural} of {call.kind.api_version}"
    return NotServed(f"{call}: the API server serves no {kind}; install its CRD, or have that API switched on")


def _seconds(retry_after: str) -> float:
    """The API server sends whole seconds; anything else counts as not said."""
    wait = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    return min(max(wait, _LEAST_WAIT_SECONDS), _MOST_WAIT_SECONDS)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
