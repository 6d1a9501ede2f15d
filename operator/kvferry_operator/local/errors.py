"""Errors of local mode.

LocalError
├── Unsupported      the objects ask for something that only a cluster has
├── CannotStart      the machine lacks something: a port, memory, a model, a library
├── AlreadyRunning   this name is taken by another `kvferry local up`
├── NotRunning       nothing runs under this name
└── StartFailed      a container ended with a settings error before it was ever ready
"""

from __future__ import annotations

from kvferry_operator.errors import OperatorError


class LocalError(OperatorError):
    """Base of all errors that local mode raises on purpose; the message says what to do."""


class Unsupported(LocalError):
    """The objects ask for something that only a cluster has."""


class CannotStart(LocalError):
    """The machine lacks something that the objects need."""


class AlreadyRunning(LocalError):
    """This name is taken by another `kvferry local up`."""


class NotRunning(LocalError):
    """Nothing runs under this name."""


class StartFailed(LocalError):
    """A container ended with a settings error before it was ever ready."""
