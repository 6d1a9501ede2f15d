"""What a container leaves behind when it ends."""

from __future__ import annotations

MESSAGE = {"terminationMessagePolicy": "FallbackToLogsOnError"}
"""Of every container: the end of its log says in the pod's status why it ended."""
