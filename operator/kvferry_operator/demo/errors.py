"""The one error of the demo."""

from __future__ import annotations

from kvferry_operator.errors import OperatorError


class DemoFailed(OperatorError):
    """The demo could not show what it is there to show."""
