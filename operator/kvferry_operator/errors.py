"""Errors of the control plane and of the `kvferry` command.

OperatorError
├── InputError     a file or document that cannot be used at all: missing, not YAML, of another kind
├── SpecInvalid    an object that is refused; carries every error with its path
├── RightsGiven    what could not be read at the start can be now: only a new process takes it in
└── ClusterError   the API server said no, or nothing
    ├── Refused      it will never take this object: fields, values, immutable parts, a policy (400, 422)
    │   └── NotServed  it does not know the kind (404)
    ├── Forbidden    we lack the permission (401, 403)
    ├── Conflict     somebody else changed or replaced it (409)
    ├── Throttled    later, please (429, 503 with Retry-After)
    ├── Unreachable  no answer in time, connection lost, 5xx
    └── NotLeading   it was not asked, since another operator may act by now

Local mode adds its own below `OperatorError` (`local/errors.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that is wrong in an object. `path` is the field as a user writes it, like `spec.decode.replicas`."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class OperatorError(Exception):
    """Base of all errors that this package raises on purpose."""


class InputError(OperatorError):
    """A file or document that cannot be used at all."""


class SpecInvalid(OperatorError):
    """An object that is refused. `errors` holds everything that is wrong with it, at least one."""

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(map(str, self.errors)))


class RightsGiven(OperatorError):
    """A namespace can be read that could not be when the process began."""


class ClusterError(OperatorError):
    """The API server said no, or nothing. The message names verb, kind and object, and what to do."""


class Refused(ClusterError):
    """The server will never take this object as it is."""


class NotServed(Refused):
    """The server does not know the kind: a CRD is not installed, or an API switched off."""


class Forbidden(ClusterError):
    """The operator lacks a permission; the message says which rule is missing."""


class Conflict(ClusterError):
    """Somebody else changed, replaced or already made the object."""


class Throttled(ClusterError):
    """The server asks to come back later. retry_after: seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class Unreachable(ClusterError):
    """No answer in time, a lost connection, or a failure inside the server."""


class NotLeading(ClusterError):
    """Nothing was sent: our lease has run out."""
