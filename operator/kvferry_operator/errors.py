"""Errors of the control plane and of the `kvferry` command.

OperatorError
├── InputError     a file or document that cannot be used at all: missing, not YAML, of another kind
└── SpecInvalid    an object that is refused; carries every error with its path

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
