"""Why an end-to-end run stops."""

from __future__ import annotations


class CannotRun(Exception):
    """This machine lacks something. The message says what, and how to bring it."""


class StepFailed(Exception):
    """Something that should be true is not."""
